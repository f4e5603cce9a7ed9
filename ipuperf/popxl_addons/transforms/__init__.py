"""Graph transforms of addons."""

from __future__ import annotations

from typing import Any

from ipuperf.popxl.errors import unsupported
from ipuperf.popxl.package import functions_win

from .autodiff import autodiff, autodiff_with_accumulation
from .available_memory_proportion import (
    set_available_memory_proportion_by_ipu,
    set_graph_available_memory_proportion_by_ipu,
)
from .batch_serialisation import (
    RemoteHandle,
    batch_serial_buffer,
    batch_serialise,
    batch_serialise_fwd_and_grad,
)
from .pipelining import pipelined_execution
from .recomputation import recompute_graph
from .repeat_graph import repeat_graph
from .use_fc_pass import disable_fc_pass, enable_fc_pass

__all__ = [
    "RemoteHandle",
    "autodiff",
    "autodiff_with_accumulation",
    "batch_serial_buffer",
    "batch_serialise",
    "batch_serialise_fwd_and_grad",
    "disable_fc_pass",
    "enable_fc_pass",
    "pipelined_execution",
    "recompute_graph",
    "repeat_graph",
    "set_available_memory_proportion_by_ipu",
    "set_graph_available_memory_proportion_by_ipu",
]

functions_win(__name__)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise unsupported(f"popxl_addons.transforms.{name}", __all__)
