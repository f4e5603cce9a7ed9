"""``poptorch.options``: the options of a model and its execution strategies."""

from __future__ import annotations

from .effects import EFFECTS, POPART_EFFECTS, Effect
from .from_file import ConfigFileError
from .groups import _DistributedOptions, _JitOptions, _PrecisionOptions, _TrainingOptions
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
from .tensor_locations import TensorLocation, TensorLocationSettings, _TensorLocationOptions

__all__ = [
    "EFFECTS",
    "POPART_EFFECTS",
    "BlockPlace",
    "ConfigFileError",
    "Effect",
    "ExecutionStrategy",
    "Options",
    "ParallelPhasedExecution",
    "Phase",
    "PhasedExecution",
    "PipelinedExecution",
    "Resolver",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocation",
    "TensorLocationSettings",
    "_DistributedOptions",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
]
