"""What Keras asks about the strategy and the configured IPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow as tf


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
