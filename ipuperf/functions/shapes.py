"""Shapes and views, concatenation and cutting, slices and indexing, new tensors.

Results of functions whose names end with an underscore share the storage of their operands.
"""

from __future__ import annotations

import math
from builtins import slice as PySlice
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipuperf import ops as _k
from ipuperf.base.near_names import instead_of
from ipuperf.ir import DType, ShapeError, Tensor, TensorSpec

from .making import make, make_all, many

INIT_TYPES = {"zero": "zero", "undef": "undefined", "undefined": "undefined"}


def _filled(t: Tensor, shape: Any) -> tuple[int, ...]:
    """``shape`` with -1 replaced by the missing length.

    Raises:
        ValueError: several -1, another negative number, or a different number of elements.
    """
    target = many(shape) or ()
    if target.count(-1) > 1:
        raise ValueError(f"reshape: {t.id!r} {t.shape} to {target}: only one length may be -1")
    if any(length < -1 for length in target):
        raise ValueError(f"Invalid shape value in reshape: {t.id!r} {t.shape} to {target}; the only negative one is -1")
    if -1 in target:
        known_elements = math.prod(length for length in target if length != -1)
        # If a known length is 0, the missing one could be any number.
        if known_elements == 0 or t.spec.elements % known_elements:
            raise ShapeError(
                f"Invalid shape value in reshape: {t.id!r} {t.shape} to {target}: {t.spec.elements} elements are no "
                f"multiple of {known_elements}"
            )
        target = tuple(t.spec.elements // known_elements if length == -1 else length for length in target)
    if math.prod(target) != t.spec.elements:
        raise ShapeError(
            f"reshape of {t.id!r} {t.shape} to {target}: {t.spec.elements} elements do not fill {math.prod(target)}"
        )
    return target


def reshape(t: Tensor, shape: int | Sequence[int]) -> Tensor:
    """``t`` in another shape; one -1 is computed."""
    return make(_k.Reshape, t, name=f"{t.name}_reshaped", shape=_filled(t, shape))


def reshape_(t: Tensor, shape: int | Sequence[int]) -> Tensor:
    """Like :func:`reshape`, sharing storage."""
    return make(_k.ReshapeInplace, t, name=f"{t.name}_reshaped", shape=_filled(t, shape))


def flatten(t: Tensor) -> Tensor:
    """``t`` with one axis."""
    return reshape(t, (-1,))


def flatten_(t: Tensor) -> Tensor:
    """Like :func:`flatten`, sharing storage."""
    return reshape_(t, (-1,))


def squeeze(t: Tensor, axes: int | Sequence[int] | None = None) -> Tensor:
    """``t`` without axes of length 1 (all, or those in ``axes``)."""
    if axes is None:
        lengths = [length for length in t.shape if length != 1]
    else:
        dropped = {axis + len(t.shape) if axis < 0 else axis for axis in many(axes) or ()}
        if len(dropped) < len(many(axes) or ()):
            raise ValueError(f"squeeze of {t.id!r} {t.shape}: axes {axes} contain duplicates")
        wrong = [axis for axis in dropped if not 0 <= axis < len(t.shape) or t.shape[axis] != 1]
        if wrong:
            raise ValueError(f"squeeze of {t.id!r} {t.shape}: axes {wrong} do not have length 1")
        lengths = [length for index, length in enumerate(t.shape) if index not in dropped]
    return reshape(t, lengths)


def transpose(t: Tensor, permutation: Sequence[int] | None = None) -> Tensor:
    """Axes in the order ``permutation`` (default: reversed)."""
    return make(_k.Transpose, t, name=f"{t.name}_T", permutation=_order(t, permutation))


def transpose_(t: Tensor, permutation: Sequence[int] | None = None) -> Tensor:
    """Like :func:`transpose`, sharing storage."""
    return make(_k.TransposeInplace, t, name=f"{t.name}_T", permutation=_order(t, permutation))


def _order(t: Tensor, permutation: Sequence[int] | None) -> tuple[int, ...]:
    order = tuple(range(len(t.shape)))[::-1] if permutation is None else tuple(permutation)
    wrapped = tuple(axis + len(t.shape) if axis < 0 else axis for axis in order)
    if sorted(wrapped) != list(range(len(t.shape))):
        raise ShapeError(
            f"transpose of {t.id!r} {t.shape}: permutation {order} does not name each axis once. Values in permutation "
            f"must be less than the number of axes, here of rank {len(t.shape)}"
        )
    return wrapped


def slice(
    t: Tensor,
    start: int | Sequence[int | None] | None = None,
    stop: int | Sequence[int | None] | None = None,
    step: int | Sequence[int | None] | None = None,
    axis: int | Sequence[int] | None = None,
) -> Tensor:
    """``start:stop:step`` along ``axis`` (numbers, or one per axis; without ``axis`` the first axes).

    Without start, stop and step the result is ``t`` itself; ``[None]`` (as in ``t[:]``) gives a copy.
    """
    if start is None and stop is None and step is None:
        return t
    return make(_k.Slice, t, **_slice_attributes(start, stop, step, axis))


def slice_(
    t: Tensor,
    start: int | Sequence[int | None] | None = None,
    stop: int | Sequence[int | None] | None = None,
    step: int | Sequence[int | None] | None = None,
    axis: int | Sequence[int] | None = None,
) -> Tensor:
    """Like :func:`slice`, sharing storage."""
    if start is None and stop is None and step is None:
        return t
    return make(_k.SliceInplace, t, **_slice_attributes(start, stop, step, axis))


def split(t: Tensor, splits: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """``t`` cut along ``axis``: into ``splits`` equal parts, or into parts of the sizes given.

    Raises:
        ValueError: ``splits`` does not divide the axis; IrError: the sizes do not add up to it.
    """
    sizes = _equal_parts(t, splits, axis) if isinstance(splits, int) else many(splits) or ()
    return make_all(_k.Split, [t], [f"{t.name}_split_{index}" for index in range(len(sizes))], axis=axis, sizes=sizes)


def _equal_parts(t: Tensor, count: int, axis: int) -> tuple[int, ...]:
    rank = len(t.shape)
    if not -rank <= axis < rank:
        raise IndexError(f"split of {t.id!r} {t.shape}: axis {axis} is out of range for rank {rank}")
    length = t.shape[axis]
    if count < 1 or length % count:
        raise ValueError(f"split of {t.id!r} {t.shape} along axis {axis}: {count} does not divide {length} elements")
    return (length // count,) * count


def subsample(t: Tensor, strides: int | Sequence[int]) -> Tensor:
    """Every ``strides[i]``-th element along axis ``i``, beginning with the first.

    Axes without a stride are taken whole, so one number is the stride of the first axis.
    """
    return make(_k.Subsample, t, strides=many(strides))


def expand(t: Tensor, shape: Sequence[int]) -> Tensor:
    """``t`` broadcast to ``shape``."""
    return make(_k.Expand, t, shape=tuple(shape))


def _slice_attributes(start: Any, stop: Any, step: Any, axis: Any) -> dict[str, Any]:
    arguments = {"start": start, "stop": stop, "step": step, "axis": axis}
    lists = {name: list(entries) for name, entries in arguments.items() if isinstance(entries, (list, tuple))}
    count = max((len(entries) for entries in lists.values()), default=1)
    for name, value in arguments.items():
        if name in lists:
            if len(lists[name]) != count:
                raise ValueError(f"slice: {name} has {len(lists[name])} entries, others have {count}")
        elif name == "axis" and value is None:
            lists[name] = list(range(count))
        else:
            lists[name] = [value] * count
    lists["step"] = [1 if entry is None else entry for entry in lists["step"]]
    return lists


def concat(ts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors one after another along ``axis``; tensors of different types raise a ``MixedTypesError``."""
    return make(_k.Concat, *ts, axis=axis)


def concat_(ts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Like :func:`concat`, sharing storage with the operands."""
    return make(_k.ConcatInplace, *ts, axis=axis)


def expand_dims(t: Tensor, axis: int = -1) -> Tensor:
    """``t`` with a new axis of length 1."""
    # A negative axis counts from the end of the result, which has one axis more.
    position = axis + len(t.shape) + 1 if axis < 0 else axis
    return reshape(t, (*t.shape[:position], 1, *t.shape[position:]))


def stack(ts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors one after another along a new axis."""
    return concat([expand_dims(tensor, axis) for tensor in ts], axis)


def unstack(t: Tensor, axis: int = 0) -> list[Tensor]:
    """The slices of ``t`` along ``axis``, without that axis."""
    return [squeeze(part, [axis]) for part in split(t, t.shape[axis], axis)]


def init(
    shape: Sequence[int],
    dtype: DType,
    name: str | None = None,
    init_type: str = "zero",
    meta_shape: Sequence[int] | None = None,
) -> Tensor:
    """A new tensor: ``init_type`` ``"zero"`` or ``"undef"``.

    Raises:
        ValueError: another ``init_type``.
    """
    if init_type not in INIT_TYPES:
        raise ValueError(f"init_type {init_type!r}{instead_of(init_type, INIT_TYPES)}")
    return make(
        _k.Init,
        name=name or "init_out",
        shape=many(shape),
        dtype=dtype,
        init=INIT_TYPES[init_type],
        meta_shape=tuple(meta_shape or ()),
    )


def undefined(spec: TensorSpec, name: str = "undefined") -> Tensor:
    """A new tensor of ``spec`` with no particular contents, to be written to."""
    return init(spec.shape, spec.dtype, name, "undef", spec.meta_shape)


# -- indexing ----------------------------------------------------------------------------------------------------------

_EVERYTHING = PySlice(None)


def _expanded(t: Tensor, key: Any) -> list[Any]:
    """One entry per axis of ``t``, and None for each new axis."""
    parts = list(key) if isinstance(key, tuple) else [key]
    ellipses = [index for index, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError(f"index of {t.id!r}: only one `...` is allowed")
    # Without an ellipsis the missing axes come last, as in NumPy.
    position = ellipses[0] if ellipses else len(parts)
    index_count = len(parts) - len(ellipses) - len([None for part in parts if part is None])
    missing = len(t.shape) - index_count
    if missing < 0:
        raise IndexError(f"index of {t.id!r}: {index_count} indices for {len(t.shape)} axes")
    return parts[:position] + [_EVERYTHING] * missing + parts[position + 1 :]


def getitem(t: Tensor, key: Any) -> Tensor:
    """``t[key]``, where None is a new axis. The result is always a copy, also where every index is a full slice.

    Raises:
        IndexError: an integer outside of its axis, or too many indices.
        TypeError: another kind of index.
    """
    starts: list[Any] = []
    stops: list[Any] = []
    steps: list[Any] = []
    axes: list[int] = []
    parts = _expanded(t, key)
    for axis, part in enumerate(part for part in parts if part is not None):
        size = t.shape[axis]
        if isinstance(part, PySlice):
            if part == _EVERYTHING:
                continue
            start, stop, step = part.start, part.stop, part.step
        # A bool is an int in Python, but NumPy takes it for a mask.
        elif isinstance(part, (int, np.integer)) and not isinstance(part, (bool, np.bool_)):
            if not -size <= part < size:
                raise IndexError(f"index {part} of {t.id!r}: axis {axis} has {size} elements")
            # From -1 on, start + 1 would be 0 and the slice empty, so positions are made positive.
            start = int(part) % size
            stop, step = start + 1, 1
        else:
            raise TypeError(
                f"index of {t.id!r}: {type(part).__name__} is not allowed; allowed: int, slice, ...; to index by a "
                "tensor use gather"
            )
        starts.append(start)
        stops.append(stop)
        steps.append(1 if step is None else step)
        axes.append(axis)
    result = make(_k.Slice, t, axis=tuple(axes), start=tuple(starts), stop=tuple(stops), step=tuple(steps))
    # Slices alone keep every axis.
    if {*map(type, parts)} == {PySlice}:
        return result
    lengths = iter(result.shape)
    shape = [1 if part is None else next(lengths) for part in parts]
    remaining = [length for length, part in zip(shape, parts, strict=True) if part is None or isinstance(part, PySlice)]
    return result if remaining == list(result.shape) else reshape(result, remaining)
