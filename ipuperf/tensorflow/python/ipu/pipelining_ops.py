"""``tensorflow.python.ipu.pipelining_ops``: see :mod:`.ops.pipelining_ops`."""

from .ops.pipelining_ops import (
    OptimizerFunctionOutput,
    PipelineSchedule,
    PipelineStageOptions,
    RecomputationMode,
    pipeline,
    recomputation_checkpoint,
)

__all__ = [
    "OptimizerFunctionOutput",
    "PipelineSchedule",
    "PipelineStageOptions",
    "RecomputationMode",
    "pipeline",
    "recomputation_checkpoint",
]
