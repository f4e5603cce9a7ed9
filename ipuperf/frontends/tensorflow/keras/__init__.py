"""Keras on the simulated IPU: ``tf.keras.ipu`` and ``tensorflow.python.ipu.keras``.

Models of Keras (``tf_keras``, Keras of TensorFlow 2) that are made inside ``IPUStrategy.scope()`` run on the IPU: see
:mod:`.attaching`.
"""

# ruff: noqa: F401  # what is imported is the package's content
from typing import NoReturn as _NoReturn

from ipuperf.frontends.popart.offering import offered as _offered

from ..surface import absent as _absent
from ..surface import make_modules as _make_modules
from ..surface import table as _table
from . import layers, optimizers
from .attaching import attach, detach
from .optimizers import ALSOptimizer, ALSOptimizerGradientAccumulationWrapper
from .scopes import PipelineStage
from .staging import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)

_make_modules(
    __name__,
    _table("""
extensions: Methods that models have inside an ``IPUStrategy``.
    keras.methods: FunctionalExtension ModelExtension SequentialExtension
losses: Losses.
    keras.layers: CTCLoss
"""),
)

__all__ = _offered(__name__, "extensions layers losses optimizers")

_OLDER = {
    "Model": "tf.keras.Model within IPUStrategy.scope()",
    "Sequential": "tf.keras.Sequential within IPUStrategy.scope()",
    "PipelineModel": "tf.keras.Model and its set_pipelining_options",
    "PipelineSequential": "tf.keras.Sequential and its set_pipeline_stage_assignment",
    "SequentialPipelineModel": "tf.keras.Sequential and its set_pipeline_stage_assignment",
}
"""Models that older releases of the vendor had, and what stands for each since."""


def __getattr__(name: str) -> _NoReturn:
    """An error that says what to use instead of an older name."""
    raise _absent(__name__, name, _OLDER.get(name, ""))
