"""Tile cycles of vertices by family and type, on chips of both generations."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from executables import Figures

from ipuperf.ir import BOOL, FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32, DType
from ipuperf.machine import load_machine
from ipuperf.ops import randomness
from ipuperf.ops import vertices as v
from ipuperf.ops.elementwise.comparisons import COMPARISON, comparison
from ipuperf.ops.selection import gather
from ipuperf.ops.selection.dynamic import planned_slice_cycles, slice_cycles
from ipuperf.ops.updates.update_vertices import fused_cycles, scaled_add_cycles
from ipuperf.ops.vertex_families import FAMILIES, estimate_vertices
from ipuperf.ops.work import Reduction, TileCycles, Vertices

CHIPS = tuple(load_machine(name).chip for name in ("gc2-1", "gc200-1"))
ELEMENTS = (0, 1, 7, 64, 513, 4096, 40000)
FLOATS = (FLOAT16, FLOAT32)
TYPES = (*FLOATS, FLOAT64, INT8, INT16, INT32, BOOL)


def _of_family(family: str, dtype: DType) -> Iterator[Figures]:
    """What ``ipuperf estimate vertex`` says."""
    for small, large in zip(*(estimate_vertices(family, dtype, ELEMENTS, chip) for chip in CHIPS), strict=True):
        yield _row(small.vertex, (small.cycles, large.cycles), low_confidence=large.low_confidence)


def _row(name: str, cycles: Iterable[Iterable[int]], **more: Any) -> Figures:
    gc2, gc200 = (" ".join(map(str, each)) for each in cycles)
    named = {"flops": "", "low_confidence": "", "read": "", **more}
    return {"vertex": name, "gc200": gc200, "gc2": "same" if gc2 == gc200 else gc2, **named}


def _of_works(works: Iterable[Vertices | Reduction]) -> Iterator[Figures]:
    for work in works:
        low, read = getattr(work, "low_confidence", False), getattr(work, "reduced", None)
        more = [] if read is None else np.asarray(read(np.array(ELEMENTS))).tolist()
        read = [getattr(work, "operands", None), *more]
        yield _row(work.vertex, _cycles(work.cycles), flops=work.flops, low_confidence=low, read=read)


def _of_formulas(formulas: Mapping[str, TileCycles]) -> Iterator[Figures]:
    for name, formula in formulas.items():
        yield _row(name, _cycles(formula))


def _cycles(formula: TileCycles) -> Iterator[list[int]]:
    return (np.asarray(formula(np.array(ELEMENTS), chip)).tolist() for chip in CHIPS)


def _tabled(dtype: DType) -> Iterator[Vertices]:
    """Each operation of each table, known for the type or not."""
    for table, make in ((v.UNARY, v.unary), (v.BINARY, v.binary), (v.BROADCAST_SCALAR, v.broadcast_scalar)):
        for name, in_place in itertools.product(table, (False, True)):
            yield make(name, dtype, 3, in_place=in_place, flops=2)
    for name, scalar in itertools.product(COMPARISON, (False, True)):
        yield comparison(name, dtype, 3, scalar=scalar)


def _broadcasts(dtype: DType) -> Iterator[Vertices]:
    for row, reduced in itertools.product((1, 4, 5, 24, 1000), (False, True)):
        yield v.broadcast_outer("ADD", dtype, 3, row, flops=2, reduced=reduced)
        yield v.broadcast_outer("ADD", dtype, 3, row, in_place=True, piece=12)
        for name in ("ADD", "MULTIPLY"):
            yield v.broadcast_inner(name, dtype, 3, row, flops=2, reduced=reduced, in_place=reduced)


def _moves(dtype: DType) -> Iterator[Vertices]:
    yield from (v.select(dtype, 3), v.clamp(dtype, 3), v.fill(dtype, 3), v.one_hot(dtype, 3, 10))
    yield from (v.cast(dtype, other, 3) for other in TYPES)
    yield from (gather.multi_slice(dtype, indices, 3) for indices in (1, 48))
    yield from (gather.multi_update_add(dtype, indices, 7, 3) for indices in (1, 48))


def _of_floats(dtype: DType) -> Iterator[Vertices | Reduction]:
    yield from (v.non_linearity(name, dtype, 3, 2) for name in v.NON_LINEARITY)
    yield from (v.non_linearity_grad(name, dtype, 3, 2) for name in v.NON_LINEARITY_GRAD)
    yield from (
        v.reduction(name, dtype, 30, 3, piece=piece) for name in v.REDUCTION_CYCLES for piece in (0, 1, 12, 500)
    )
    makes = (randomness.dropout_vertex, randomness.normal_vertex, randomness.uniform_vertex)
    yield from (make(dtype, 3) for make in makes)


def _scaled(a: DType, b: DType) -> Iterator[Figures]:
    flags = itertools.product((False, True), repeat=3 if a is b else 2)
    formulas = {
        f"tensor factor, both scaled, apart: {given}": scaled_add_cycles(a, b, given[0], given[1], apart=any(given[2:]))
        for given in flags
    }
    yield from _of_formulas(formulas)


def _fused(dtype: DType) -> Iterator[Figures]:
    numbers = ((1, 0, 1), (3, 2, 5), (2, 1, 7))
    yield from _of_formulas({f"tensors, scalars, operations: {n}": fused_cycles(dtype, *n) for n in numbers})
    yield from _of_formulas({f"positions of a slice: {n}": slice_cycles(dtype.size, n) for n in (1, 3, 64)})
    yield from _of_formulas({f"planned slice of {dtype}": partial(_planned_slice, dtype.size)})


def _fixed() -> Iterator[Figures]:
    """Formulas of more than a number of elements."""
    shapes = [(c, r, k, s) for c in (0, 1, 6, 7, 50) for r, k in ((4, 4), (8, 4), (4, 8), (16, 8)) for s in (2, 4)]
    yield _row("transpose", ([v.transpose_cycles(*shape, chip) for shape in shapes] for chip in CHIPS))
    for size in (2, 4):
        yield from _of_formulas({f"planned cast of {size} bytes": partial(_planned_cast, size)})


def _planned_cast(size: int, elements: np.ndarray, chip: Any) -> np.ndarray:
    return v.planned_cast_cycles(elements, size, chip)


def _planned_slice(size: int, elements: np.ndarray, chip: Any) -> np.ndarray:
    return planned_slice_cycles(elements, size, chip)


def _works(make: Callable[[DType], Iterable[Vertices | Reduction]], dtype: DType) -> Iterator[Figures]:
    return _of_works(make(dtype))


VERTICES: Mapping[str, Callable[[], Iterator[Figures]]] = {
    **{f"family {family} {dtype}": partial(_of_family, family, dtype) for family in FAMILIES for dtype in FLOATS},
    **{f"tables {dtype}": partial(_works, _tabled, dtype) for dtype in TYPES},
    **{f"broadcasts {dtype}": partial(_works, _broadcasts, dtype) for dtype in (*FLOATS, INT32)},
    **{f"moves {dtype}": partial(_works, _moves, dtype) for dtype in TYPES},
    **{f"floats {dtype}": partial(_works, _of_floats, dtype) for dtype in FLOATS},
    **{f"scaled add {a} {b}": partial(_scaled, a, b) for a in FLOATS for b in FLOATS},
    **{f"fused {dtype}": partial(_fused, dtype) for dtype in FLOATS},
    "others": _fixed,
}
