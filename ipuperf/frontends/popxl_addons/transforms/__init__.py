"""Graph transforms of addons."""

from ipuperf.frontends.popxl.package import refuse as _refuse

from .autodiff import autodiff, autodiff_with_accumulation
from .available_memory_proportion import (
    set_available_memory_proportion_by_ipu,
    set_graph_available_memory_proportion_by_ipu,
)
from .batch_handles import RemoteHandle
from .batch_serialisation import batch_serial_buffer, batch_serialise, batch_serialise_fwd_and_grad
from .pipelining import pipelined_execution
from .recomputation import recompute_graph
from .repeat_graph import repeat_graph
from .use_fc_pass import disable_fc_pass, enable_fc_pass

__all__ = ["RemoteHandle", "autodiff", "autodiff_with_accumulation", "batch_serial_buffer", "batch_serialise"]
__all__ += ["batch_serialise_fwd_and_grad", "disable_fc_pass", "enable_fc_pass", "pipelined_execution"]
__all__ += ["recompute_graph", "repeat_graph", "set_available_memory_proportion_by_ipu"]
__all__ += ["set_graph_available_memory_proportion_by_ipu"]
__getattr__ = _refuse(__name__, __all__)
