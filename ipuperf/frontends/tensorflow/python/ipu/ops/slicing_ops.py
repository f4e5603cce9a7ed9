"""Slices of sequences: rows copied from one tensor into another, so many from here to there, where the numbers may be
computed by the program.

Each row of the result selects one of the source; PopLibs' ``SequenceSlice`` copies slice by slice. Slices that overlap
where they are written have no defined result. Upstream: ``tensorflow: python/ipu/ops/slicing_ops.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds


@checked_kinds()
def sequence_slice(
    dst: Any, src: Any, num_elems: Any, src_offsets: Any, dst_offsets: Any, zero_unused: bool
) -> tf.Tensor:
    """``dst`` with ``num_elems[i]`` rows of ``src``, from row ``src_offsets[i]`` on, written from ``dst_offsets[i]``
    on, for each ``i``.

    Args:
        dst, src: at least two axes; equal but for the number of rows.
        num_elems, src_offsets, dst_offsets: whole numbers, one of each for a slice.
        zero_unused: rows that no slice writes become 0; otherwise they stay.

    Raises:
        ValueError: the shapes do not fit.
    """
    dst, src = tf.convert_to_tensor(dst), tf.convert_to_tensor(src)
    counts, sources, targets = _numbers(num_elems=num_elems, src_offsets=src_offsets, dst_offsets=dst_offsets)
    _check_rows(src, dst)
    return _written(tf.zeros_like(dst) if zero_unused else dst, src, counts, sources, targets)


@checked_kinds()
def sequence_slice_unpack(src: Any, num_elems: Any, src_offsets: Any, total_elements: int) -> tf.Tensor:
    """The slices of ``src`` one after the other, ``total_elements`` rows; see :func:`sequence_slice`."""
    src = tf.convert_to_tensor(src)
    counts, sources = _numbers(num_elems=num_elems, src_offsets=src_offsets)
    empty = tf.zeros([int(total_elements), *src.shape[1:]], src.dtype)
    _check_rows(src, empty)
    return _written(empty, src, counts, sources, tf.cumsum(counts, exclusive=True))


@checked_kinds()
def sequence_slice_pack(dst: Any, src: Any, num_elems: Any, dst_offsets: Any, zero_unused: bool) -> tf.Tensor:
    """``dst`` with slices that stand one after the other in ``src``; see :func:`sequence_slice`."""
    counts, targets = _numbers(num_elems=num_elems, dst_offsets=dst_offsets)
    return sequence_slice(dst, src, counts, tf.cumsum(counts, exclusive=True), targets, zero_unused)


def _numbers(**given: Any) -> list[tf.Tensor]:
    found = [tf.cast(tf.convert_to_tensor(value), tf.int32) for value in given.values()]
    first = found[0].shape
    if first.rank != 1 or not first[0] or any(one.shape != first for one in found):
        raise ValueError(f"{', '.join(given)} must have matching, nonzero shapes of rank 1.")
    return found


def _check_rows(src: tf.Tensor, dst: tf.Tensor) -> None:
    if src.shape.rank < 2:
        raise ValueError(f"src has shape {src.shape}; it must be of at least rank 2.")
    if src.shape[1:] != dst.shape[1:]:
        raise ValueError("src and dst inner shapes must match.")


def _written(dst: tf.Tensor, src: tf.Tensor, counts: tf.Tensor, sources: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    rows = tf.range(dst.shape[0])[:, tf.newaxis]
    inside = tf.logical_and(rows >= targets, rows < targets + counts)
    taken = tf.reduce_sum(tf.where(inside, rows - targets + sources, 0), axis=1)
    written = tf.reshape(tf.reduce_any(inside, axis=1), [-1, *[1] * (dst.shape.rank - 1)])
    return tf.where(written, tf.gather(src, taken), dst)


__all__ = ["sequence_slice", "sequence_slice_pack", "sequence_slice_unpack"]
