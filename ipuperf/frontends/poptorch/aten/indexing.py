"""Aten ops that pick elements by position, and that change or combine them at positions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ipuperf.functions import arranging as to
from ipuperf.functions import make
from ipuperf.functions.arithmetic import cast, not_equal, where
from ipuperf.functions.arranging import axis_of, broadcast, cut, permuted, reshaped
from ipuperf.functions.elementary import scaled
from ipuperf.functions.scattering import Change, changed_part, narrow, put_back, scattered
from ipuperf.functions.selection import gather as gathered
from ipuperf.ir import BOOL, INT32, Tensor
from ipuperf.ops import Gather

from .lowering import Handler, Lowering, Value, each

# -- lookups -----------------------------------------------------------------------------------------------------------


def embedding(
    low: Lowering,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table; the row ``padding_idx`` gets no gradient."""
    if scale_grad_by_freq:
        raise low.unsupported("scale_grad_by_freq=True is unsupported")
    padding = None if padding_idx == -1 else padding_idx
    return make(Gather, low.tensor(weight), low.tensor(indices, INT32), axis=0, padding_idx=padding)


def index_select(low: Lowering, x: Tensor, dim: int, index: Value) -> Tensor:
    """Positions of one axis, given by a vector."""
    if not x.shape:
        return x
    return reshaped(gathered(x, low.tensor(index, INT32), axis_of(dim, len(x.shape))), low.shape)


