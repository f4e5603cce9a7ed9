"""Tables that are changed at positions, as PyTorch has them: ``scatter_add``, ``scatter_reduce``, ``index_reduce`` ...

They are built as PopTorch builds them (poptorch: ``source/popart_canonicalization/``). A mean is a sum and a count.
Elements of the table itself that must not take part are overwritten first. Several changes of one kind and shape become
one op in groups (:func:`combined`; poptorch: ``source/GNNOptimizations.cpp``).
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

#: PyTorch's name of a reduction -> its name in :func:`.selection.scatter_reduce`.
REDUCTIONS = {"sum": "sum", "prod": "mul", "amax": "max", "amin": "min", "none": "none"}


@dataclass(frozen=True)
class Change:
    """A change of a table.

    Attributes:
        table: the table to change; None: zeros (for ``sum`` only).
        indices: positions on ``axis`` (int32): of the values' shape, or with 1 on the other axes, or 1-D.
        values: of the table's rank, and of its shape except on ``axis``.
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
        reduce: ``sum``, ``prod``, ``amax``, ``amin``, ``mean`` or ``none`` (written; the last of several counts).
        include_self: whether elements of the table that are changed take part themselves.
    """
    if reduce == "mean":
        return _means(changes, include_self)
    if not include_self and reduce != "none":
        # Elements that are changed begin with the neutral number instead of the table's.
        changes = _overwritten(changes, [_start(reduce, change.values.dtype) for change in changes])
    return combined(changes, reduce)


def combined(changes: Sequence[Change], reduce: str) -> list[Tensor]:
    """The results of the changes. Changes of one kind and shape become the groups of one op."""
    by_index: dict[int, Tensor] = {}
    for group in _alike(changes).values():
        results = _grouped([changes[index] for index in group], REDUCTIONS[reduce])
        by_index.update(zip(group, results, strict=True))
    return [by_index[index] for index in range(len(changes))]


def _alike(changes: Sequence[Change]) -> dict[tuple[object, ...], list[int]]:
    kinds: dict[tuple[object, ...], list[int]] = {}
    for index, change in enumerate(changes):
        kind = (
            change.table is None,
            change.indices.shape,
            change.values.shape,
            change.values.dtype,
            change.axis,
            change.size,
        )
        kinds.setdefault(kind, []).append(index)
    return kinds


def _grouped(changes: Sequence[Change], reduction: str) -> list[Tensor]:
    """One op for changes that are alike, on a new first axis when there are several."""
    sample, count = changes[0], len(changes)
    operands = [[change.values for change in changes], [change.indices for change in changes]]
    if sample.table is not None:
        operands.append([change.table for change in changes if change.table is not None])
    attributes: dict[str, Any] = {"reduction": reduction, "share_ties": reduction in ("max", "min")}
    if count == 1:
        single = [operand_list[0] for operand_list in operands]
        return [make(_k.ScatterReduce, *single, axis=sample.axis, axis_size=sample.size, **attributes)]
    stacked = [
        joined([reshaped(tensor, (1, *tensor.shape)) for tensor in operand_list], 0) for operand_list in operands
    ]
    # The groups are a new first axis, so all other axes move by one.
    axis, size = sample.axis + 1, sample.size
    stacked_result = make(_k.ScatterReduce, *stacked, axis=axis, axis_size=size, group_size=count, **attributes)
    return [row(stacked_result, 0, index) for index in range(count)]


def _means(changes: Sequence[Change], include_self: bool) -> list[Tensor]:
    """Sums divided by counts; one op computes both."""
    terms = [*changes, *map(_counting, changes)]
    if not include_self:
        # Changed elements of the tables are 0 now, so only the values are summed and counted.
        terms = [
            replace(cleared, values=change.values)
            for cleared, change in zip(_overwritten(terms, [0.0] * len(terms)), terms, strict=True)
        ]
    results = combined(terms, "sum")
    totals, numbers = results[: len(changes)], results[len(changes) :]
    return [
        total / number if total.dtype.is_floating_point else floor_div(total, number)
        for total, number in zip(totals, numbers, strict=True)
    ]


def _counting(change: Change) -> Change:
    """The same change with ones in place of all numbers."""
    assert change.table is not None
    dtype = change.values.dtype
    table, values = (_filled(1, tensor.shape, dtype) for tensor in (change.table, change.values))
    return replace(change, table=table, values=values)


def _overwritten(changes: Sequence[Change], numbers: Sequence[float]) -> list[Change]:
    """The changes with a number written into their tables wherever they change them."""
    written = combined(
        [
            replace(change, values=_filled(number, change.values.shape, change.values.dtype))
            for change, number in zip(changes, numbers, strict=True)
        ],
        "none",
    )
    return [replace(change, table=table) for change, table in zip(changes, written, strict=True)]


def _start(reduce: str, dtype: DType) -> float:
    """The initial number of a combination: the least number for ``amax``, and so on."""
    number = {"sum": 0.0, "prod": 1.0, "amax": -np.inf, "amin": np.inf}[reduce]
    if dtype.is_floating_point or np.isfinite(number):
        return number
    # Integers have no infinity.
    limits = np.iinfo(dtype.numpy)
    return float(limits.min if number < 0 else limits.max)


def _filled(number: float, shape: Sequence[int], dtype: DType) -> Tensor:
    return constant(np.full(tuple(shape), number, dtype.numpy), dtype)


# -- tables that are wider than their changes --------------------------------------------------------------------------


def changed_part(t: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """The part of a table that changes of ``shape`` reach: all of ``axis``, and the start of every other axis."""
    for other_axis, length in enumerate(shape):
        if other_axis != axis:
            t = cut(t, other_axis, 0, length)
    return t


def put_back(t: Tensor, part: Tensor) -> Tensor:
    """``t`` with its first elements along each axis replaced by ``part``."""
    for axis, length in enumerate(part.shape):
        # The first axis on which the part is too short is filled up, and the others within it.
        if length < t.shape[axis]:
            inner_part = put_back(cut(t, axis, 0, length), part)
            return joined([inner_part, cut(t, axis, length, t.shape[axis])], axis)
    return part


def narrow(indices: Tensor, axis: int) -> Tensor | None:
    """The one line of indices that ``indices`` repeats along all axes but ``axis``, with the same number of axes.

    None when ``indices`` is no such repetition (poptorch: ``removeScatterAddIndexExpansion``).
    """
    op, rank = indices.producer, len(indices.shape)
    if op is None or op.type != _k.Expand.type:
        return None
    # The expansion is undone: the original indices are enough, and much smaller.
    source = op.inputs[0]
    shape = (1,) * (rank - len(source.shape)) + source.shape
    if (
        any(length != 1 for other_axis, length in enumerate(shape) if other_axis != axis)
        or shape[axis] != indices.shape[axis]
    ):
        return None
    return reshaped(source, shape)
