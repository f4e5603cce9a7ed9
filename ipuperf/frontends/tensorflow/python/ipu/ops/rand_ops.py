"""Random numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ....effects import EFFECTS


@checked_kinds()
def dropout(
    x: Any,
    rate: float = 0.5,
    noise_shape: Any = None,
    seed: Any = None,
    ref: Any = None,
    name: str | None = None,
    **kwargs: Any,
) -> tf.Tensor:
    """Set elements to zero at ``rate``, and scale the others by ``1 / (1 - rate)``.

    Args:
        noise_shape: shape of the mask; axes of length 1 share theirs.
        seed: no effect: masks follow from the program's seed.
        ref: no effect: a mask is the same in the backward pass anyway.

    Raises:
        ValueError: a rate outside of ``[0, 1)``. TypeError: unknown arguments.
    """
    if kwargs:
        raise TypeError(f"dropout: unknown arguments {', '.join(kwargs)}")
    EFFECTS.given("ipu.rand_ops.dropout(seed)", seed)
    EFFECTS.given("ipu.rand_ops.dropout(ref)", ref)
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be in the range [0, 1), it is {rate}")
    return tf.nn.dropout(x, rate, noise_shape=noise_shape, name=name)


__all__ = ["dropout"]
