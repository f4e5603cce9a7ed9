"""Histograms."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds

_FLOATS = (tf.float16, tf.float32)


@checked_kinds()
def fixed_width_bins(inputs: Any, n_bins: int) -> tf.Tensor:
    """``n_bins`` evenly spaced levels from the smallest to the largest of ``inputs``."""
    low, high = tf.reduce_min(inputs), tf.reduce_max(inputs)
    steps = tf.constant([i / max(1, n_bins - 1) for i in range(n_bins)], low.dtype)
    return low + (high - low) * steps


def histogram_normalize(hist: Any) -> tf.Tensor:
    """A histogram over its sum."""
    hist = tf.convert_to_tensor(hist)
    return hist / tf.reduce_sum(hist, axis=0)


@checked_kinds()
def histogram(inputs: Any, levels: Any, absolute_of_input: bool = False) -> tf.Tensor:
    """How many of ``inputs`` lie between two levels: for n levels n + 1 numbers, float32; a level belongs above it.

    Raises:
        ValueError: other types than floats, or tensors of another rank than 1.
    """
    inputs, levels = tf.convert_to_tensor(inputs), tf.convert_to_tensor(levels)
    if inputs.dtype not in _FLOATS or levels.dtype not in _FLOATS:
        raise ValueError("Only float16 and float32 types are supported for histogram computation.")
    if inputs.shape.rank != 1 or levels.shape.rank != 1:
        raise ValueError("histogram expects rank-1 tensor inputs.")
    values = tf.abs(inputs) if absolute_of_input else inputs
    above = tf.cast(values[:, tf.newaxis] >= tf.cast(levels, values.dtype)[tf.newaxis, :], tf.float32)
    at_least = tf.reduce_sum(above, axis=0)
    everything = tf.fill([1], float(inputs.shape[0]))
    return tf.concat([everything, at_least], 0) - tf.concat([at_least, tf.zeros([1])], 0)


@checked_kinds()
def histogram_update(hist: Any, inputs: Any, levels: Any, absolute_of_input: bool = False) -> tf.Tensor:
    """A histogram with ``inputs`` added to it.

    Raises:
        ValueError: as :func:`histogram`; ``hist`` is not float32 with one element more than ``levels``.
    """
    hist, levels = tf.convert_to_tensor(hist), tf.convert_to_tensor(levels)
    if hist.dtype != tf.float32:
        raise ValueError("hist must be of float32 type")
    if hist.shape.rank != 1 or levels.shape.rank != 1:
        raise ValueError("histogram_update expects rank-1 tensor inputs.")
    if hist.shape[0] != levels.shape[0] + 1:
        raise ValueError("hist and levels shapes are incompatible. For n levels, hist must have n+1 elements.")
    return hist + histogram(inputs, levels, absolute_of_input)


__all__ = ["fixed_width_bins", "histogram", "histogram_normalize", "histogram_update"]
