"""Shape ops and views, concatenation, slices, ``init``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ipuperf import ops as _k

from ..arguments import whole_arguments
from ..dtypes import dtype as _dtype
from ..handle import Tensor
from .operands import emit, shape_of

INIT_TYPES = {"zero": "zero", "undef": "undefined", "undefined": "undefined"}


def _filled(t: Tensor, shape: Any) -> tuple[int, ...]:
    """``shape`` with -1 worked out.

    Raises:
        ValueError: several -1, another negative number, or a different number of elements.
    """
    wanted = shape_of(shape)
    if any(n < -1 for n in wanted) or wanted.count(-1) > 1:
        raise ValueError(f"reshape of {t.id!r} to {wanted}: at most one -1 is allowed, and no other negative number")
    if -1 in wanted:
        rest = math.prod(n for n in wanted if n != -1)
        if rest == 0 or t.nelms % rest:
            raise ValueError(f"reshape of {t.id!r} {t.shape} to {wanted}: {t.nelms} elements are no multiple of {rest}")
        wanted = tuple(t.nelms // rest if n == -1 else n for n in wanted)
    if math.prod(wanted) != t.nelms:
        raise ValueError(
            f"reshape of {t.id!r} {t.shape} to {wanted}: {t.nelms} elements do not fill {math.prod(wanted)}"
        )
    return wanted


@whole_arguments
def reshape(t: Tensor, shape: int | Sequence[int]) -> Tensor:
    """``t`` in another shape; one -1 is worked out."""
    return emit(_k.Reshape, [t], f"{t.name}_reshaped", shape=_filled(t, shape))


@whole_arguments
def reshape_(t: Tensor, shape: int | Sequence[int]) -> Tensor:
    """As :func:`reshape`, sharing storage."""
    return emit(_k.ReshapeInplace, [t], f"{t.name}_reshaped", shape=_filled(t, shape))


def flatten(t: Tensor) -> Tensor:
    """``t`` with one axis."""
    return reshape(t, (-1,))


def flatten_(t: Tensor) -> Tensor:
    """As :func:`flatten`, sharing storage."""
    return reshape_(t, (-1,))


@whole_arguments
def squeeze(t: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """``t`` without axes of length 1 (all, or those in ``axes``)."""
    if axes is None:
        kept = [n for n in t.shape if n != 1]
    else:
        drop = {a + t.rank if a < 0 else a for a in axes}
        wrong = [a for a in drop if not 0 <= a < t.rank or t.shape[a] != 1]
        if wrong:
            raise ValueError(f"squeeze of {t.id!r} {t.shape}: axes {wrong} do not have length 1")
        kept = [n for i, n in enumerate(t.shape) if i not in drop]
    return reshape(t, kept)


@whole_arguments
def transpose(t: Tensor, permutation: Sequence[int] | None = None) -> Tensor:
    """Axes in the order ``permutation`` (default: reversed)."""
    return emit(_k.Transpose, [t], f"{t.name}_T", permutation=_order(t, permutation))


@whole_arguments
def transpose_(t: Tensor, permutation: Sequence[int] | None = None) -> Tensor:
    """As :func:`transpose`, sharing storage."""
    return emit(_k.TransposeInplace, [t], f"{t.name}_T", permutation=_order(t, permutation))


def _order(t: Tensor, permutation: Sequence[int] | None) -> tuple[int, ...]:
    order = tuple(range(t.rank))[::-1] if permutation is None else tuple(permutation)
    wrapped = tuple(a + t.rank if a < 0 else a for a in order)
    if sorted(wrapped) != list(range(t.rank)):
        raise ValueError(f"transpose of {t.id!r} {t.shape}: permutation {order} does not name each axis once")
    return wrapped


@whole_arguments
def slice(
    t: Tensor,
    start: int | Sequence[int | None] | None = None,
    stop: int | Sequence[int | None] | None = None,
    step: int | Sequence[int | None] | None = None,
    axis: int | Sequence[int] | None = None,
) -> Tensor:
    """``start:stop:step`` along ``axis`` (numbers, or one per axis; without ``axis`` the first axes).

    Without start, stop and step it is ``t`` itself; ``[None]`` (as in ``t[:]``) gives a copy.
    """
    if start is None and stop is None and step is None:
        return t
    return emit(_k.Slice, [t], "slice_out", **_slice_attributes(start, stop, step, axis))


@whole_arguments
def slice_(
    t: Tensor,
    start: int | Sequence[int | None] | None = None,
    stop: int | Sequence[int | None] | None = None,
    step: int | Sequence[int | None] | None = None,
    axis: int | Sequence[int] | None = None,
) -> Tensor:
    """As :func:`slice`, sharing storage."""
    if start is None and stop is None and step is None:
        return t
    return emit(_k.SliceInplace, [t], "slice_out", **_slice_attributes(start, stop, step, axis))


def _slice_attributes(start: Any, stop: Any, step: Any, axis: Any) -> dict[str, list[Any]]:
    given = {"start": start, "stop": stop, "step": step, "axis": axis}
    lists = {k: list(v) for k, v in given.items() if isinstance(v, (list, tuple))}
    count = max((len(v) for v in lists.values()), default=1)
    for name, value in given.items():
        if name in lists:
            if len(lists[name]) != count:
                raise ValueError(f"slice: {name} has {len(lists[name])} entries, others have {count}")
        elif name == "axis" and value is None:
            lists[name] = list(range(count))
        else:
            lists[name] = [value] * count
    lists["step"] = [1 if s is None else s for s in lists["step"]]
    return lists


@whole_arguments
def concat(ts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors behind each other along ``axis``."""
    return emit(_k.Concat, list(ts), "concat_out", axis=axis)


@whole_arguments
def concat_(ts: Sequence[Tensor], axis: int = 0) -> Tensor:
    """As :func:`concat`, sharing storage with the operands."""
    return emit(_k.ConcatInplace, list(ts), "concat_out", axis=axis)


@whole_arguments
def init(
    shape: Sequence[int],
    dtype: _dtype,
    name: str | None = None,
    init_type: str = "zero",
    meta_shape: Sequence[int] | None = None,
) -> Tensor:
    """A new tensor: ``init_type`` ``"zero"`` or ``"undef"``.

    Raises:
        ValueError: another ``init_type``.
    """
    if init_type not in INIT_TYPES:
        raise ValueError(f"init_type {init_type!r}; allowed: {', '.join(INIT_TYPES)}")
    return emit(
        _k.Init,
        [],
        name or "init_out",
        shape=shape_of(shape),
        dtype=_dtype.as_dtype(dtype)._ir,
        init=INIT_TYPES[init_type],
        meta_shape=tuple(meta_shape or ()),
    )
