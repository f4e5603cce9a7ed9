"""``poptorch.options``: the options of a model and its execution strategies."""

# ruff: noqa: F401  # what is imported is the package's content
from ipuperf.frontends.popart.offering import offered as _offered

from .effects import EFFECTS, POPART_EFFECTS
from .from_file import ConfigFileError
from .groups import (
    TensorLocation,
    TensorLocationSettings,
    _DistributedOptions,
    _JitOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)
from .popart import _PopartOptions
from .root import Options
from .strategies import (
    BlockPlace,
    ExecutionStrategy,
    ParallelPhasedExecution,
    Phase,
    PhasedExecution,
    PipelinedExecution,
    Resolver,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)

__all__ = _offered(__name__)
