"""The vertices whose cycles depend only on the elements on a tile, by family: the list of ``ipuperf estimate vertex``.

Formulas and sources are those of the op modules. Where a vertex needs more than a number of elements, the name of the
:class:`VertexEstimate` says what was assumed (rows of 16, 48 indices). Vertices of matrix products and convolutions
are not here, as their cycles depend on the plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.base.near_names import did_you_mean
from ipuperf.ir import FLOAT16, FLOAT32, INT32, DType

from . import randomness, vertices
from .selection import gather
from .selection.dynamic import slice_cycles
from .updates.update_vertices import fused_cycles, scaled_add_cycles, type_names
from .work import Reduction, TileCycles, Vertices

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: Elements of the rows of broadcasts, and indices of gathers, that the estimates assume.
ROW, INDICES = 16, 48


@dataclass(frozen=True)
class VertexEstimate:
    """Tile cycles of one vertex.

    Attributes:
        vertex: its type, with the assumptions.
        cycles: tile cycles for each requested number of elements.
        low_confidence: the formula has no primary source.
    """

    vertex: str
    cycles: tuple[int, ...]
    low_confidence: bool


_Entry = tuple[str, TileCycles, bool]
_Family = Callable[[DType], Iterable[_Entry]]


def _entries(estimated: Iterable[Vertices | Reduction], assumed: str = "") -> Iterable[_Entry]:
    for vertex in estimated:
        # A Reduction has no mark of low confidence.
        yield f"{vertex.vertex}{assumed}", vertex.cycles, getattr(vertex, "low_confidence", False)


def _tabled(
    table: Mapping[str, Mapping[str, object]], make: Callable[..., Vertices], *, in_place: bool = False
) -> _Family:
    """A vertex for every operation of a table that has a figure for the type."""

    def family(dtype: DType) -> Iterable[_Entry]:
        names = [name for name, kinds in table.items() if vertices.kind(dtype) in kinds]
        return _entries(make(name, dtype, 1, in_place=in_place) for name in names)

    return family


def _broadcasts(dtype: DType) -> Iterable[_Entry]:
    names = sorted(vertices.BROADCAST_VECTOR_OPS)
    yield from _entries((vertices.broadcast_outer(name, dtype, 1, ROW) for name in names), f", rows of {ROW}")
    yield from _entries((vertices.broadcast_inner(name, dtype, 1, ROW) for name in names), f", rows of {ROW}")


def _activations(dtype: DType) -> Iterable[_Entry]:
    yield from _entries(vertices.non_linearity(name, dtype, 1, 1) for name in vertices.NON_LINEARITY)
    yield from _entries(vertices.non_linearity_grad(name, dtype, 1, 1) for name in vertices.NON_LINEARITY_GRAD)


def _scaled_adds(dtype: DType) -> Iterable[_Entry]:
    mixed = FLOAT32 if dtype is FLOAT16 else FLOAT16
    for second in (dtype, mixed):
        types = type_names(dtype, second)
        yield f"popops::ScaledAddSupervisor<{types}>", scaled_add_cycles(dtype, second, True), False
    same = type_names(dtype, dtype)
    apart = scaled_add_cycles(dtype, dtype, True, apart=True)
    yield f"popops::ScaledAddSupervisor<{same}>, operands in different memory elements", apart, False
    yield f"popops::aXPlusbYSupervisor<{same}>", scaled_add_cycles(dtype, dtype, True, True), False


def _moves(dtype: DType) -> Iterable[_Entry]:
    name = vertices.poplar_type(dtype)
    yield from _entries([vertices.fill(dtype, 1)])
    yield f"popops::DynamicSlice1D<{name}>", slice_cycles(dtype.size, 1), False
    assumed = f", {INDICES} indices"
    yield from _entries([gather.multi_slice(dtype, INDICES, 1)], assumed)
    yield from _entries([gather.multi_update_add(dtype, INDICES, INDICES, 1)], assumed)


def _casts(dtype: DType) -> Iterable[_Entry]:
    return _entries(vertices.cast(dtype, target, 1) for target in (FLOAT16, FLOAT32, INT32) if target is not dtype)


def _random(dtype: DType) -> Iterable[_Entry]:
    return _entries(
        make(dtype, 1) for make in (randomness.dropout_vertex, randomness.normal_vertex, randomness.uniform_vertex)
    )


def _fused(dtype: DType) -> Iterable[_Entry]:
    name = vertices.poplar_type(dtype)
    yield f"popops::map<{name}>, 3 tensors and 5 operations", fused_cycles(dtype, 3, 0, 5), True


#: Families by name: the vertices of a family for a type.
FAMILIES: Mapping[str, _Family] = {
    "UnaryOp1D": _tabled(vertices.UNARY, vertices.unary),
    "UnaryOp1DInPlace": _tabled(vertices.UNARY, vertices.unary, in_place=True),
    "BinaryOp1D": _tabled(vertices.BINARY, vertices.binary),
    "BinaryOp1DInPlace": _tabled(vertices.BINARY, vertices.binary, in_place=True),
    "BroadcastScalar1D": _tabled(vertices.BROADCAST_SCALAR, vertices.broadcast_scalar),
    "BroadcastScalar1DInPlace": _tabled(vertices.BROADCAST_SCALAR, vertices.broadcast_scalar, in_place=True),
    "BroadcastVector": _broadcasts,
    "Select": lambda dtype: _entries([vertices.select(dtype, 1), vertices.clamp(dtype, 1)]),
    "NonLinearity": _activations,
    "ScaledAdd": _scaled_adds,
    "Cast": _casts,
    "Move": _moves,
    "Reduce": lambda dtype: _entries(vertices.reduction(name, dtype, 1, 1) for name in vertices.REDUCTION_CYCLES),
    "Random": _random,
    "Fused": _fused,
}


def estimate_vertices(name: str, dtype: DType, elements: Sequence[int], chip: Chip) -> list[VertexEstimate]:
    """Estimates of the vertices of the family ``name`` for each of ``elements`` on a tile of ``chip``.

    Where no family has that name, they are the vertices whose type contains it (``relu``, ``cast1d``). Small and
    capital letters are alike.

    Raises:
        ValueError: nothing of that name for the type, or a number of elements below 0.
    """
    if not elements or min(elements) < 0:
        raise ValueError(f"elements is {list(elements)}; allowed: one or more numbers of at least 0")
    lower_name = name.lower()
    families = [family for key, family in FAMILIES.items() if key.lower() == lower_name]
    entries = [entry for family in families for entry in family(dtype)]
    if not families:
        # No family has this name: look at all vertex types.
        entries = [entry for family in FAMILIES.values() for entry in family(dtype) if lower_name in entry[0].lower()]
    if not entries or not name:
        types = (entry[0] for family in FAMILIES.values() for entry in family(dtype))
        near = did_you_mean(name, [*FAMILIES, *(word for text in types for word in re.findall(r"\w+", text))])
        raise ValueError(
            f"vertex is {name!r}, which is none for {dtype}{near}; families: {', '.join(FAMILIES)}, or a part of a "
            "vertex type such as RELU"
        )
    count = np.asarray(elements, dtype=np.int64)
    return [
        VertexEstimate(vertex, tuple(int(c) for c in formula(count, chip)), low) for vertex, formula, low in entries
    ]
