"""Room ``poptorch``: PopTorch's API for simulated IPUs.

A PyTorch model is exported, partitioned into stages by its blocks, lowered and run; the numbers come from NumPy, the
cycles from the simulation. This module offers upstream's names; see ``ops`` for the ops that are not supported.
"""

# ruff: noqa: F401  # what is imported is the package's content
import sys as _sys
from importlib.util import find_spec as _find_spec

from ipuperf.base.requirements import pip_install as _pip_install
from ipuperf.frontends.popart.offering import offered as _offered

if _find_spec("torch") is None:
    raise ModuleNotFoundError(f"PopTorch programs need PyTorch: {_pip_install('torch')}", name="torch")

from . import _impl as _impl
from . import enums, native_names, options, poptorch_core, profiling
from .blocks import BeginBlock, Block, BlockFunction, isRunningOnIpu, module_repr, removeBlocks
from .custom_ops import custom_op
from .data import AsynchronousDataAccessor, DataLoader
from .device import ipuHardwareIsAvailable, ipuHardwareVersion
from .enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from .errors import Error, PartitionError, RecoverableError, UnrecoverableError, UnsupportedError
from .executor.host_calls import CPU
from .executor.offline import compile_offline, simulate
from .executor.poplar import PoplarExecutor, inferenceModel, load, trainingModel
from .executor.program import registerPostCompileHook, registerPreCompileHook
from .export.structure import ICustomArgParser, registerCustomArgParser
from .log import logger, setLogLevel
from .multi_conv import MultiConv
from .ops import (
    Attribute,
    NameScope,
    cond,
    ctc_beam_search_decoder,
    dynamic_slice,
    dynamic_update,
    for_loop,
    fps,
    identity_loss,
    ipu_print_tensor,
    nearest,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from .optimisers import classes as optim
from .options import (
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    TensorLocationSettings,
)

__version__ = "3.3.0+ipuperf"

native_names.offer()
_sys.modules[f"{__name__}.optim"] = optim  # upstream's name, as in `from poptorch.optim import SGD`

__all__ = _offered(__name__, "enums optim options poptorch_core profiling")
