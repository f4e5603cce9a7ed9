"""``tensorflow.python.ipu.pipelining_ops``: see :mod:`.ops.pipelining_ops`."""

# ruff: noqa: F401  # what is imported is the module's content
from ipuperf.frontends.popart.offering import offered as _offered

from .ops.pipelining_ops import (
    OptimizerFunctionOutput,
    PipelineSchedule,
    PipelineStageOptions,
    RecomputationMode,
    pipeline,
    recomputation_checkpoint,
)

__all__ = _offered(__name__)
