"""Pipelines: stage graphs and a schedule become one program; see ``docs/design.md``."""

from .build import Pipeline, build_pipeline
from .model import (
    Activation,
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

__all__ = [
    "Activation",
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
]
