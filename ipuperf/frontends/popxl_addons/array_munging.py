"""Host arrays as the replicas of tensor and data parallelism want them: sharded, repeated, put together again.

Pure NumPy. Functions that make several pieces put them on a new leading axis. Source: popxl-addons:
popxl_addons/array_munging.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np

from ipuperf.frontends.popxl.arguments import checked_arguments


@checked_arguments
def handle_negative_axis(x: np.ndarray, axis: int) -> int:
    """``axis`` counted from the front; IndexError when ``x`` does not have it."""
    if not -x.ndim <= axis < x.ndim:
        raise IndexError(f"axis {axis} is out of range for an array of shape {x.shape}")
    return axis % x.ndim


@checked_arguments
def split2D(x: np.ndarray, n_1: int, n_2: int, axis_1: int, axis_2: int) -> list[list[np.ndarray]]:
    """``n_1`` lists, one for each piece along ``axis_1``, with its ``n_2`` pieces along ``axis_2``."""
    return [np.split(piece, n_2, axis_2) for piece in np.split(x, n_1, axis_1)]


@checked_arguments
def shard(x: np.ndarray, n: int, axis: int) -> np.ndarray:
    """``(n, *shard)``: equal pieces along ``axis``; ValueError when it does not divide."""
    return np.stack(np.split(x, n, handle_negative_axis(x, axis)))


@checked_arguments
def shard2D(x: np.ndarray, n_1: int, n_2: int, axis_1: int, axis_2: int) -> np.ndarray:
    """``(n_1 * n_2, *shard)``: the pieces of :func:`split2D`, the first axis outermost."""
    return np.stack([piece for row in split2D(x, n_1, n_2, axis_1, axis_2) for piece in row])


@checked_arguments
def unshard_arrays(xs: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Pieces ``(1, *shard)`` put together along ``axis`` of the shard, without the leading axis.

    Raises:
        ValueError: pieces with different numbers of axes.
    """
    if len({x.ndim for x in xs}) > 1:
        raise ValueError(f"unshard_arrays: all arrays must be of the same rank; they have {[x.ndim for x in xs]} axes")
    return np.concatenate([x.squeeze(0) for x in xs], axis=axis)


@checked_arguments
def unshard(x: np.ndarray, axis: int) -> np.ndarray:
    """The inverse of :func:`shard`; ``axis`` is that of the whole array."""
    return unshard_arrays(np.split(x, len(x)), axis)


@checked_arguments
def unshard2D(x: np.ndarray, n_1: int, n_2: int, axis_1: int, axis_2: int) -> np.ndarray:
    """The inverse of :func:`shard2D`; AssertionError for another number of pieces."""
    if len(x) != n_1 * n_2:
        raise AssertionError(f"unshard2D: {len(x)} pieces, {n_1} x {n_2} are needed")
    return np.concatenate([unshard(row, axis_2) for row in np.split(x, n_1)], axis=axis_1)


@checked_arguments
def repeat(x: np.ndarray, n: int, axis: int = 0) -> np.ndarray:
    """``x`` ``n`` times along a new axis, which is number ``axis`` of the result."""
    return np.repeat(np.expand_dims(x, axis), n, axis)


@checked_arguments
def repeat_axis(x: np.ndarray, n: int, axis: int = 0) -> np.ndarray:
    """``x`` ``n`` times one after the other along an axis it has."""
    return np.concatenate([x] * n, axis=handle_negative_axis(x, axis))


@checked_arguments
def repeat_shard(
    x: np.ndarray,
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
    shards = shard(x, n_shards, shard_axis)
    return repeat_axis(shards, n_repeats, 0) if sharded_tensor == "contiguous" else np.repeat(shards, n_repeats, 0)


@checked_arguments
def tensor_parallel_input(
    input_data: np.ndarray,
    tp: int,
    rf: int,
    repeat_fn: Callable[[np.ndarray, int], np.ndarray] | None = None,
) -> np.ndarray:
    """Micro-batches for all replicas: ``(transfers, rf, *sample)`` from ``(transfers * rf / tp, *sample)``; without
    those of the first two axes that have length 1, as ``Session.run`` takes its inputs.

    Args:
        tp: neighbouring replicas that get the same micro-batch.
        rf: replicas.
        repeat_fn: ``(micro-batches (n, 1, *sample), i) -> micro-batches`` for number ``i`` of the neighbours, instead
            of the same for all.

    Raises:
        ValueError: ``tp`` does not divide ``rf``, or the micro-batches do not divide.
    """
    if rf % tp or len(input_data) % (rf // tp):
        raise ValueError(f"tensor_parallel_input: {len(input_data)} micro-batches for tp={tp} and rf={rf} replicas")
    single = np.expand_dims(input_data, 1)
    copies = [single if repeat_fn is None else repeat_fn(single.copy(), i) for i in range(tp)]
    return squeeze_safe(np.concatenate(copies, 1).reshape(-1, rf, *input_data.shape[1:]), (0, 1))


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


@checked_arguments
def pad_axis(x: np.ndarray, n: int, axis: int, value: float = 0) -> np.ndarray:
    """``x`` with ``value`` appended until ``axis`` has length ``n``; AssertionError when it is longer."""
    axis = handle_negative_axis(x, axis)
    missing = n - x.shape[axis]
    if missing < 0:
        raise AssertionError(f"pad_axis: axis {axis} of shape {x.shape} is longer than {n}")
    return np.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)], constant_values=value)


@checked_arguments
def squeeze_safe(x: np.ndarray, axis: int | Iterable[int] | None = None) -> np.ndarray:
    """``x`` without those of the axes (default: all) that have length 1; longer ones stay."""
    chosen = range(x.ndim) if axis is None else ([axis] if isinstance(axis, int) else axis)
    axes = [handle_negative_axis(x, a) for a in chosen]
    return np.squeeze(x, tuple(a for a in axes if x.shape[a] == 1))


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
