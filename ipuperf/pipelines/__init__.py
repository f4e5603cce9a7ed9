"""Pipelines: stage graphs and a schedule become one program; see ``docs/design.md``."""

from .build import Pipeline, build_pipeline
from .model import (
    Activation,
    CombinedRule,
    Data,
    HostInput,
    HostIo,
    Offload,
    PipelineError,
    Seed,
    Source,
    StageGraph,
    StageOutput,
    Training,
    UpdateRule,
)
from .recomputation import RECOMPUTATIONS, recomputing
from .revision import BuildRequest, revising

__all__ = [
    "RECOMPUTATIONS",
    "Activation",
    "BuildRequest",
    "CombinedRule",
    "Data",
    "HostInput",
    "HostIo",
    "Offload",
    "Pipeline",
    "PipelineError",
    "Seed",
    "Source",
    "StageGraph",
    "StageOutput",
    "Training",
    "UpdateRule",
    "build_pipeline",
    "recomputing",
    "revising",
]