def gather(low: Lowering, value: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Tensor:
    """One element for each element of ``index``, from the same place but for one axis; whole slices where the index
    repeats one line along all other axes (poptorch: ``GatherWithExpandedIndicesOptimization``)."""
    x, places = low.tensor(value), low.tensor(index, INT32)
    axis = axis_of(dim, len(x.shape))
    if not x.shape:
        return reshaped(x, low.shape)
    line = _line(low, index, axis)
    if line is not None and places.shape[:axis] + places.shape[axis + 1 :] == x.shape[:axis] + x.shape[axis + 1 :]:
        return gathered(x, reshaped(line, (-1,)), axis)
    return to.picked(x, places, axis)


def _line(low: Lowering, index: Value, axis: int) -> Tensor | None:
    """The line of positions that an index repeats along all axes but one; None when it does not."""
    if not isinstance(index, torch.Tensor):
        return narrow(low.tensor(index, INT32), axis)
    line = index
    for other in range(index.dim()):
        line = line if other == axis else line.narrow(other, 0, 1)
    if line.numel() == index.numel() or not bool((line == index).all()):
        return None
    return low.tensor(line, INT32)


# -- indexing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Indexed:
    """What ``x[indices]`` names: rows of a table that has the indexed axes first, as one.

    Attributes:
        axes: the indexed ones.
        rest: the others.
        positions: of the rows, in the common shape of the indices.
    """

    axes: Sequence[int]
    rest: Sequence[int]
    positions: Tensor

    def table(self, x: Tensor) -> Tensor:
        """``x`` with one row for each place of the indexed axes."""
        rows = math.prod(x.shape[a] for a in self.axes)
        return reshaped(permuted(x, [*self.axes, *self.rest]), (rows, *(x.shape[a] for a in self.rest)))

    def back(self, table: Tensor, shape: Sequence[int]) -> Tensor:
        """The reverse of :meth:`table`, for an ``x`` of ``shape``."""
        order = [*self.axes, *self.rest]
        return permuted(reshaped(table, [shape[a] for a in order]), np.argsort(order).tolist())

    def order(self) -> list[int]:
        """Where the axes of (positions, others) stand in ``x[indices]``: the indices' at the place of the indexed axes
        when those are adjacent, else first."""
        first, picked, rest = self.axes[0], len(self.positions.shape), len(self.rest)
        if list(self.axes) != list(range(first, first + len(self.axes))):
            first = 0
        return [*range(picked, picked + first), *range(picked), *range(picked + first, picked + rest)]


def _indexed(low: Lowering, x: Tensor, indices: Sequence[Value]) -> _Indexed:
    chosen = _index_tensors(low, x, indices)
    axes = list(chosen)
    shape = np.broadcast_shapes(*(t.shape for t in chosen.values()))
    linear: Tensor | None = None
    for position, axis in enumerate(axes):
        # Rows are numbered with the last indexed axis running fastest.
        part = scaled(chosen[axis], math.prod(x.shape[a] for a in axes[position + 1 :]))
        linear = part if linear is None else linear + part
    assert linear is not None
    return _Indexed(axes, [a for a in range(len(x.shape)) if a not in axes], broadcast(linear, shape))


def index(low: Lowering, x: Tensor, indices: Sequence[Value]) -> Tensor:
    """Indexing with integer tensors (not negative at run time); bool masks only as constants."""
    lookup = _indexed(low, x, indices)
    if len(lookup.axes) == 1:
        return reshaped(gathered(x, lookup.positions, lookup.axes[0]), low.shape)
    return reshaped(permuted(gathered(lookup.table(x), lookup.positions, 0), lookup.order()), low.shape)


def _index_tensors(low: Lowering, x: Tensor, indices: Sequence[Value]) -> dict[int, Tensor]:
    """Index tensors by axis; constant masks become positions, constant negative indices count from the end."""
    by_axis: dict[int, Tensor] = {}
    axis = 0
    for part in indices:
        if part is None:
            axis += 1
            continue
        if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
            for positions in part.nonzero(as_tuple=True):
                by_axis[axis] = low.constant(positions.numpy(), INT32)
                axis += 1
            continue
        # Only constants can be turned here; positions of a run are taken as they are.
        if isinstance(part, torch.Tensor):
            by_axis[axis] = low.constant(torch.remainder(part.cpu(), x.shape[axis]).numpy(), INT32)
        elif part.dtype == BOOL:
            raise low.unsupported(
                "indexing with a bool tensor is unsupported (the shape would depend on values); use torch.where"
            )
        else:
            by_axis[axis] = low.tensor(part, INT32)
        axis += 1
    return by_axis


def index_put(low: Lowering, value: Value, indices: Sequence[Value], values: Value, accumulate: bool = False) -> Tensor:
    """``x[mask] = values`` for one bool mask; else values written (or, with ``accumulate``, added) where integer
    tensors point (not negative at run time)."""
    x, masks = low.tensor(value), [i for i in indices if i is not None]
    if len(masks) == 1 and indices[0] is not None and isinstance(masks[0], Tensor) and masks[0].dtype == BOOL:
        return _masked(low, x, masks[0], low.tensor(values, x.dtype), accumulate)
    lookup = _indexed(low, x, indices)
    picked, order = lookup.positions.shape, lookup.order()
    full_shape = [*picked, *(x.shape[a] for a in lookup.rest)]
    spread = broadcast(low.tensor(values, x.dtype), [full_shape[a] for a in order])
    count = math.prod(picked)
    # argsort of a permutation is its inverse.
    rows = reshaped(permuted(spread, np.argsort(order).tolist()), (count, *(x.shape[a] for a in lookup.rest)))
    table = lookup.table(x)
    if not rows.spec.elements:
        return x
    change = Change(table, reshaped(lookup.positions, (count,)), rows, 0, table.shape[0])
    return lookup.back(_scattered([change], "sum" if accumulate else "none")[0], x.shape)


def _scattered(changes: Sequence[Change], reduce: str, include_self: bool = True) -> list[Tensor]:
    """:func:`scattered`, with truths as numbers, which the op needs."""
    if changes[0].values.dtype != BOOL:
        return scattered(changes, reduce, include_self)
    numbers = [
        replace(c, table=None if c.table is None else cast(c.table, INT32), values=cast(c.values, INT32))
        for c in changes
    ]
    return [not_equal(result, 0) for result in scattered(numbers, reduce, include_self)]


def _masked(low: Lowering, x: Tensor, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """``values``, the same for every place of the mask: a number, or one for each element of the axes behind it."""
    rest, values_shape = x.shape[len(mask.shape) :], values.shape
    same = values_shape[1:] if len(values_shape) > len(rest) and values_shape[0] == 1 else values_shape
    if values.spec.elements != 1 and (
        len(same) > len(rest) or any(a not in (1, b) for a, b in zip(same[::-1], rest[::-1], strict=False))
    ):
        raise low.unsupported(
            "with a bool mask `x[mask] = values` is supported for values that are the same for each place, a number or "
            f"a shape that broadcasts to {rest}; {values_shape} given, whose meaning depends on how many places there "
            "are"
        )
    values = reshaped(values, same if values.spec.elements != 1 else ())
    mask = reshaped(mask, (*mask.shape, *(1,) * len(rest)))
    return where(mask, x + values if accumulate else values, x)


# -- changes along an axis ---------------------------------------------------------------------------------------------

#: Reductions of ``scatter`` by PyTorch's names there.
_WRITTEN = {None: "none", "add": "sum", "multiply": "prod"}


@dataclass(frozen=True)
class ScatterCall:
    """The arguments of a ``scatter``: ``values`` (a tensor or number) at ``index`` along ``dim`` of ``value``."""

    value: Value
    dim: int
    index: Value
    values: Value
    reduce: str
    include_self: bool = True


def scatter_all(low: Lowering, calls: Sequence[ScatterCall]) -> list[Tensor]:
    """Scatters that do not need each other's results; those of one kind, type and shape (of the tensors that the
    program gives, which the change may reach only a part of) become the groups of one op."""
    by_place: dict[int, Tensor] = {}
    kinds: dict[tuple[object, ...], list[tuple[int, Tensor, Change]]] = {}
    for place, call in enumerate(calls):
        table, change = low.tensor(call.value), _change(low, call)
        if change is None:
            by_place[place] = table
        else:
            kinds.setdefault((call.reduce, call.include_self, table.dtype, table.shape), []).append(
                (place, table, change)
            )
    for alike in kinds.values():
        call = calls[alike[0][0]]
        results = _scattered([change for _, _, change in alike], call.reduce, call.include_self)
        for (place, table, _), result in zip(alike, results, strict=True):
            by_place[place] = put_back(table, result) if table.shape else reshaped(result, ())
    return [by_place[place] for place in range(len(calls))]


def _change(low: Lowering, call: ScatterCall) -> Change | None:
    """What a call changes; None: nothing, as there is nothing to change it with or no table."""
    table, places = low.tensor(call.value), low.tensor(call.index, INT32)
    if not table.shape:
        table = reshaped(table, (1,))
    places = places if places.shape else reshaped(places, (1,))
    axis = axis_of(call.dim, len(table.shape))
    if not places.spec.elements or not table.spec.elements:
        return None
    values = low.tensor(call.values, table.dtype)
    values = values if values.shape else broadcast(reshaped(values, (1,) * len(places.shape)), places.shape)
    # PyTorch reads only as much of the values as the index is long.
    for other, length in enumerate(places.shape):
        values = cut(values, other, 0, length)
    line = _line(low, call.index, axis) if low.tensor(call.index).shape else None
    start: Tensor | None = changed_part(table, places.shape, axis)
    if start is table and call.reduce == "sum" and isinstance(call.value, torch.Tensor) and not call.value.any():
        start = None  # as upstream: zeros need not be read
    return Change(start, places if line is None else line, values, axis, table.shape[axis])


def scatter_call(
    target: str, value: Value, dim: int, index: Value, src: Value, reduce: str | None = None, include_self: bool = True
) -> ScatterCall:
    """The arguments of ``aten::scatter``, ``scatter_add`` or ``scatter_reduce``."""
    if target == "scatter_add":
        return ScatterCall(value, dim, index, src, "sum")
    if target == "scatter":
        return ScatterCall(value, dim, index, src, _WRITTEN[reduce])
    assert reduce is not None
    return ScatterCall(value, dim, index, src, reduce, include_self)


#: Ops that :func:`scatter_call` knows, of which several can become one.
GROUPED = ("scatter_add", "scatter_reduce", "scatter")


def _scatter(target: str) -> Handler:
    """Elements combined by one of these ops."""

    def handler(low: Lowering, *args: Any, **named: Any) -> Tensor:
        return scatter_all(low, [scatter_call(target, *args, **named)])[0]

    return handler


def _along(
    low: Lowering, value: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool
) -> Tensor:
    """Whole slices combined along an axis, at a line of positions."""
    x = low.tensor(value)
    table = x if x.shape else reshaped(x, (1,))
    axis = axis_of(dim, len(table.shape))
    line = reshaped(low.tensor(index, INT32), (-1,))
    shape = (*table.shape[:axis], line.shape[0], *table.shape[axis + 1 :])
    values = low.tensor(source, x.dtype)
    if not table.spec.elements or not line.shape[0]:
        return x
    values = broadcast(values, shape) if not values.shape else reshaped(values, shape)
    result = _scattered([Change(table, line, values, axis, table.shape[axis])], reduce, include_self)[0]
    return reshaped(result, x.shape)


def _index_add(low: Lowering, value: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Tensor:
    """Slices, ``alpha`` times, added."""
    x = low.tensor(value)
    return _along(low, value, dim, index, scaled(low.tensor(source, x.dtype), alpha), "sum", True)


def _index_reduce(
    low: Lowering, value: Value, dim: int, index: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Slices combined."""
    return _along(low, value, dim, index, source, reduce, include_self)


def _index_written(low: Lowering, value: Value, dim: int, index: Value, source: Value) -> Tensor:
    """Slices, or one number, written: index_copy, index_fill."""
    return _along(low, value, dim, index, source, "none", True)


#: Handlers by aten name.
HANDLERS: Mapping[str, Handler] = {
    **each("index_copy index_fill", _index_written),
    "embedding": embedding,
    "gather": gather,
    "index": index,
    "index_add": _index_add,
    "index_put": index_put,
    "index_reduce": _index_reduce,
    "index_select": index_select,
    **{name: _scatter(name) for name in GROUPED},
}
