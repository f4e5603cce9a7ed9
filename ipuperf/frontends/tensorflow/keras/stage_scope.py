"""``PipelineStage``: layers made and called in its block belong to a pipeline stage.

Upstream: ``keras: keras/ipu/extensions/pipeline_stage_assignment.py``.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any

import tensorflow as tf
from tf_keras.src.engine import base_layer, node

from . import strategies
from .lines import note

_STAGE: ContextVar[int | None] = ContextVar("keras_pipeline_stage", default=None)
_ATTRIBUTE = "_ipu_pipeline_stage"


class PipelineStage:
    """Layers called in the block run in stage number ``stage``; so do layers made in it, wherever they are called.

    The stage of a call is stronger than that of its layer.

    Raises:
        ValueError: ``stage`` is negative. RuntimeError: outside ``IPUStrategy.scope()``, or in another such block.
    """

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._token: Token[int | None] | None = None

    def __enter__(self) -> PipelineStage:
        if self._stage < 0:
            raise ValueError(f"{self._stage} is not a valid pipeline stage.")
        if not strategies.is_ipu(tf.distribute.get_strategy()):
            raise RuntimeError("PipelineStage may only be used from within an IPUStrategy context.")
        if _STAGE.get() is not None:
            raise RuntimeError("Pipeline stages must not be nested.")
        self._token = _STAGE.set(self._stage)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _STAGE.reset(self._token)


def stage_of(call: Any) -> int | None:
    """The stage that a scope gave the call (a Keras ``Node``), or the layer that is called."""
    stage = getattr(call, _ATTRIBUTE, None)
    return getattr(call.layer, _ATTRIBUTE, None) if stage is None else stage


def marking(initialise: Any) -> Any:
    """``initialise`` of a Keras class (``Node``, ``Layer``) that also notes the stage of the block around it, and the
    user's line."""

    def initialise_and_mark(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        if strategies.is_ipu(tf.distribute.get_strategy()):
            note(self)
        if (stage := _STAGE.get()) is not None and _ATTRIBUTE not in vars(self):
            vars(self)[_ATTRIBUTE] = stage

    initialise_and_mark.__wrapped__ = initialise  # type: ignore[attr-defined]
    return initialise_and_mark


MARKED = (node.Node, base_layer.Layer)
"""The Keras classes whose objects note the stage they are made in (:mod:`.attaching`)."""
