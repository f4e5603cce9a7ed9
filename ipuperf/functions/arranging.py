"""Elements moved, repeated, joined and cut, without an op where nothing changes.

The functions of :mod:`.shapes` always make their op, as PopXL's do. In contrast, ``reshaped``, ``permuted``,
``broadcast``, ``cut`` and ``joined`` give the operand itself when the result would be equal to it. Axes may be
negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ipuperf import ops as _k
from ipuperf.ir import BOOL, INT32, DType, Tensor

from .arithmetic import cast, equal, greater, isnan, less, logical_and, logical_not, logical_or, where
from .making import constant, make
from .selection import gather
from .shapes import concat, expand, reshape, slice, transpose


def axis_of(axis: int, rank: int) -> int:
    """``axis`` as a number that is not negative (0 for a tensor without axes)."""
    return axis % rank if rank else 0


# -- shapes and axes ---------------------------------------------------------------------------------------------------


def reshaped(t: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements in another shape; one -1 is computed."""
    target_shape = tuple(int(length) for length in shape)
    if -1 in target_shape:
        known_elements = math.prod(length for length in target_shape if length != -1)
        target_shape = tuple(t.spec.elements // known_elements if length == -1 else length for length in target_shape)
    return t if t.shape == target_shape else reshape(t, target_shape)


def permuted(t: Tensor, order: Sequence[int]) -> Tensor:
    """The axes in another order."""
    rank = len(t.shape)
    order = tuple(axis_of(int(axis), rank) for axis in order) if rank else ()
    return t if order == tuple(range(rank)) else transpose(t, order)


def swapped(t: Tensor, first: int = -2, second: int = -1) -> Tensor:
    """``t`` with two axes exchanged."""
    order = list(range(len(t.shape)))
    if order:
        order[first], order[second] = order[second], order[first]
    return permuted(t, order)


def moved(t: Tensor, sources: Sequence[int], places: Sequence[int]) -> Tensor:
    """The axes ``sources`` moved to ``places``, the other axes in order."""
    rank = len(t.shape)
    sources = [axis % rank for axis in sources]
    order = [axis for axis in range(rank) if axis not in sources]
    # In ascending order of places, so that each insertion leaves the earlier ones in place.
    for place, axis in sorted(zip([place % rank for place in places], sources, strict=True)):
        order.insert(place, axis)
    return permuted(t, order)


def broadcast(t: Tensor, shape: Sequence[int]) -> Tensor:
    """Broadcast to ``shape``."""
    return t if t.shape == tuple(shape) else expand(t, shape)


# -- parts -------------------------------------------------------------------------------------------------------------


def cut(t: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """Elements ``start:stop:step`` along ``axis``; bounds are not negative."""
    axis = axis_of(axis, len(t.shape))
    if start == 0 and stop >= t.shape[axis] and step == 1:
        return t
    return make(_k.Slice, t, axis=axis, start=start, stop=stop, step=step)


def row(t: Tensor, axis: int, index: int) -> Tensor:
    """One position of ``axis``, without that axis."""
    axis = axis_of(axis, len(t.shape))
    index = int(index) % t.shape[axis]
    return reshaped(cut(t, axis, index, index + 1), (*t.shape[:axis], *t.shape[axis + 1 :]))


def replaced(t: Tensor, part: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """``t`` with ``start:stop`` of ``axis`` replaced by ``part``."""
    length = t.shape[axis]
    head = [cut(t, axis, 0, start)] if start else []
    tail = [cut(t, axis, stop, length)] if stop < length else []
    return joined([*head, part, *tail], axis)


# -- joining and repeating ---------------------------------------------------------------------------------------------


def joined(ts: Sequence[Tensor], axis: int) -> Tensor:
    """The tensors one after another along ``axis``."""
    return ts[0] if len(ts) == 1 else concat(ts, axis)


def tiled(t: Tensor, repeats: Sequence[int]) -> Tensor:
    """The whole tensor ``repeats`` times along each axis; missing leading axes are added."""
    shape = (1,) * (len(repeats) - len(t.shape)) + t.shape
    # Each axis gets an axis of length 1 before it, which is broadcast to its repeats.
    repeated_shape = [length for pair in zip(repeats, shape, strict=True) for length in pair]
    blocks = broadcast(reshaped(t, [size for length in shape for size in (1, length)]), repeated_shape)
    return reshaped(blocks, [count * length for count, length in zip(repeats, shape, strict=True)])


def interleaved(t: Tensor, repeats: Mapping[int, int]) -> Tensor:
    # Here the axis to broadcast stands after each repeated axis; in :func:`tiled` it stands before.
    """Each element repeated along the given axes (not negative), as often as the mapping states."""
    single = [
        new_length
        for axis, length in enumerate(t.shape)
        for new_length in ((length, 1) if axis in repeats else (length,))
    ]
    repeated_shape = [
        new_length
        for axis, length in enumerate(t.shape)
        for new_length in ((length, repeats[axis]) if axis in repeats else (length,))
    ]
    shape = [length * repeats.get(axis, 1) for axis, length in enumerate(t.shape)]
    return reshaped(broadcast(reshaped(t, single), repeated_shape), shape)


def flipped(t: Tensor, axes: Sequence[int]) -> Tensor:
    """Reversed along ``axes``."""
    positive_axes = [axis_of(axis, len(t.shape)) for axis in axes]
    return (
        slice(t, [None] * len(positive_axes), [None] * len(positive_axes), [-1] * len(positive_axes), positive_axes)
        if positive_axes
        else t
    )


def rolled(t: Tensor, shift: int, axis: int) -> Tensor:
    """Shifted in a circle along ``axis``."""
    length = t.shape[axis]
    split_position = (-shift) % length if length else 0
    return (
        joined([cut(t, axis, split_position, length), cut(t, axis, 0, split_position)], axis) if split_position else t
    )


def shuffled(t: Tensor, factor: int) -> Tensor:
    """Pixels from channels: ``(*, C r r, H, W)`` as ``(*, C, H r, W r)`` with the factor ``r``."""
    *leading, channels, height, width = t.shape
    rank = len(leading)
    parts = reshaped(t, (*leading, channels // factor**2, factor, factor, height, width))
    # One factor moves behind the height, the other behind the width.
    ordered = permuted(parts, [*range(rank + 1), rank + 3, rank + 1, rank + 4, rank + 2])
    return reshaped(ordered, (*leading, channels // factor**2, height * factor, width * factor))


# -- padding -----------------------------------------------------------------------------------------------------------

Amounts = Mapping[int, tuple[int, int]]
"""Number of elements to add before and after, by axis."""


def padded(t: Tensor, amounts: Amounts, number: float = 0.0) -> Tensor:
    """``t`` with ``number`` around it."""
    axes = list(amounts)
    shape = tuple(length + sum(amounts.get(axis, (0, 0))) for axis, length in enumerate(t.shape))
    starts = [amounts[axis][0] for axis in axes]
    stops = [amounts[axis][0] + t.shape[axis] for axis in axes]
    # The gradient of a slice writes into zeros, which is what padding does.
    result = make(_k.SliceGrad, t, shape=shape, axis=axes, start=starts, stop=stops, step=[1] * len(axes))
    if number == 0:
        return result
    # The zeros are a slice gradient's, so the number is added on top: zeros inside, the number around.
    border = np.pad(np.zeros(t.shape, t.dtype.numpy), _pairs(t, amounts), constant_values=number)
    return result + constant(border, t.dtype)


def _pairs(t: Tensor, amounts: Amounts) -> list[tuple[int, int]]:
    return [amounts.get(axis, (0, 0)) for axis in range(len(t.shape))]


def bordered(t: Tensor, amounts: Amounts, mode: str) -> Tensor:
    """``t`` with a border of its own elements: ``circular``, ``replicate`` or ``reflect``."""
    border = {"circular": _circular, "replicate": _replicate, "reflect": _reflect}[mode]
    # Each axis takes its border from what earlier axes have added, which fills the corners.
    for axis, (before_count, after_count) in amounts.items():
        head = [border(t, axis, before_count, True)] if before_count else []
        tail = [border(t, axis, after_count, False)] if after_count else []
        t = joined([*head, t, *tail], axis)
    return t


def _circular(t: Tensor, axis: int, amount: int, at_start: bool) -> Tensor:
    length = t.shape[axis]
    return cut(t, axis, length - amount, length) if at_start else cut(t, axis, 0, amount)


def _replicate(t: Tensor, axis: int, amount: int, at_start: bool) -> Tensor:
    edge = 0 if at_start else t.shape[axis] - 1
    return broadcast(cut(t, axis, edge, edge + 1), (*t.shape[:axis], amount, *t.shape[axis + 1 :]))


def _reflect(t: Tensor, axis: int, amount: int, at_start: bool) -> Tensor:
    # The edge itself is not repeated, so the border begins one element further in.
    edge = 1 if at_start else t.shape[axis] - 1 - amount
    return flipped(cut(t, axis, edge, edge + amount), [axis])


# -- by position -------------------------------------------------------------------------------------------------------


def picked(t: Tensor, positions: Tensor, axis: int) -> Tensor:
    """One element for each of ``positions`` (int32), which replaces the index on ``axis``; other indices stay.

    It is a gather from the flattened tensor at linear positions.
    """
    strides = [math.prod(t.shape[other_axis + 1 :]) for other_axis in range(len(t.shape))]
    grid = np.indices(positions.shape, np.int64)
    places = sum(
        (grid[other_axis] * strides[other_axis] for other_axis in range(len(strides)) if other_axis != axis),
        np.zeros(positions.shape, np.int64),
    )
    # Linear positions turn a gather along one axis into one of single elements.
    linear = positions if strides[axis] == 1 else positions * strides[axis]
    if places.any():
        linear = linear + constant(places, INT32)
    return reshaped(gather(reshaped(t, (-1,)), reshaped(linear, (-1,))), positions.shape)


def triangle(t: Tensor, lower: bool, diagonal: int = 0) -> Tensor:
    """The lower or upper triangle of the last two axes, zeros elsewhere."""
    ones = np.ones(t.shape[-2:], bool)
    mask = np.tril(ones, diagonal) if lower else np.triu(ones, diagonal)
    return where(constant(mask, BOOL), t, 0)


def one_hot(t: Tensor, classes: int, dtype: DType) -> Tensor:
    """1 on a new last axis at the class of each element, else 0."""
    return cast(equal(reshaped(t, (*t.shape, 1)), constant(np.arange(classes), t.dtype)), dtype)


def running_sum(t: Tensor, axis: int) -> Tensor:
    """Running sum along ``axis``.

    Whole numbers wrap as those of their type do: each element is added to the one 1 before it, then to the one 2, 4 ...
    before it.
    """
    if t.dtype.is_floating_point:
        return make(_k.CumSum, t, axis=axis)
    distance, length = 1, t.shape[axis]
    # The distance doubles, so that the number of steps is logarithmic.
    while distance < length:
        t = t + padded(cut(t, axis, 0, length - distance), {axis: (distance, 0)})
        distance *= 2
    return t


def running_product(t: Tensor, axis: int) -> Tensor:
    """Running product: each element times the one 1 before it, then 2, 4 ... before it.

    These are the steps of a parallel scan, as many as the length has binary digits. Zeros have exact gradients.
    """
    distance, length = 1, t.shape[axis]
    while distance < length:
        earlier = padded(cut(t, axis, 0, length - distance), {axis: (distance, 0)}, 1.0)
        t, distance = t * earlier, 2 * distance
    return t


def running_extreme(t: Tensor, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The largest or smallest element so far and its position (int32, the last of equals).

    It takes the steps of :func:`running_product`.
    """
    distance, length = 1, t.shape[axis]
    line = np.arange(length).reshape(length, *[1] * (len(t.shape) - axis - 1))
    position = constant(np.broadcast_to(line, t.shape), INT32)
    while distance < length:
        earlier, earlier_position = (_shifted(values, axis, distance) for values in (t, position))
        better = greater(earlier, t) if largest else less(earlier, t)
        if t.dtype.is_floating_point:  # NaN is neither greater nor less, but stays the extreme
            better = logical_or(better, logical_and(isnan(earlier), logical_not(isnan(t))))
        t, position = where(better, earlier, t), where(better, earlier_position, position)
        distance *= 2
    return t, position


def _shifted(t: Tensor, axis: int, distance: int) -> Tensor:
    """Each element replaced by the one ``distance`` before it; the first ones stay."""
    return joined([cut(t, axis, 0, distance), cut(t, axis, 0, t.shape[axis] - distance)], axis)
