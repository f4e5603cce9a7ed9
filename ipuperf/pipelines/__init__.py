"""Pipelines: stage graphs and a schedule become one program; see ``docs/design.md``."""

from .build import Pipeline, build_pipeline
from .model import (
    LOSS_SCALE,
    Activation,
    AutomaticLossScale,
    CombinedRule,
    Data,
    GradientOutput,
    HostInput,
    HostIo,
    MovingAverage,
    Offload,
    PipelineError,
    Seed,
    Source,
    StageGraph,
    StageOutput,
    Training,
    UpdateRule,
    VariableOutput,
)
from .recomputation import RECOMPUTATIONS, recomputing
from .revision import BuildRequest, revising

__all__ = [
    "LOSS_SCALE",
    "RECOMPUTATIONS",
    "Activation",
    "AutomaticLossScale",
    "BuildRequest",
    "CombinedRule",
    "Data",
    "GradientOutput",
    "HostInput",
    "HostIo",
    "MovingAverage",
    "Offload",
    "Pipeline",
    "PipelineError",
    "Seed",
    "Source",
    "StageGraph",
    "StageOutput",
    "Training",
    "UpdateRule",
    "VariableOutput",
    "build_pipeline",
    "recomputing",
    "revising",
]
