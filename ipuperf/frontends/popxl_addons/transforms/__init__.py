"""Graph transforms of addons."""

# ruff: noqa: F401  # what is imported is the package's content
from ipuperf.frontends.popxl.package import offer as _offer

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

__all__, __getattr__ = _offer(__name__)
