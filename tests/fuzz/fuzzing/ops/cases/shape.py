"""Ops that move elements: shapes, parts, gathers, scatters."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

import ipuperf.popxl as popxl
from ipuperf.popxl import ops

from .base import ANY, NUMBERS, Case, Drawn, in_place, one, shape_of, twice


def _reshaped(r: random.Random) -> Drawn:
    shape = shape_of(r)
    count = math.prod(shape)
    return [["normal", shape, "any"]], {"shape": r.choice([[-1], [count, 1], [1, count], shape[::-1]])}


def _squeezed(r: random.Random) -> Drawn:
    shape = [r.choice([1, 1, 2, 3]) for _ in range(r.randint(1, 4))]
    ones = [i - r.choice([0, len(shape)]) for i, n in enumerate(shape) if n == 1]
    return [["normal", shape, "any"]], {"axes": r.choice([None, r.sample(ones, r.randint(0, len(ones))) or None])}


def _without_ones(x: Any, axes: Any) -> Any:
    gone = [a % x.dim() for a in axes] if axes is not None else [i for i, n in enumerate(x.shape) if n == 1]
    return x.reshape([n for i, n in enumerate(x.shape) if i not in gone])


def _permuted(r: random.Random) -> Drawn:
    shape = shape_of(r, 1)
    order = r.sample(range(len(shape)), len(shape))
    return [["normal", shape, "any"]], {"permutation": r.choice([order, None, [i - len(shape) for i in order]])}


def _sliced(r: random.Random) -> Drawn:
    shape = shape_of(r, 1)
    axes = sorted(r.sample(range(len(shape)), r.randint(1, len(shape))))
    cuts = [_cut(r, shape[a]) for a in axes]
    parts = {key: [c[i] for c in cuts] for i, key in enumerate(("start", "stop", "step"))}
    return [["normal", shape, "any"]], {**parts, "axis": axes}


def _cut(r: random.Random, length: int) -> tuple[int | None, int | None, int]:
    """Start, stop and step of a slice that is not empty."""
    start = r.randrange(length)
    stop = r.randint(start + 1, length)
    if r.random() < 0.3:
        return stop - 1, (start - 1 if start else None), -r.randint(1, 2)
    return r.choice([start, start - length]), stop, r.randint(1, 3)


def _part(x: Any, start: Any, stop: Any, step: Any, axis: Any) -> Any:
    for a, *cut in zip(axis, start, stop, step, strict=True):
        x = torch.index_select(x, a, torch.tensor(range(x.shape[a])[slice(*cut)]))
    return x


ITERABLES: dict[str, Callable[[Sequence[Any]], Iterable[Any]]] = {
    "tuple": tuple,
    "list": list,
    "iterator": iter,
    "map": lambda x: map(ops.identity, x),
    "values": lambda x: dict(enumerate(x)).values(),
}


def _joined(r: random.Random) -> Drawn:
    shape = shape_of(r, 1)
    axis = r.randrange(-len(shape), len(shape))
    parts = []
    for _ in range(r.randint(1, 4)):
        part = list(shape)
        part[axis] = r.randint(1, 4)
        parts.append(["normal", part, "any"])
    return parts, {"axis": axis, "given": r.choice(list(ITERABLES))}


def _lengths(r: random.Random) -> Drawn:
    shape, count = shape_of(r, 1), r.randint(1, 3)
    axis = r.randrange(-len(shape), len(shape))
    parts: Any = [r.randint(1, 3) for _ in range(count)]
    if r.random() < 0.5:
        parts = count
    shape[axis] = sum(parts) if isinstance(parts, list) else count * r.randint(1, 3)
    return [["normal", shape, "any"]], {"splits": parts, "axis": axis}


def _split(x: Any, splits: Any, axis: int) -> Any:
    return torch.split(x, splits if isinstance(splits, list) else x.shape[axis] // splits, axis)


def _strides(r: random.Random) -> Drawn:
    shape = shape_of(r, 1, longest=8)
    return [["normal", shape, "any"]], {"strides": [r.randint(1, 3) for _ in range(r.randint(1, len(shape)))]}


SHAPES = {
    **{name: Case(_reshaped, torch.reshape, dtypes=ANY) for name in ("reshape", "reshape_")},
    **{name: Case(one(), lambda x: x.reshape(-1), dtypes=ANY) for name in ("flatten", "flatten_")},
    **{
        name: Case(_permuted, lambda x, permutation: x.permute(permutation or list(range(x.dim()))[::-1]), dtypes=ANY)
        for name in ("transpose", "transpose_")
    },
    **{name: Case(_sliced, _part, dtypes=ANY) for name in ("slice", "slice_")},
    **{
        name: Case(
            _joined,
            lambda *x, axis, given: torch.cat(x, axis),
            lambda f, *x, axis, given: f(ITERABLES[given](x), axis),
            dtypes=ANY,
        )
        for name in ("concat", "concat_")
    },
    "squeeze": Case(_squeezed, _without_ones, dtypes=ANY),
    "split": Case(_lengths, _split, dtypes=ANY),
    "subsample": Case(_strides, lambda x, strides: x[tuple(slice(None, None, n) for n in strides)]),
}


# -- positions ---------------------------------------------------------------------------------------------------------


def _window(r: random.Random) -> tuple[list[int], list[int], list[int], list[int]]:
    shape = shape_of(r, 1)
    axes = sorted(r.sample(range(len(shape)), r.randint(1, len(shape))))
    sizes = [r.randint(1, shape[a]) for a in axes]
    return shape, axes, sizes, [r.randint(0, shape[a] - n) for a, n in zip(axes, sizes)]


def _dynamic(r: random.Random) -> Drawn:
    shape, axes, sizes, at = _window(r)
    index = ["fixed", [len(axes)], r.choice(["int32", "uint32"]), at]
    return [["normal", shape, "any"], index], {"axes": axes, "sizes": sizes, "no_overlap": True}


def _updated(r: random.Random) -> Drawn:
    (x, index), arguments = _dynamic(r)
    part = list(x[1])
    for axis, size in zip(arguments["axes"], arguments["sizes"]):
        part[axis] = size
    return [x, index, ["normal", part, "any"]], arguments


def _cuts(x: Any, index: Any, axes: list[int], sizes: list[int]) -> tuple[slice, ...]:
    at = dict(zip(axes, zip(index.tolist(), sizes, strict=True), strict=True))
    return tuple(slice(at[i][0], at[i][0] + at[i][1]) if i in at else slice(None) for i in range(x.dim()))


def _replaced(x: Any, index: Any, part: Any, axes: list[int], sizes: list[int], no_overlap: bool) -> Any:
    made = x.clone()
    made[_cuts(x, index, axes, sizes)] = part
    return made


DYNAMIC = {
    "dynamic_slice": Case(
        _dynamic, lambda x, index, axes, sizes, no_overlap: x[_cuts(x, index, axes, sizes)], dtypes=NUMBERS
    ),
    "dynamic_update": Case(_updated, _replaced, dtypes=NUMBERS),
    "dynamic_update_": Case(_updated, twice(_replaced), in_place, dtypes=NUMBERS, gradient=False),
}


def _rows(r: random.Random) -> Drawn:
    shape, at = shape_of(r, 1), shape_of(r, 0, 2)
    axis = r.randrange(len(shape))
    index = ["index", at, r.choice(["int32", "uint32"]), shape[axis]]
    return [["normal", shape, "any"], index], {"axis": axis}


def _beyond(r: random.Random) -> Drawn:
    """Also positions outside, whose rows are zeros."""
    (x, index), arguments = _rows(r)
    if r.random() < 0.3:
        index[2:] = ["int32", index[3] + 2]
        arguments["zero_OOR"] = True
    return [x, index], arguments


def _taken(x: Any, index: Any, axis: int, zero_OOR: bool = False) -> Any:
    flat = index.reshape(-1)
    inside = flat < x.shape[axis]
    rows = torch.index_select(x, axis, torch.where(inside, flat, 0))
    mask = inside.reshape([-1 if i == axis else 1 for i in range(x.dim())])
    return torch.where(mask, rows, 0).reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def _tied(r: random.Random) -> Drawn:
    (x, index), _ = _rows(r)
    return [x, ["index", index[1], index[2], x[1][0]]], {}


def _grouped(r: random.Random) -> Drawn:
    groups, shape = r.randint(2, 3), shape_of(r, 1)
    axis = r.randrange(len(shape))
    index = ["index", [groups, r.randint(1, 4)], "int32", shape[axis]]
    return [["normal", [groups, *shape], "any"], index], {"axis": axis + 1, "group_size": groups}


def _of_groups(x: Any, index: Any, axis: int, group_size: int) -> Any:
    return torch.stack([torch.index_select(part, axis - 1, at) for part, at in zip(x, index, strict=True)])


def _spread(r: random.Random) -> Drawn:
    shape = shape_of(r, 1)
    axis = r.randrange(len(shape))
    part = list(shape)
    part[axis] = r.randint(1, shape[axis])
    rng = np.random.default_rng(r.randrange(1 << 20))
    places = rng.permuted(
        np.moveaxis(np.broadcast_to(np.arange(shape[axis]), _moved(shape, axis)), -1, axis), axis=axis
    )
    places = places.take(range(part[axis]), axis)
    return [["normal", shape, "any"], ["fixed", part, "int32", places.tolist()], ["normal", part, "any"]], {
        "axis": axis
    }


def _moved(shape: list[int], axis: int) -> list[int]:
    return [*shape[:axis], *shape[axis + 1 :], shape[axis]]


REDUCTIONS = {"sum": "sum", "max": "amax", "min": "amin", "mul": "prod"}


def _gathered_up(r: random.Random) -> Drawn:
    shape = shape_of(r, 1)
    axis, size = r.randrange(len(shape)), r.randint(1, 5)
    full = [size if i == axis else n for i, n in enumerate(shape)]
    operands = [["normal", shape, "any"], ["index", shape, "int32", size]]
    arguments = {"reduction": r.choice(list(REDUCTIONS)), "axis": axis, "axis_size": size}
    if arguments["reduction"] in ("max", "min") or r.random() < 0.5:
        operands.append(["normal", full, "any"])
    return operands, arguments


def _scattered(x: Any, index: Any, *start: Any, reduction: str, axis: int, axis_size: int) -> Any:
    full = [axis_size if i == axis else n for i, n in enumerate(x.shape)]
    base = start[0] if start else torch.full(full, 1.0 if reduction == "mul" else 0.0, dtype=x.dtype)
    return base.scatter_reduce(axis, index, x, REDUCTIONS[reduction], include_self=True)


def _scatter_reduce(f: Any, x: Any, index: Any, *start: Any, **arguments: Any) -> Any:
    return f(x, index, initial_values=start[0] if start else None, **arguments)


def _largest(r: random.Random) -> Drawn:
    shape = shape_of(r, 1)
    axis = r.randrange(-len(shape), len(shape))
    return [["distinct", shape, "any"]], {
        "k": r.randint(1, shape[axis]), "axis": axis, "largest": r.random() < 0.5, "sorted": True,
    }  # fmt: skip


def _hot(r: random.Random) -> Drawn:
    shape, count = shape_of(r, 1, 2), r.randint(2, 6)
    operands = [["index", shape, "int32", count], ["normal", [2], "any"]]
    return operands, {"count": count, "axis": r.choice([-1, *range(len(shape) + 1)])}


def _one_hot(index: Any, values: Any, count: int, axis: int) -> Any:
    hot = torch.movedim(torch.nn.functional.one_hot(index, count), -1, axis)
    return torch.where(hot == 1, values[1], values[0])


def _onehot(f: Any, index: Any, values: Any, count: int, axis: int) -> Any:
    return f(index, popxl.constant(count, popxl.int32), values, axis)


def _levels(r: random.Random) -> Drawn:
    levels = sorted({r.randint(-8, 8) / 4 for _ in range(r.randint(2, 5))})
    return [["normal", shape_of(r, 1), "any"]], {
        "levels": levels if len(levels) > 1 else [-1.0, 1.0], "absolute_of_input": r.random() < 0.5,
    }  # fmt: skip


def _counts(x: Any, levels: list[float], absolute_of_input: bool) -> Any:
    x = x.abs() if absolute_of_input else x
    edges = torch.tensor([-math.inf, *levels, math.inf], dtype=x.dtype)
    return torch.stack([((low <= x) & (x < high)).sum() for low, high in zip(edges[:-1], edges[1:])])


POSITIONS = {
    "gather": Case(_beyond, _taken, dtypes=NUMBERS),
    "tied_gather": Case(_tied, lambda x, index: _taken(x, index, 0), gradient=False),
    "groupedgather": Case(_grouped, _of_groups, gradient=False),
    "scatter": Case(
        _spread, lambda x, index, values, axis: x.scatter(axis, index, values),
        lambda f, x, index, values, axis: f(x, index, values, axis=axis),
    ),
    "scatter_reduce": Case(
        _gathered_up, _scattered, _scatter_reduce, gradient=lambda arguments: arguments["reduction"] == "sum"
    ),
    "topk": Case(_largest, lambda x, **a: torch.topk(x, a["k"], a["axis"], a["largest"], True)),
    "onehot": Case(_hot, _one_hot, _onehot, gradient=False),
    "histogram": Case(_levels, _counts, gradient=False),
}  # fmt: skip

CASES = {**SHAPES, **DYNAMIC, **POSITIONS}
