"""Where layers are made and called: under which strategy, in which ``PipelineStage``, on which line of the user.

Upstream: ``keras: keras/ipu/extensions/pipeline_stage_assignment.py``. All layers of a functional or sequential model
are called by the line of ``fit``, so their ops stand where the layer was made. What a ``call`` of the user's own makes
stands on its lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from functools import wraps
from typing import Any

import tensorflow as tf
from tf_keras.src.engine import base_layer, node

from ipuperf.ir.location import user_location

from ..importer.origins import on_line


def is_ipu(strategy: Any) -> bool:
    """Whether ``strategy`` is an ``IPUStrategy`` that Keras models run on."""
    from ..facade.strategies import IPUStrategyV1

    return isinstance(strategy, IPUStrategyV1)


def replicas(shards: int) -> int:
    """How many replicas of a model over ``shards`` IPUs the configured device holds.

    Raises:
        ValueError: the device has fewer IPUs than the model needs.
    """
    from ..facade import machine

    ipus = machine.get_num_of_ipus_in_device("/device:IPU:0")
    # IPUs are given to a replica in powers of two, as in programs/devices.py.
    needed = 2 ** math.ceil(math.log2(shards))
    if shards > ipus:
        raise ValueError(
            f"Current device has {ipus} IPUs attached, however the current model requires a multiple of {needed} "
            "IPUs. Set `auto_select_ipus` of the IPUConfig, or assign fewer pipeline stages or a `device_mapping`."
        )
    return max(1, ipus // needed)


def supporting_loss_scaling(supports: Callable[[], bool]) -> Callable[[], bool]:
    """Keras' question whether the strategy can scale losses, which an ``IPUStrategy`` answers itself."""

    @wraps(supports)
    def strategy_supports_loss_scaling() -> bool:
        strategy: Any = tf.distribute.get_strategy()
        return bool(strategy.supports_loss_scaling) if is_ipu(strategy) else supports()

    return strategy_supports_loss_scaling


_CALLER: ContextVar[str] = ContextVar("keras_caller", default="")
_LINE = "_ipu_line"


@contextmanager
def program() -> Iterator[None]:
    """Keras builds a program of a model in the block, for the user's line that is running."""
    token = _CALLER.set(user_location())
    try:
        yield
    finally:
        _CALLER.reset(token)


def note(layer: Any) -> None:
    """Note the user's line that makes ``layer``."""
    vars(layer).setdefault(_LINE, user_location())


def placing(call: Any) -> Any:
    """``Layer.__call__`` whose ops stand on the line of the layer."""

    @wraps(call)
    def call_on_line(self: Any, *args: Any, **kwargs: Any) -> Any:
        caller, line = _CALLER.get(), vars(self).get(_LINE)
        # Outside of a program of Keras the user's own line is on the stack.
        if not caller or not line:
            return call(self, *args, **kwargs)
        with on_line(caller, line):
            return call(self, *args, **kwargs)

    return call_on_line


_STAGE: ContextVar[int | None] = ContextVar("keras_pipeline_stage", default=None)
_PLACE = "_ipu_pipeline_stage"


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
        if not is_ipu(tf.distribute.get_strategy()):
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
    stage = getattr(call, _PLACE, None)
    return getattr(call.layer, _PLACE, None) if stage is None else stage


def marking(initialise: Any) -> Any:
    """``initialise`` of a Keras class (``Node``, ``Layer``) that also notes the stage of the block around it, and the
    user's line."""

    def initialise_and_mark(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        if is_ipu(tf.distribute.get_strategy()):
            note(self)
        if (stage := _STAGE.get()) is not None and _PLACE not in vars(self):
            vars(self)[_PLACE] = stage

    # inspect.signature follows this to the arguments of the constructor itself.
    initialise_and_mark.__wrapped__ = initialise  # type: ignore[attr-defined]
    return initialise_and_mark


MARKED = (node.Node, base_layer.Layer)
"""The Keras classes whose objects note the stage they are made in (:mod:`.attaching`)."""
