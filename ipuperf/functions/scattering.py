"""Tables that are changed at positions, as PyTorch has them: ``scatter_add``, ``scatter_reduce``, ``index_reduce`` ...

As PopTorch builds them (poptorch: ``source/popart_canonicalization/``): a mean is a sum and a count, and what is not to
take part of the table itself is first overwritten. Several of one kind and shape become one op in groups
(:func:`combined`; poptorch: ``source/GNNOptimizations.cpp``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipuperf import ops as _k
from ipuperf.ir import DType, Tensor

from .arranging import cut, joined, reshaped, row
from .elementary import floor_div
from .making import constant, make

#: By PyTorch's name of a reduction: that of :func:`.selection.scatter_reduce`.
REDUCTIONS = {"sum": "sum", "prod": "mul", "amax": "max", "amin": "min", "none": "none"}


@dataclass(frozen=True)
class Change:
    """A change of a table.

    Attributes:
        table: what is changed; None: zeros (for ``sum`` only).
        indices: positions on ``axis`` (int32): of the values' shape, or with 1 on the other axes, or 1-D.
        values: of the table's rank and shape but on ``axis``.
        axis: not negative.
        size: length of the table's axis.
    """

    table: Tensor | None
    indices: Tensor
    values: Tensor
    axis: int
    size: int


def scattered(changes: Sequence[Change], reduce: str, include_self: bool = True) -> list[Tensor]:
    """Each table with its values combined at the positions.

    Args:
        reduce: ``sum``, ``prod``, ``amax``, ``amin``, ``mean`` or ``none`` (written; of several the last counts).
        include_self: elements of the table that are changed take part themselves.
    """
    if reduce == "mean":
        return _means(changes, include_self)
    if not include_self and reduce != "none":
        changes = _overwritten(changes, [_start(reduce, c.values.dtype) for c in changes])
    return combined(changes, reduce)


def combined(changes: Sequence[Change], reduce: str) -> list[Tensor]:
    """The changes with those of one kind and shape in one op: its groups."""
    found: dict[int, Tensor] = {}
    for alike in _alike(changes).values():
        results = _grouped([changes[i] for i in alike], REDUCTIONS[reduce])
        found.update(zip(alike, results, strict=True))
    return [found[i] for i in range(len(changes))]


def _alike(changes: Sequence[Change]) -> dict[tuple[object, ...], list[int]]:
    kinds: dict[tuple[object, ...], list[int]] = {}
    for place, c in enumerate(changes):
        kind = (c.table is None, c.indices.shape, c.values.shape, c.values.dtype, c.axis, c.size)
        kinds.setdefault(kind, []).append(place)
    return kinds


def _grouped(changes: Sequence[Change], reduction: str) -> list[Tensor]:
    """One op for changes that are alike, on a new first axis when there are several."""
    first, count = changes[0], len(changes)
    operands = [[c.values for c in changes], [c.indices for c in changes]]
    if first.table is not None:
        operands.append([c.table for c in changes if c.table is not None])
    how: dict[str, Any] = {"reduction": reduction, "share_ties": reduction in ("max", "min")}
    if count == 1:
        single = [each[0] for each in operands]
        return [make(_k.ScatterReduce, *single, axis=first.axis, axis_size=first.size, **how)]
    stacked = [joined([reshaped(t, (1, *t.shape)) for t in each], 0) for each in operands]
    axis, size = first.axis + 1, first.size
    together = make(_k.ScatterReduce, *stacked, axis=axis, axis_size=size, group_size=count, **how)
    return [row(together, 0, i) for i in range(count)]


def _means(changes: Sequence[Change], include_self: bool) -> list[Tensor]:
    """Sums over counts, both of them in one op."""
    both = [*changes, *map(_counting, changes)]
    if not include_self:
        both = [replace(c, values=old.values)
                for c, old in zip(_overwritten(both, [0.0] * len(both)), both, strict=True)]  # fmt: skip
    results = combined(both, "sum")
    totals, numbers = results[: len(changes)], results[len(changes) :]
    return [
        total / number if total.dtype.is_floating_point else floor_div(total, number)
        for total, number in zip(totals, numbers, strict=True)
    ]


def _counting(change: Change) -> Change:
    """The same with ones for all numbers."""
    assert change.table is not None
    dtype = change.values.dtype
    table, values = (_filled(1, t.shape, dtype) for t in (change.table, change.values))
    return replace(change, table=table, values=values)


def _overwritten(changes: Sequence[Change], numbers: Sequence[float]) -> list[Change]:
    """The changes with a number written into their tables wherever they change it."""
    written = combined(
        [replace(c, values=_filled(number, c.values.shape, c.values.dtype))
         for c, number in zip(changes, numbers, strict=True)], "none")  # fmt: skip
    return [replace(c, table=table) for c, table in zip(changes, written, strict=True)]


def _start(reduce: str, dtype: DType) -> float:
    """What a combination begins with: the least number for ``amax``, and so on."""
    number = {"sum": 0.0, "prod": 1.0, "amax": -np.inf, "amin": np.inf}[reduce]
    if dtype.is_floating_point or np.isfinite(number):
        return number
    limits = np.iinfo(dtype.numpy)
    return float(limits.min if number < 0 else limits.max)


def _filled(number: float, shape: Sequence[int], dtype: DType) -> Tensor:
    return constant(np.full(tuple(shape), number, dtype.numpy), dtype)


# -- tables that are wider than what changes them ----------------------------------------------------------------------


def changed_part(t: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """The part of a table that changes of ``shape`` reach: all of ``axis``, as much as there is of the others."""
    for other, length in enumerate(shape):
        if other != axis:
            t = cut(t, other, 0, length)
    return t


def put_back(t: Tensor, part: Tensor) -> Tensor:
    """``t`` with its first elements along each axis replaced by ``part``."""
    for axis, length in enumerate(part.shape):
        if length < t.shape[axis]:
            inner = put_back(cut(t, axis, 0, length), part)
            return joined([inner, cut(t, axis, length, t.shape[axis])], axis)
    return part


def narrow(indices: Tensor, axis: int) -> Tensor | None:
    """The one line of indices that ``indices`` repeats along all axes but ``axis``, with the same number of axes; None
    when they are no such repetition (poptorch: ``removeScatterAddIndexExpansion``)."""
    op, rank = indices.producer, len(indices.shape)
    if op is None or op.type != _k.Expand.type:
        return None
    source = op.inputs[0]
    shape = (1,) * (rank - len(source.shape)) + source.shape
    if any(length != 1 for other, length in enumerate(shape) if other != axis) or shape[axis] != indices.shape[axis]:
        return None
    return reshaped(source, shape)
