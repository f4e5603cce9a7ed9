"""Host arrays as the replicas of tensor and data parallelism want them: sharded, repeated, put together again.

Pure NumPy. Functions that make several pieces put them on a new leading axis. Source: popxl-addons:
popxl_addons/array_munging.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np


def handle_negative_axis(t: np.ndarray, axis: int) -> int:
    """``axis`` counted from the front; IndexError when ``t`` does not have it."""
    if not -t.ndim <= axis < t.ndim:
        raise IndexError(f"axis {axis} is out of range for an array of shape {t.shape}")
    return axis % t.ndim


def split2D(data: np.ndarray, n_1: int, n_2: int, axis_1: int, axis_2: int) -> list[np.ndarray]:
    """``n_1`` pieces along ``axis_1``, each in ``n_2`` pieces along ``axis_2``: ``n_1 * n_2``, the first outermost."""
    return [inner for outer in np.split(data, n_1, axis_1) for inner in np.split(outer, n_2, axis_2)]


def shard(data: np.ndarray, n: int, axis: int) -> np.ndarray:
    """``(n, *shard)``: equal pieces along ``axis``; ValueError when it does not divide."""
    return np.stack(np.split(data, n, handle_negative_axis(data, axis)))


def shard2D(data: np.ndarray, n_1: int, n_2: int, axis_1: int, axis_2: int) -> np.ndarray:
    """``(n_1 * n_2, *shard)``: the pieces of :func:`split2D`."""
    return np.stack(split2D(data, n_1, n_2, axis_1, axis_2))


def unshard_arrays(arrays: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The pieces put together along ``axis``."""
    return np.concatenate(list(arrays), axis=axis)


def unshard(data: np.ndarray, axis: int) -> np.ndarray:
    """The inverse of :func:`shard`; ``axis`` is that of the whole array."""
    return unshard_arrays(list(data), axis)


def unshard2D(data: np.ndarray, n_1: int, n_2: int, axis_1: int, axis_2: int) -> np.ndarray:
    """The inverse of :func:`shard2D`."""
    rows = data.reshape(n_1, n_2, *data.shape[1:])
    return unshard_arrays([unshard(row, axis_2) for row in rows], axis_1)


def repeat(data: np.ndarray, n: int, axis: int = 0) -> np.ndarray:
    """``data`` ``n`` times along a new axis, which is number ``axis`` of the result."""
    return np.repeat(np.expand_dims(data, axis), n, axis)


def repeat_axis(data: np.ndarray, n: int, axis: int = 0) -> np.ndarray:
    """``data`` ``n`` times one after the other along an axis it has."""
    return np.concatenate([data] * n, axis=handle_negative_axis(data, axis))


def repeat_shard(
    data: np.ndarray,
    n_repeats: int,
    n_shards: int,
    shard_axis: int,
    sharded_tensor: Literal["contiguous", "strided"] = "contiguous",
) -> np.ndarray:
    """``(n_repeats * n_shards, *shard)``: neighbours hold different shards (``contiguous``) or the same (``strided``).

    Raises:
        ValueError: another ``sharded_tensor``.
    """
    if sharded_tensor not in ("contiguous", "strided"):
        raise ValueError(f"repeat_shard: sharded_tensor={sharded_tensor!r}; allowed: 'contiguous', 'strided'")
    shards = shard(data, n_shards, shard_axis)
    return repeat_axis(shards, n_repeats, 0) if sharded_tensor == "contiguous" else np.repeat(shards, n_repeats, 0)


def tensor_parallel_input(
    input_data: np.ndarray,
    tp: int,
    rf: int,
    repeat_fn: Callable[[np.ndarray, int], np.ndarray] | None = None,
) -> np.ndarray:
    """Micro-batches for all replicas: ``(transfers, rf, *sample)`` from ``(transfers * rf / tp, *sample)``.

    Args:
        tp: neighbouring replicas that get the same micro-batch.
        rf: replicas.
        repeat_fn: ``(micro-batches, tp) -> (micro-batches, tp, ...)`` instead of equal copies.

    Raises:
        ValueError: ``tp`` does not divide ``rf``, or the micro-batches do not divide.
    """
    if rf % tp or len(input_data) % (rf // tp):
        raise ValueError(f"tensor_parallel_input: {len(input_data)} micro-batches for tp={tp} and rf={rf} replicas")
    copies = repeat(input_data, tp, 1) if repeat_fn is None else repeat_fn(input_data, tp)
    return copies.reshape(-1, rf, *copies.shape[2:])


def tensor_parallel_output(
    output_data: np.ndarray,
    num_host_transfers: int,
    tp: int,
    rf: int,
    shape: Sequence[int],
    tp_identical: bool = True,
) -> np.ndarray:
    """What the replicas stored, one sample after the other: ``(num_host_transfers * rf / tp, *shape)``.

    Args:
        shape: of one sample, that of the output stream.
        tp_identical: the first of each ``tp`` replicas speaks for the others; the only way there is.

    Raises:
        ValueError: ``tp_identical`` is False.
    """
    if not tp_identical:
        raise ValueError("tensor_parallel_output: tp_identical=False; allowed: True")
    return output_data.reshape(-1, tp, *shape)[: num_host_transfers * rf // tp, 0]


def pad_axis(data: np.ndarray, n: int, axis: int, value: float = 0) -> np.ndarray:
    """``data`` with ``value`` appended until ``axis`` has length ``n``; ValueError when it is longer."""
    axis = handle_negative_axis(data, axis)
    missing = n - data.shape[axis]
    if missing < 0:
        raise ValueError(f"pad_axis: axis {axis} of shape {data.shape} is longer than {n}")
    return np.pad(data, [(0, missing if i == axis else 0) for i in range(data.ndim)], constant_values=value)


def squeeze_safe(data: np.ndarray, axis: int | Iterable[int] | None = None) -> np.ndarray:
    """``data`` without those of the axes (default: all) that have length 1; longer ones stay."""
    given = range(data.ndim) if axis is None else ([axis] if isinstance(axis, int) else axis)
    axes = [handle_negative_axis(data, a) for a in given]
    return np.squeeze(data, tuple(a for a in axes if data.shape[a] == 1))


__all__ = [
    "handle_negative_axis",
    "pad_axis",
    "repeat",
    "repeat_axis",
    "repeat_shard",
    "shard",
    "shard2D",
    "split2D",
    "squeeze_safe",
    "tensor_parallel_input",
    "tensor_parallel_output",
    "unshard",
    "unshard2D",
    "unshard_arrays",
]
