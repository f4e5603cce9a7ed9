"""Room ``poptorch_geometric``: PyTorch Geometric on simulated IPUs.

An IPU program is static, graphs are not: the loaders here pad every batch of graphs to one size. Layers are PyTorch
Geometric's own; message passing is gathers and scatters of fixed shapes (``graphcore/poptorch: poptorch_geometric``,
SDK 3.3).
"""

from __future__ import annotations

from importlib.util import find_spec

from ipuperf.base.requirements import pip_install as _pip_install

if find_spec("torch_geometric") is None:
    raise ModuleNotFoundError(
        f"poptorch_geometric needs PyTorch Geometric: {_pip_install('geometric')}", name="torch_geometric"
    )

from typing import NoReturn

from ipuperf.base.near_names import did_you_mean as _did_you_mean
from ipuperf.frontends.poptorch import __version__

from .cluster_loader import FixedSizeClusterLoader
from .collate import FixedSizeCollater, make_exclude_keys
from .dataloader import DataLoader, FixedSizeDataLoader
from .fixed_size_options import FixedSizeOptions
from .neighbor_loader import FixedSizeNeighborLoader
from .pyg_dataloader import FixedSizeStrategy, OverSizeStrategy
from .radius import define as _define_radius
from .stream_packing_sampler import StreamPackingSampler
from .substitutes import offer
from .types import PyGArgsParser, registerCustomArgParsers
from .utils import TrainingStepper, set_aggregation_dim_size

registerCustomArgParsers()
offer()
_define_radius()

_GONE = {
    "CustomFixedSizeDataLoader": "FixedSizeDataLoader(fixed_size_options=...)",
    "FixedBatchSampler": "StreamPackingSampler",
    "FixedSizeBatchSampler": "StreamPackingSampler",
    "create_fixed_batch_dataloader": "FixedSizeDataLoader(fixed_size_strategy=FixedSizeStrategy.StreamPack)",
    "Pad": "FixedSizeCollater, or torch_geometric.transforms.Pad",
}

__all__ = [
    "DataLoader",
    "FixedSizeClusterLoader",
    "FixedSizeCollater",
    "FixedSizeDataLoader",
    "FixedSizeNeighborLoader",
    "FixedSizeOptions",
    "FixedSizeStrategy",
    "OverSizeStrategy",
    "PyGArgsParser",
    "StreamPackingSampler",
    "TrainingStepper",
    "__version__",
    "make_exclude_keys",
    "set_aggregation_dim_size",
]


def __getattr__(name: str) -> NoReturn:
    if name in _GONE:
        raise ImportError(
            f"poptorch_geometric.{name} is of an SDK before 3.3; in 3.3 it is {_GONE[name]}", name=__name__
        )
    raise AttributeError(
        f"poptorch_geometric has no attribute {name!r}{_did_you_mean(name, __all__)}; it has {', '.join(__all__)}"
    )
