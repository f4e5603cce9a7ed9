"""Slices of sequences, histograms, order of operations, functions whose calls share code, printed tensors.

A slice copies rows from one tensor into another; the program may compute how many, from where and to where. Each row of
the result selects one of the source, while PopLibs' ``SequenceSlice`` copies slice by slice. Slices that overlap where
they are written have no defined result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf.functions import make
from ipuperf.ops import PrintTensor

from ..effects import EFFECTS, checked_kinds
from ..importer import Importer, MadeBy, Value, marker, tensor_of


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


def _numbers(**arguments: Any) -> list[tf.Tensor]:
    vectors = [tf.cast(tf.convert_to_tensor(value), tf.int32) for value in arguments.values()]
    shape = vectors[0].shape
    if shape.rank != 1 or not shape[0] or any(vector.shape != shape for vector in vectors):
        raise ValueError(f"{', '.join(arguments)} must have matching, nonzero shapes of rank 1.")
    return vectors


def _check_rows(src: tf.Tensor, dst: tf.Tensor) -> None:
    if src.shape.rank < 2:
        raise ValueError(f"src has shape {src.shape}; it must be of at least rank 2.")
    if src.shape[1:] != dst.shape[1:]:
        raise ValueError("src and dst inner shapes must match.")


def _written(dst: tf.Tensor, src: tf.Tensor, counts: tf.Tensor, sources: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    rows = tf.range(dst.shape[0])[:, tf.newaxis]
    inside = tf.logical_and(rows >= targets, rows < targets + counts)
    source_rows = tf.reduce_sum(tf.where(inside, rows - targets + sources, 0), axis=1)
    written = tf.reshape(tf.reduce_any(inside, axis=1), [-1, *[1] * (dst.shape.rank - 1)])
    return tf.where(written, tf.gather(src, source_rows), dst)


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


@checked_kinds()
def barrier(tensors: Any, insert_barrier_for_gradient: bool = False, name: str | None = None) -> Any:
    """``tensors``, of which none is used before all are there."""
    EFFECTS.given("ipu.control_flow_ops.barrier(insert_barrier_for_gradient)", insert_barrier_for_gradient)
    flat = [tf.convert_to_tensor(t) for t in tf.nest.flatten(tensors)]
    with tf.control_dependencies(flat):
        results = [tf.identity(t, name=name) for t in flat]
    return tf.nest.pack_sequence_as(tensors, results)


@checked_kinds()
def outlined_function(
    func: Callable[..., Any] | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Any:
    """A function of tensors (or a decorator) whose calls share code on the IPU.

    Equal stretches of a program share their code anyway (``IPUConfig.optimizations.enable_graph_outlining``), those of
    such calls among them.

    Raises (when called):
        ValueError: the function returns no tensor.
    """
    EFFECTS.given("ipu.functional_ops.outlined_function(unique_sharding)", unique_sharding)
    EFFECTS.given("ipu.functional_ops.outlined_function(keep_input_layouts)", keep_input_layouts)

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with tf.name_scope(name or "function"):
                results = function(*(tf.nest.map_structure(tf.convert_to_tensor, a) for a in args))
            if not any(tf.is_tensor(leaf) for leaf in tf.nest.flatten(results)):
                raise ValueError("outlined_function: the function has to return at least one tensor")
            return results

        return call

    return decorated if func is None else decorated(func)


@checked_kinds()
def codelet_expression_op(vertex_expression: Callable[..., Any], *args: Any) -> Any:
    """``vertex_expression(*args)``, element by element.

    Raises:
        TypeError: it is not callable.
    """
    if not callable(vertex_expression):
        raise TypeError(f"codelet_expression_op: {vertex_expression!r} is not a function")
    return vertex_expression(*args)


@checked_kinds()
def print_tensor(input: Any, name: str = "") -> tf.Operation:
    """Print a tensor while the program runs."""
    tensor = tf.convert_to_tensor(input)
    if not isinstance(ops.get_default_graph(), FuncGraph) or tf.executing_eagerly():
        return tf.print(name, tensor)

    def build(importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        make(PrintTensor, tensor_of(inputs[0], importer.place), name="printed", title=name or tensor.op.name)
        return []

    marker("print_tensor", MadeBy(build), [tensor], [])
    return ops.get_default_graph().get_operations()[-1]


@checked_kinds()
def remap(x: Any, name: str | None = None) -> tf.Tensor:
    """``x``: where it lies is the mapping's to say."""
    return tf.identity(x, name=name)


@checked_kinds()
def remap_deduce(x: Any, name: str | None = None) -> tf.Tensor:
    """``x``: where it lies is the mapping's to say."""
    return tf.identity(x, name=name)
