"""Elements moved, repeated, joined and cut, without an op where nothing changes.

In difference to :mod:`.shapes`, whose functions always make their op (as PopXL's do), ``reshaped``, ``permuted``,
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
from .naming import named
from .selection import gather
from .shapes import concat, expand, reshape, slice, transpose


def axis_of(axis: int, rank: int) -> int:
    """``axis`` as a number that is not negative (an axis of a tensor without axes is 0)."""
    return axis % rank if rank else 0


# -- shapes and axes ---------------------------------------------------------------------------------------------------


def reshaped(t: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements in another shape; one -1 is worked out."""
    wanted = tuple(int(n) for n in shape)
    if -1 in wanted:
        known = math.prod(n for n in wanted if n != -1)
        wanted = tuple(t.spec.elements // known if n == -1 else n for n in wanted)
    return t if t.shape == wanted else reshape(t, wanted)


@named(aten="permute")
def permuted(t: Tensor, order: Sequence[int]) -> Tensor:
    """The axes in another order."""
    rank = len(t.shape)
    order = tuple(axis_of(int(a), rank) for a in order) if rank else ()
    return t if order == tuple(range(rank)) else transpose(t, order)


@named(aten="swapaxes; transpose")
def swapped(t: Tensor, first: int = -2, second: int = -1) -> Tensor:
    """Two axes exchanged."""
    order = list(range(len(t.shape)))
    if order:
        order[first], order[second] = order[second], order[first]
    return permuted(t, order)


def moved(t: Tensor, sources: Sequence[int], places: Sequence[int]) -> Tensor:
    """The axes ``sources`` moved to ``places``, the others in order."""
    rank = len(t.shape)
    sources = [a % rank for a in sources]
    order = [a for a in range(rank) if a not in sources]
    for place, axis in sorted(zip([p % rank for p in places], sources, strict=True)):
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


@named(aten="select")
def row(t: Tensor, axis: int, index: int) -> Tensor:
    """One position of ``axis``, which goes."""
    axis = axis_of(axis, len(t.shape))
    index = int(index) % t.shape[axis]
    return reshaped(cut(t, axis, index, index + 1), (*t.shape[:axis], *t.shape[axis + 1 :]))


def replaced(t: Tensor, part: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """``t`` with ``start:stop`` of ``axis`` replaced by ``part``."""
    length = t.shape[axis]
    before = [cut(t, axis, 0, start)] if start else []
    after = [cut(t, axis, stop, length)] if stop < length else []
    return joined([*before, part, *after], axis)


# -- joining and repeating ---------------------------------------------------------------------------------------------


def joined(ts: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors behind each other along ``axis``."""
    return ts[0] if len(ts) == 1 else concat(ts, axis)


@named(aten="repeat")
def tiled(t: Tensor, repeats: Sequence[int]) -> Tensor:
    """The whole tensor ``repeats`` times along each axis; missing leading axes are added."""
    shape = (1,) * (len(repeats) - len(t.shape)) + t.shape
    wide = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    blocks = broadcast(reshaped(t, [n for length in shape for n in (1, length)]), wide)
    return reshaped(blocks, [count * length for count, length in zip(repeats, shape, strict=True)])


def interleaved(t: Tensor, repeats: Mapping[int, int]) -> Tensor:
    """Each element along the axes given (by number, not negative) as often as stated there."""
    single = [m for a, n in enumerate(t.shape) for m in ((n, 1) if a in repeats else (n,))]
    wide = [m for a, n in enumerate(t.shape) for m in ((n, repeats[a]) if a in repeats else (n,))]
    shape = [n * repeats.get(a, 1) for a, n in enumerate(t.shape)]
    return reshaped(broadcast(reshaped(t, single), wide), shape)


@named(aten="flip")
def flipped(t: Tensor, axes: Sequence[int]) -> Tensor:
    """Reversed along ``axes``."""
    found = [axis_of(a, len(t.shape)) for a in axes]
    return slice(t, [None] * len(found), [None] * len(found), [-1] * len(found), found) if found else t


def rolled(t: Tensor, shift: int, axis: int) -> Tensor:
    """Shifted in a circle along ``axis``."""
    length = t.shape[axis]
    at = (-shift) % length if length else 0
    return joined([cut(t, axis, at, length), cut(t, axis, 0, at)], axis) if at else t


@named(aten="pixel_shuffle")
def shuffled(t: Tensor, factor: int) -> Tensor:
    """``(*, C r r, H, W)`` as ``(*, C, H r, W r)`` with the factor ``r``: pixels from channels."""
    *lead, channels, height, width = t.shape
    n = len(lead)
    parts = reshaped(t, (*lead, channels // factor**2, factor, factor, height, width))
    ordered = permuted(parts, [*range(n + 1), n + 3, n + 1, n + 4, n + 2])
    return reshaped(ordered, (*lead, channels // factor**2, height * factor, width * factor))


# -- padding -----------------------------------------------------------------------------------------------------------

Amounts = Mapping[int, tuple[int, int]]
"""Elements added before and after, by axis."""


def padded(t: Tensor, amounts: Amounts, number: float = 0.0) -> Tensor:
    """``t`` with ``number`` around it."""
    axes = list(amounts)
    shape = tuple(n + sum(amounts.get(axis, (0, 0))) for axis, n in enumerate(t.shape))
    starts = [amounts[a][0] for a in axes]
    stops = [amounts[a][0] + t.shape[a] for a in axes]
    result = make(_k.SliceGrad, t, shape=shape, axis=axes, start=starts, stop=stops, step=[1] * len(axes))
    if number == 0:
        return result
    border = np.pad(np.zeros(t.shape, t.dtype.numpy), _pairs(t, amounts), constant_values=number)
    return result + constant(border, t.dtype)


def _pairs(t: Tensor, amounts: Amounts) -> list[tuple[int, int]]:
    return [amounts.get(axis, (0, 0)) for axis in range(len(t.shape))]


def bordered(t: Tensor, amounts: Amounts, mode: str) -> Tensor:
    """``t`` with elements of its own around it: ``circular``, ``replicate`` or ``reflect``."""
    border = {"circular": _circular, "replicate": _replicate, "reflect": _reflect}[mode]
    for axis, (before, after) in amounts.items():
        first = [border(t, axis, before, True)] if before else []
        last = [border(t, axis, after, False)] if after else []
        t = joined([*first, t, *last], axis)
    return t


def _circular(t: Tensor, axis: int, amount: int, first: bool) -> Tensor:
    length = t.shape[axis]
    return cut(t, axis, length - amount, length) if first else cut(t, axis, 0, amount)


def _replicate(t: Tensor, axis: int, amount: int, first: bool) -> Tensor:
    at = 0 if first else t.shape[axis] - 1
    return broadcast(cut(t, axis, at, at + 1), (*t.shape[:axis], amount, *t.shape[axis + 1 :]))


def _reflect(t: Tensor, axis: int, amount: int, first: bool) -> Tensor:
    at = 1 if first else t.shape[axis] - 1 - amount
    return flipped(cut(t, axis, at, at + amount), [axis])


# -- by position -------------------------------------------------------------------------------------------------------


def picked(t: Tensor, positions: Tensor, axis: int) -> Tensor:
    """One element for each of ``positions`` (int32), from the same place but for ``axis``: a gather from the flattened
    tensor at linear positions."""
    strides = [math.prod(t.shape[i + 1 :]) for i in range(len(t.shape))]
    grid = np.indices(positions.shape, np.int64)
    places = sum((grid[i] * strides[i] for i in range(len(strides)) if i != axis), np.zeros(positions.shape, np.int64))
    linear = positions if strides[axis] == 1 else positions * strides[axis]
    if places.any():
        linear = linear + constant(places, INT32)
    return reshaped(gather(reshaped(t, (-1,)), reshaped(linear, (-1,))), positions.shape)


def triangle(t: Tensor, lower: bool, diagonal: int = 0) -> Tensor:
    """The lower or upper triangle of the last two axes, zeros elsewhere."""
    ones = np.ones(t.shape[-2:], bool)
    kept = np.tril(ones, diagonal) if lower else np.triu(ones, diagonal)
    return where(constant(kept, BOOL), t, 0)


def one_hot(t: Tensor, classes: int, dtype: DType) -> Tensor:
    """1 on a new last axis at the class of each element, else 0."""
    return cast(equal(reshaped(t, (*t.shape, 1)), constant(np.arange(classes), t.dtype)), dtype)


def running_sum(t: Tensor, axis: int) -> Tensor:
    """Running sum; of whole numbers, which wrap as those of their type do, each element plus the one 1 before it, then
    2, 4 ... before it."""
    if t.dtype.is_floating_point:
        return make(_k.CumSum, t, axis=axis)
    distance, length = 1, t.shape[axis]
    while distance < length:
        t = t + padded(cut(t, axis, 0, length - distance), {axis: (distance, 0)})
        distance *= 2
    return t


def running_product(t: Tensor, axis: int) -> Tensor:
    """Running product: each element times the one 1 before it, then 2, 4 ... before it (the steps of a parallel scan,
    as many as the length has binary digits). Zeros have exact gradients."""
    distance, length = 1, t.shape[axis]
    while distance < length:
        earlier = padded(cut(t, axis, 0, length - distance), {axis: (distance, 0)}, 1.0)
        t, distance = t * earlier, 2 * distance
    return t


def running_extreme(t: Tensor, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The largest or smallest element so far and its position (int32, the last of equals), by the steps of
    :func:`running_product`."""
    distance, length = 1, t.shape[axis]
    line = np.arange(length).reshape(length, *[1] * (len(t.shape) - axis - 1))
    position = constant(np.broadcast_to(line, t.shape), INT32)
    while distance < length:
        before, place = (_shifted(values, axis, distance) for values in (t, position))
        better = greater(before, t) if largest else less(before, t)
        if t.dtype.is_floating_point:  # NaN, which is neither, stays the extreme
            better = logical_or(better, logical_and(isnan(before), logical_not(isnan(t))))
        t, position = where(better, before, t), where(better, place, position)
        distance *= 2
    return t, position


def _shifted(t: Tensor, axis: int, distance: int) -> Tensor:
    """Each element the one ``distance`` before it, the first ones themselves."""
    return joined([cut(t, axis, 0, distance), cut(t, axis, 0, t.shape[axis] - distance)], axis)
