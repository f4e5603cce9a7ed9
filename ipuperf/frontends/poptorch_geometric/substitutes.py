"""Layers of PyTorch Geometric whose shapes or branches depend on data, with others of fixed shapes while models are
exported (``poptorch_geometric: override.py``)."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn
from torch_geometric.experimental import experimental_mode
from torch_geometric.nn.aggr.base import Aggregation
from torch_geometric.nn.dense.linear import HeteroLinear
from torch_geometric.utils import degree

from ipuperf.frontends.poptorch.errors import UnsupportedError
from ipuperf.frontends.poptorch.export.substitutes import replace_during_exports, surround_exports

from .ops.knn import knn
from .ops.knn_graph import knn_graph


def offer() -> None:
    """Replace them during exports, and let PyTorch Geometric ask for the sizes that it would find in data."""
    surround_exports(lambda: experimental_mode("disable_dynamic_shapes"))
    replace_during_exports(Aggregation, "assert_sorted_index", _unchecked)
    replace_during_exports(HeteroLinear, "forward", _hetero_linear)
    replace_during_exports(nn.ClusterGCNConv, "forward", _cluster_gcn)
    replace_during_exports(nn.MFConv, "forward", _mf)
    for place in (nn, nn.pool):
        replace_during_exports(place, "knn", knn)
        replace_during_exports(place, "knn_graph", knn_graph)
    replace_during_exports(sys.modules[nn.knn_interpolate.__module__], "knn", knn)


def _unchecked(self: Aggregation, index: Tensor | None) -> None:
    """The device cannot check that an index is sorted; the host's data must be."""


def _hetero_linear(self: HeteroLinear, x: Tensor, type_vec: Tensor) -> Tensor:
    """Each row by the weight of its type: the products with all weights, of which one is taken."""
    rows = torch.einsum("ni,tio->nto", x, self.weight)
    places = type_vec.view(-1, 1, 1).expand(-1, 1, rows.shape[-1])
    result = rows.gather(1, places).squeeze(1)
    return result if self.bias is None else result + self.bias[type_vec]


def _cluster_gcn(self: Any, x: Tensor, edge_index: Tensor) -> Tensor:
    """Self-loops of the graph get the weight 0 and new ones are put behind, where the layer removes and adds them."""
    _dense_edges("ClusterGCNConv", edge_index)
    count = x.size(self.node_dim)
    row, col = edge_index[0], edge_index[1]
    loop = row == col
    counted = torch.where(loop, 0.0, 1.0).to(x.dtype) if self.add_self_loops else torch.ones_like(col, dtype=x.dtype)
    degrees = torch.zeros(count, dtype=x.dtype).index_add(0, col, counted) + int(self.add_self_loops)
    inverse = 1.0 / degrees.clamp(min=1.0)
    weight = counted * inverse[col]
    if self.add_self_loops:
        nodes = torch.arange(count, dtype=edge_index.dtype)
        edge_index = torch.cat([edge_index, nodes.expand(2, count)], 1)
        weight = torch.cat([weight, inverse * (1 + self.diag_lambda)])
    else:
        weight = torch.where(loop, weight + self.diag_lambda * inverse[col], weight)
    result = self.propagate(edge_index, x=x, edge_weight=weight)
    return self.lin_out(result) + self.lin_root(x)


def _mf(self: Any, x: Any, edge_index: Tensor, size: Any = None) -> Tensor:
    """The linear layers of all degrees, of which each node takes that of its own."""
    _dense_edges("MFConv", edge_index)
    pair = (x, x) if isinstance(x, Tensor) else x
    target = pair[1]
    count = (
        (size[1] if size is not None else pair[0].size(self.node_dim)) if target is None else target.size(self.node_dim)
    )
    ends = edge_index[1 if self.flow == "source_to_target" else 0]
    degrees = degree(ends, count, dtype=torch.int32).clamp(max=self.max_degree)
    gathered = self.propagate(edge_index, x=pair, size=size)
    result = torch.zeros((*gathered.shape[:-1], self.out_channels), dtype=gathered.dtype)
    for number, (left, right) in enumerate(zip(self.lins_l, self.lins_r, strict=True)):
        rows = left(gathered) if target is None else left(gathered) + right(target)
        result = torch.where((degrees == number).view(-1, 1), rows, result)
    return result


def _dense_edges(layer: str, edge_index: Any) -> None:
    if not isinstance(edge_index, Tensor) or edge_index.layout != torch.strided:
        raise UnsupportedError(
            f"{layer}: edges as a sparse tensor are unsupported; give edge_index of shape (2, edges)"
        )
