"""``poptorch_geometric.ops``: functions of graphs whose results have fixed sizes (``poptorch_geometric: ops``).

Layers need no others here: PyTorch Geometric's own are exported.
"""

from torch_geometric.nn import (
    ClusterGCNConv,
    HeteroLinear,
    InstanceNorm,
    MFConv,
    knn_interpolate,
)
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.utils import to_dense_batch

from .knn import knn
from .knn_graph import knn_graph
from .nearest import nearest

__all__ = ["Aggregation", "ClusterGCNConv", "HeteroLinear", "InstanceNorm", "MFConv", "knn", "knn_graph"]
__all__ += ["knn_interpolate", "nearest", "to_dense_batch"]
