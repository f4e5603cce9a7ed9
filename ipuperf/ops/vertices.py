"""Cycle formulas of the vertices that several ops share: tables as data, and functions from tables to tile cycles.

All formulas are those of the PopLibs estimators as restated in ``docs/reference/cycles.md`` 2 to 6 (paths below are
PopLibs paths). They describe what the estimators say, not measurements of a device. With ``W`` worker contexts and
``n`` elements on a tile, each worker handles ``m = ceil(n / W)`` of them. The supervisor vertex takes
``W * thread(m) + constant`` tile cycles, because the workers take turns at issuing instructions.

A loop of a table entry ``(cycles, step)`` costs

* ``ceil(m / step) * cycles`` for a positive ``step`` (elements per unrolled iteration),
* ``(cycles + overhead) * ceil(m / vector)`` for ``VECTOR`` (one natural vector per iteration),
* ``(cycles + overhead) * m`` for ``SCALAR`` (one element per iteration).

Tables are keyed by vertex operation and by kind of type (``half``, ``float``, ``int``, ``bool``). float64 is no device
type; the few float64 graphs (numerical checks) are priced as ``float``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ipuperf.ir import DType

from .work import Reduction, TileCycles, Vertices

if TYPE_CHECKING:
    from ipuperf.machine import Chip

VECTOR = -1
SCALAR = 0

Loop = tuple[int, int]
#: Thread cycles of one worker for ``m`` elements: ``thread(m, chip)``.
Counts = NDArray[np.int64]
"""Whole numbers, an entry for each candidate or tile."""

Thread = Callable[[Counts, "Chip"], Counts]

#: Unary loops, popopsCycleEstimators.hpp:104-331 (out of place).
UNARY: Mapping[str, Mapping[str, Loop]] = {
    "ABSOLUTE": {"float": (1, SCALAR), "half": (1, SCALAR), "int": (2, SCALAR)},
    "ASIN": {"float": (102, SCALAR), "half": (102, SCALAR)},
    "BITWISE_NOT": {"int": (1, VECTOR)},
    "CEIL": {"float": (2, VECTOR), "half": (2, VECTOR)},
    "FLOOR": {"float": (2, VECTOR), "half": (2, VECTOR)},
    "COS": {"float": (2300, SCALAR), "half": (25, 1)},
    "SIN": {"float": (2300, SCALAR), "half": (25, 1)},
    "ERF": {"float": (41, 1), "half": (13, 1)},
    "EXPONENT": {"float": (6, 2), "half": (4, 4)},
    "EXPONENT_MINUS_ONE": {"float": (4, SCALAR), "half": (5, VECTOR)},
    "GELU_ERF": {"float": (22, 1), "half": (16, 1)},
    "INVERSE": {"float": (6, 2), "half": (15, 4)},
    "IS_FINITE": {"float": (5, VECTOR), "half": (5, VECTOR)},
    "IS_INF": {"float": (3, VECTOR), "half": (5, VECTOR)},
    "IS_NAN": {"float": (3, VECTOR), "half": (3, VECTOR)},
    "LOGARITHM": {"float": (12, 2), "half": (4, 4)},
    "LOGARITHM_ONE_PLUS": {"float": (180, VECTOR), "half": (180, VECTOR)},
    "LOGICAL_NOT": {"bool": (17, SCALAR)},
    "NEGATE": {"float": (2, 2), "half": (2, 4), "int": (2, SCALAR)},
    "RELU": {"float": (3, 2), "half": (3, 4)},
    "ROUND": {"float": (2, VECTOR), "half": (2, VECTOR)},
    "RSQRT": {"float": (8, 2), "half": (19, 4)},
    "SIGMOID": {"float": (12, 2), "half": (6, 4)},
    "SIGNUM": {"float": (5, VECTOR), "half": (5, VECTOR), "int": (5, SCALAR)},
    "SQRT": {"float": (10, 2), "half": (23, 4), "int": (110, SCALAR)},
    "SQUARE": {"float": (2, 2), "half": (2, 4), "int": (1, VECTOR)},
    "TANH": {"float": (12, 2), "half": (4, 4)},
}

#: Unary loops whose figures differ in place (same source).
UNARY_IN_PLACE: Mapping[str, Mapping[str, Loop]] = {
    "ABSOLUTE": {"float": (1, VECTOR), "half": (1, VECTOR), "int": (2, SCALAR)},
    "LOGARITHM": {"float": (14, 2), "half": (6, 4)},
    "NEGATE": {"float": (3, 2), "half": (3, 4), "int": (2, SCALAR)},
    "RELU": {"float": (2, 2), "half": (2, 4)},
    "SIGMOID": {"float": (10, 2), "half": (4, 4)},
    "TANH": {"float": (10, 2), "half": (2, 4)},
}

#: Binary loops, popopsCycleEstimators.hpp (out of place). ADD, SUBTRACT and MULTIPLY of floating-point types run
#: assembly with 2 cycles of loop overhead.
BINARY: Mapping[str, Mapping[str, Loop]] = {
    "ADD": {"float": (1, VECTOR), "half": (1, VECTOR), "int": (7, 1)},
    "SUBTRACT": {"float": (1, VECTOR), "half": (1, VECTOR), "int": (7, 1)},
    "MULTIPLY": {"float": (1, VECTOR), "half": (1, VECTOR), "int": (7, 1)},
    "BITWISE_AND": {"int": (7, 1)},
    "BITWISE_OR": {"int": (7, 1)},
    "BITWISE_XOR": {"int": (7, 1)},
    "SHIFT_LEFT": {"int": (7, 1)},
    "SHIFT_RIGHT_SIGN_EXTEND": {"int": (7, 1)},
    "DIVIDE": {"float": (10, 2), "half": (21, 4), "int": (277, 1)},
    "MAXIMUM": {"float": (3, 2), "half": (4, 4), "int": (7, 1)},
    "MINIMUM": {"float": (3, 2), "half": (4, 4), "int": (7, 1)},
    "POWER": {"float": (312, 1), "half": (325, 1)},
    "REMAINDER": {"float": (133, 2), "half": (300, 4), "int": (292, 1)},
    "EQUAL": {"float": (14, 4), "half": (9, 4), "int": (22, 4), "bool": (6, 4)},
    "NOT_EQUAL": {"float": (20, 4), "half": (11, 4), "int": (22, 4), "bool": (5, 4)},
    "GREATER_THAN": {"float": (14, 4), "half": (9, 4), "int": (22, 4), "bool": (31, 4)},
    "LOGICAL_AND": {"bool": (5, 4)},
    "LOGICAL_OR": {"bool": (5, 4)},
}

#: Binary loops whose figures differ in place (same source).
BINARY_IN_PLACE: Mapping[str, Mapping[str, Loop]] = {
    "MAXIMUM": {"float": (4, 2), "half": (4, 4), "int": (7, 1)},
    "MINIMUM": {"float": (4, 2), "half": (4, 4), "int": (7, 1)},
}

#: Loops with a scalar second operand (same source), also in place. ADD, SUBTRACT and MULTIPLY have an overhead of 1.
BROADCAST_SCALAR: Mapping[str, Mapping[str, Loop]] = {
    "ADD": {"float": (1, VECTOR), "half": (1, VECTOR), "int": (6, 1)},
    "SUBTRACT": {"float": (1, VECTOR), "half": (1, VECTOR), "int": (6, 1)},
    "MULTIPLY": {"float": (1, VECTOR), "half": (1, VECTOR), "int": (6, 1)},
    "DIVIDE": {"float": (6, 2), "half": (8, 2), "int": (277, 1)},
    "MAXIMUM": {"float": (3, 2), "half": (3, 4), "int": (6, 1)},
    "MINIMUM": {"float": (3, 2), "half": (3, 4), "int": (6, 1)},
    "POWER": {"float": (312, 1), "half": (325, 1)},
    "REMAINDER": {"float": (93, 2), "half": (225, 4), "int": (280, 1)},
    "EQUAL": {"float": (12, 4), "half": (8, 4), "int": (16, 4)},
    "LOGICAL_AND": {"bool": (4, 4)},
    "LOGICAL_OR": {"bool": (4, 4)},
    "VARIANCE_TO_INV_STD_DEV": {"float": (12, 2), "half": (24, 4)},
    "INV_STD_DEV_TO_VARIANCE": {"float": (11, 2), "half": (10, 2)},
}

#: Operations with assembly for broadcast vectors. Others broadcast the operand and run the plain binary vertex.
BROADCAST_VECTOR_OPS = frozenset({"ADD", "SUBTRACT", "MULTIPLY"})

#: Thread cycles per vector of popnn's activations, lib/popnn/PerformanceEstimation.hpp:18-60 (forward).
NON_LINEARITY: Mapping[str, Mapping[str, int]] = {"GELU": {"float": 10, "half": 5}, "SWISH": {"float": 11, "half": 5}}

#: Thread cycles per further vector of popnn's activation gradients, popnnCycleEstimators.cpp:140-215.
NON_LINEARITY_GRAD: Mapping[str, Mapping[str, int]] = {
    "RELU": {"float": 3, "half": 3},
    "TANH": {"float": 3, "half": 3},
    "SIGMOID": {"float": 3, "half": 3},
    "GELU": {"float": 10, "half": 5},
    "GELU_ERF": {"float": 30, "half": 15},
    "SWISH": {"float": 15, "half": 9},
}

_POPLAR_NAMES = {
    "float16": "half",
    "float32": "float",
    "float64": "float",
    "int32": "int",
    "uint32": "unsigned int",
    "int16": "short",
    "uint16": "unsigned short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int64": "long long",
    "uint64": "unsigned long long",
    "bool": "bool",
    "float8_143": "quarter",
    "float8_152": "quarter",
}


def poplar_type(dtype: DType) -> str:
    """Poplar's name of a type, as it stands in vertex names."""
    return _POPLAR_NAMES[dtype.name]


def kind(dtype: DType) -> str:
    """Key of the tables: ``half``, ``float``, ``int`` or ``bool``."""
    if dtype.is_floating_point:
        return "half" if dtype.size == 2 else "float"
    return "int" if dtype.is_integer else "bool"


def vector_width(dtype: DType, chip: Chip) -> int:
    """Elements per 64-bit data path word. float64, which the device lacks, counts as float32."""
    return chip.vector_width(min(dtype.size, 4))


def ceil_div(a: np.ndarray, b: int | np.ndarray) -> np.ndarray:
    """``ceil(a / b)`` in integers."""
    return -(-a // b)


def tile_cycles(thread: Thread, constant: int) -> TileCycles:
    """Tile cycles of a supervisor vertex: ``W * thread(ceil(n / W)) + constant``, 0 for no elements."""

    def cycles(elements: np.ndarray, chip: Chip) -> np.ndarray:
        count = np.asarray(elements, dtype=np.int64)
        total = chip.workers * thread(ceil_div(count, chip.workers), chip) + constant
        return np.where(count > 0, total, 0).astype(np.int64)

    return cycles


def _loop(entry: Loop, dtype: DType, overhead: int, fixed: int) -> Thread:
    """Thread cycles ``fixed + loop`` for a table entry."""
    cycles, step = entry

    def thread(m: np.ndarray, chip: Chip) -> np.ndarray:
        # See the top of this module for the three kinds of loops.
        if step == SCALAR:
            return fixed + (cycles + overhead) * m
        if step == VECTOR:
            return fixed + (cycles + overhead) * ceil_div(m, vector_width(dtype, chip))
        return fixed + cycles * ceil_div(m, step)

    return thread


def _entry(tables: tuple[Mapping[str, Mapping[str, Loop]], ...], name: str, dtype: DType) -> tuple[Loop, bool]:
    """The first table's entry for an operation, and whether there is one. Otherwise the entry is a guess of 5
    cycles an element."""
    for table in tables:
        if name in table and kind(dtype) in table[name]:
            return table[name][kind(dtype)], True
    return (5, SCALAR), False


# -- element-wise ------------------------------------------------------------------------------------------------------


def unary(name: str, dtype: DType, elements: int, *, in_place: bool = False, flops: int = 1) -> Vertices:
    """UnaryOp1D / UnaryOp1DInPlace (popopsCycleEstimators.cpp:1486-1597): ``W * (k + loop) + 20`` with k = 17 (33 for
    EXPONENT), in place 55; overhead of natural loops 4."""
    entry, known = _entry((UNARY_IN_PLACE, UNARY) if in_place else (UNARY,), name, dtype)
    # 33 for EXPONENT is a figure of its own in the source.
    fixed = 55 if in_place else (33 if name == "EXPONENT" else 17)
    vertex = f"popops::UnaryOp1D{'InPlace' if in_place else ''}<{name},{poplar_type(dtype)}>"
    cycles = tile_cycles(_loop(entry, dtype, 4, fixed), 20)
    return Vertices(vertex, elements, cycles, flops * elements, low_confidence=not known)


def binary(name: str, dtype: DType, elements: int, *, in_place: bool = False, flops: int = 1) -> Vertices:
    """BinaryOp1D / BinaryOp1DInPlace (popopsCycleEstimators.cpp:1507-1670): ``W * (k + loop) + 11`` with k = 29 (26 for
    half), in place 58; overhead of natural loops 5, of floating ADD, SUBTRACT and MULTIPLY 2."""
    entry, known = _entry((BINARY_IN_PLACE, BINARY) if in_place else (BINARY,), name, dtype)
    fixed = 58 if in_place else (26 if kind(dtype) == "half" else 29)
    # These three have loops in assembly, which have less overhead.
    overhead = 2 if name in BROADCAST_VECTOR_OPS else 5
    vertex = f"popops::BinaryOp1D{'InPlace' if in_place else ''}<{name},{poplar_type(dtype)}>"
    cycles = tile_cycles(_loop(entry, dtype, overhead, fixed), 11)
    return Vertices(vertex, elements, cycles, flops * elements, low_confidence=not known)


def broadcast_scalar(name: str, dtype: DType, elements: int, *, in_place: bool = False, flops: int = 1) -> Vertices:
    """BroadcastScalar1D(InPlace) (popopsCycleEstimators.cpp:63-124): ``W * (20 + loop) + 11``, the same in place;
    operations without a broadcast table entry (comparisons of rare types) use the binary table."""
    entry, known = _entry((BROADCAST_SCALAR, BINARY), name, dtype)
    overhead = 1 if name in BROADCAST_VECTOR_OPS else 4
    vertex = f"popops::BroadcastScalar1D{'InPlace' if in_place else ''}<{name},{poplar_type(dtype)}>"
    cycles = tile_cycles(_loop(entry, dtype, overhead, 20), 11)
    return Vertices(vertex, elements, cycles, flops * elements, low_confidence=not known)


def broadcast_outer(
    name: str,
    dtype: DType,
    elements: int,
    row: int,
    *,
    in_place: bool = False,
    flops: int = 1,
    reduced: bool = False,
    piece: int = 0,
) -> Vertices:
    """BroadcastVectorOuter (popopsCycleEstimators.cpp:232-299): one value for each row of ``row`` elements.

    Rows of less than W vectors go to a worker each (ByRow): ``W * (15 + ceil(rows / W) * (o + 2 * ceil(row / vector)))
    + 11``, o = 7 for rows that are whole vectors, else 25. All workers share longer rows (ByColumn): ``W * (15 + rows
    * (o + 2 * ceil(ceil(row / W) / vector))) + 11``. That is PopLibs' rule (``lib/popops/ElementWise.cpp``). A tile
    with fewer elements than a row holds part of one row.

    ``piece``: only pieces of so many neighbours lie together (0: whole rows do). ``reduced``: the values are the
    results of a reduction in the same op.
    """
    # No stretch of equal values is longer than a row or a piece of it.
    longest = min(row, piece or row)

    def cycles(count: np.ndarray, chip: Chip) -> np.ndarray:
        count, workers, vector = np.asarray(count, dtype=np.int64), chip.workers, vector_width(dtype, chip)
        # A tile may hold less than one row.
        length = np.clip(count, 1, longest)
        rows = ceil_div(count, length)
        # PopLibs' rule: a row that cannot give every worker a vector stays with one worker.
        short = length < workers * vector
        turns = np.where(short, ceil_div(rows, workers), rows)
        part = np.where(short, length, ceil_div(length, workers))
        # Rows that are no whole vectors need single elements at their ends.
        aligned = np.where(length % vector == 0, 7, 25)
        total = workers * (15 + turns * (aligned + 2 * ceil_div(part, vector))) + 11
        return np.where(count > 0, total, 0).astype(np.int64)

    def values(count: np.ndarray) -> np.ndarray:
        return ceil_div(count, row) * dtype.size

    vertex = f"popops::BroadcastVectorOuter1D{'InPlace' if in_place else ''}<{name},{poplar_type(dtype)}>"
    return Vertices(vertex, elements, cycles, flops * elements, reduced=values if reduced else None)


#: Row fragments on a tile: matrix products write groups of 16 output channels (ConvPlan partialChansPerGroup), so a
#: vector added to their columns meets fragments of 16. The layout is an assumption, hence low confidence.
INNER_FRAGMENT = 16


def rearranged(count: Counts, size: int, atom: int, chip: Chip) -> Counts:
    """Cycles until ``count`` elements of ``size`` bytes lie as a vertex reads them, copied in atoms of so many bytes.

    The rates are those of ``chip.rearrangement``, exchange included.
    """
    counts, places = np.unique(count, return_inverse=True)
    return np.array([chip.rearrangement.cycles({atom: n * size}) for n in counts.tolist()], np.int64)[places]


def broadcast_inner(
    name: str, dtype: DType, elements: int, row: int, *, in_place: bool = False, flops: int = 1, reduced: bool = False
) -> Vertices:
    """BroadcastVectorInner (popopsCycleEstimators.cpp:690-1240): a vector of ``row`` elements for every row.

    With fragments of L halves (``INNER_FRAGMENT`` at most) and B of them per worker, a thread takes, with L a multiple
    of 4, for MULTIPLY ``34 + L/4 * (9 + B)``, for ADD ``37 + L/8 * (13 + 2B)`` (multiples of 8) or ``34 + L/4 * (11 +
    B)`` (B of 2 or more), otherwise ``34 + L * (5 + 9B)``. The tile takes W times that plus 12. ``reduced``: the vector
    is the result of a reduction in the same op.

    PopLibs takes no such vertex for fragments of halves that are no multiple of 4, nor for floats unless they are
    divided, which no op asks for (``lib/popops/ElementWise.cpp`` binaryOpBroadcastInnerVector). Copies repeat the
    vector over all elements, then :func:`binary` combines the two. Floats are copied by :func:`rearranged`.
    """
    fragment = min(max(row, 1), INNER_FRAGMENT)
    half = kind(dtype) == "half"
    repeated = not half or fragment % 4 > 0
    whole = binary(name, dtype, elements, in_place=in_place, flops=flops)

    def cycles(count: np.ndarray, chip: Chip) -> np.ndarray:
        count = np.asarray(count, dtype=np.int64)
        if not half:
            atom = math.gcd(8, fragment * dtype.size)
            return np.where(count > 0, whole.cycles(count, chip) + rearranged(count, dtype.size, atom, chip), 0)
        if repeated:
            copied = ceil_div(count * dtype.size, min(chip.memcpy_bytes_per_cycle, fragment * dtype.size))
            return np.where(count > 0, whole.cycles(count, chip) + chip.copy_setup_cycles + copied, 0).astype(np.int64)
        length = np.clip(count, 1, fragment)
        blocks = ceil_div(ceil_div(count, length), chip.workers)
        thread = 34 + length * (5 + 9 * blocks)
        if name == "MULTIPLY":
            thread = np.where(length % 4 == 0, 34 + length // 4 * (9 + blocks), thread)
        else:
            thread = np.where((length % 4 == 0) & (blocks > 1), 34 + length // 4 * (11 + blocks), thread)
            thread = np.where(length % 8 == 0, 37 + length // 8 * (13 + 2 * blocks), thread)
        return np.where(count > 0, chip.workers * thread + 12, 0).astype(np.int64)

    def values(count: Counts) -> Counts:
        return np.minimum(count, row) * dtype.size

    vertex = f"popops::BroadcastVectorInner1D{'InPlace' if in_place else ''}<{name},{poplar_type(dtype)}>"
    vertex = whole.vertex if repeated else vertex
    reduced_values = values if reduced else None
    return Vertices(vertex, elements, cycles, flops * elements, low_confidence=True, reduced=reduced_values)


def select(dtype: DType, elements: int) -> Vertices:
    """Select (``docs/reference/cycles.md`` 2.5): ``W * (6 + 5m) + 11``."""
    cycles = tile_cycles(lambda m, chip: 6 + 5 * m, 11)
    return Vertices(f"popops::Select<{poplar_type(dtype)}>", elements, cycles)


def clamp(dtype: DType, elements: int) -> Vertices:
    """Clamp (``docs/reference/cycles.md`` 2.5): ``W * (6 + 2 * ceil(m / vector)) + 11``."""
    cycles = tile_cycles(lambda m, chip: 6 + 2 * ceil_div(m, vector_width(dtype, chip)), 11)
    return Vertices(f"popops::Clamp<{poplar_type(dtype)}>", elements, cycles, 2 * elements)


# -- activations -------------------------------------------------------------------------------------------------------


def non_linearity(name: str, dtype: DType, elements: int, flops: int) -> Vertices:
    """popnn NonLinearity1D (popnnCycleEstimators.cpp:73-140): ``W * (26 + 2 op + (V - 1) op) + 9``, V vectors."""
    per_vector = NON_LINEARITY[name][kind(dtype)]

    def thread(m: np.ndarray, chip: Chip) -> np.ndarray:
        return 26 + 2 * per_vector + (ceil_div(m, vector_width(dtype, chip)) - 1) * per_vector

    vertex = f"popnn::NonLinearity1D<{name},{poplar_type(dtype)}>"
    return Vertices(vertex, elements, tile_cycles(thread, 9), flops * elements)


def non_linearity_grad(name: str, dtype: DType, elements: int, flops: int) -> Vertices:
    """popnn NonLinearityGrad1D (popnnCycleEstimators.cpp:140-215): ``W * (20 + 4 + (V - 1) g) + 9`` for V vectors."""
    per_vector = NON_LINEARITY_GRAD[name][kind(dtype)]

    def thread(m: np.ndarray, chip: Chip) -> np.ndarray:
        return 24 + (ceil_div(m, vector_width(dtype, chip)) - 1) * per_vector

    vertex = f"popnn::NonLinearityGrad1D<{name},{poplar_type(dtype)}>"
    return Vertices(vertex, elements, tile_cycles(thread, 9), flops * elements)


# -- cast, fill, encoding ----------------------------------------------------------------------------------------------


def cast(source: DType, target: DType, elements: int) -> Vertices:
    """Cast1D (PerformanceEstimation.cpp:260-370): ``12 + W * (37 + 2 * (m // 4) + remainder)`` between float types (2
    for none, 6 otherwise); between other types one element per cycle."""
    both_floating = source.is_floating_point and target.is_floating_point

    def thread(m: np.ndarray, chip: Chip) -> np.ndarray:
        # Other casts have no vectorised loop.
        if not both_floating:
            return 37 + m
        return 37 + 2 * (m // 4) + np.where(m % 4 == 0, 2, 6)

    vertex = f"popops::Cast1D<{poplar_type(source)},{poplar_type(target)}>"
    return Vertices(vertex, elements, tile_cycles(thread, 12))


def planned_cast_cycles(elements: np.ndarray, widest: int, chip: Chip) -> np.ndarray:
    """Cast1D as PopLibs' convolution planner expects it (``lib/poplin/ConvModel.cpp``): ``W * (26 + ceil(m / v))``
    with v of the wider type (``widest`` bytes). The difference from :func:`cast` is intended, as the planner
    compares plans by this figure."""
    worker = ceil_div(elements, chip.workers)
    return chip.workers * (26 + ceil_div(worker, chip.vector_width(widest)))


def fill_thread(elements: np.ndarray, dtype: DType) -> np.ndarray:
    """Thread cycles of one Fill vertex (``docs/reference/cycles.md`` 4.2): 16-bit ``26 + n // 4``, 32-bit
    ``23 + n / 2``, 8-bit ``28 + n / 4``."""
    if dtype.size == 2:
        return 26 + elements // 4
    if dtype.size == 1:
        return 28 + ceil_div(elements, 4)
    return 23 + ceil_div(elements, 2)


def fill(dtype: DType, elements: int) -> Vertices:
    """Fill, one vertex per worker: ``W * fill_thread(m)``. It reads nothing."""
    cycles = tile_cycles(lambda m, chip: fill_thread(m, dtype), 0)
    return Vertices(f"popops::Fill<{poplar_type(dtype)}>", elements, cycles, operands=())


def transpose_cycles(count: int, rows: int, columns: int, size: int, chip: Chip) -> int:
    """Tile cycles of transposing ``count`` blocks of ``rows`` x ``columns`` elements of ``size`` bytes.

    With 2 bytes all workers of a tile share the blocks of the vertex that works in 4 x 4 blocks; with 4 bytes there is
    one vertex for each worker (PopLibs ``lib/popops/popopsCycleEstimators.cpp`` TransposeSupervisor,
    TransposeWorkerCycles and Transpose2d). These are the fast paths; no grouping here reaches their limits of stride
    and repeat count. The vertices that split up to three blocks over workers are not modelled.
    """
    if not count:
        return 0
    blocks_per_worker = -(-count // chip.workers)
    if size == 4:
        return chip.workers * (27 + blocks_per_worker * (11 + rows // 2 * (6 + 3 * (columns // 2 - 1))))
    row_blocks, column_blocks = rows // 4, columns // 4
    if row_blocks == column_blocks == 1:
        worker = 29 if blocks_per_worker == 1 else 37 + 4 * (blocks_per_worker - 2)
    elif column_blocks == 1:
        worker = 27 + blocks_per_worker * (35 + 4 * (row_blocks - 2))
    else:
        worker = 29 + blocks_per_worker * (18 + row_blocks * (12 + 4 * (column_blocks - 2)))
    return 7 + chip.workers * worker


def one_hot(dtype: DType, indices: int, classes: int) -> Vertices:
    """EncodeOneHot (``docs/reference/cycles.md`` 4.4): 11 + 74 cycles per index on one thread; a tile that holds ``n``
    of the one-hot elements handles ``ceil(n / classes)`` indices."""

    def cycles(count: np.ndarray, chip: Chip) -> np.ndarray:
        count = np.asarray(count, dtype=np.int64)
        return np.where(count > 0, 11 + 74 * ceil_div(count, classes), 0).astype(np.int64)

    return Vertices(f"popops::EncodeOneHot<{poplar_type(dtype)}>", indices * classes, cycles)


# -- reductions --------------------------------------------------------------------------------------------------------

#: Thread cycles per 64-bit word of input. The source has no figure for MUL: twice ADD is assumed.
REDUCTION_CYCLES = {"ADD": 1, "SQUARE_ADD": 1, "MAX": 1, "MIN": 1, "MUL": 2}


def reduction(
    name: str, dtype: DType, inputs: int, outputs: int, operand: int = 0, run: int = 1, piece: int = 0
) -> Reduction:
    """StridedReduce (reduction/CycleEstimationFunctions.cpp:212-290): setup 16, loop 3 + 3 and result storage (8 for
    half, 5 for float), then one 64-bit word of input per cycle; split over the workers of the tile.

    The asymptote, 0.25 cycles per half element with about 180 fixed, is also that of Elk's fit (0.25 n + 175).

    With ``piece`` the elements of an output lie in pieces of so many neighbours. Each piece is a region of a
    ContinuousReduce (getCycleEstimateReduceAllRegionsContinuous, same file): setup 17, 12 for each piece, then one
    word per cycle. The step that adds up the pieces of an output is left out.
    """
    fixed = 16 + 6 + (8 if dtype.size == 2 else 5)
    rate = REDUCTION_CYCLES[name]

    def of_pieces(elements: np.ndarray, chip: Chip) -> np.ndarray:
        count = np.asarray(elements, dtype=np.int64)
        pieces_per_worker = ceil_div(ceil_div(count, piece), chip.workers)
        words = ceil_div(np.minimum(count, piece), vector_width(dtype, chip))
        return np.where(count > 0, chip.workers * (17 + pieces_per_worker * (12 + rate * words)), 0).astype(np.int64)

    plain = tile_cycles(lambda m, chip: fixed + rate * ceil_div(m, vector_width(dtype, chip)), 0)
    cycles = of_pieces if piece else plain
    # A square and an addition for each element.
    per_input = 2 if name == "SQUARE_ADD" else 1
    vertex = f"popops::Reduce<{name},{poplar_type(dtype)}>"
    return Reduction(vertex, inputs, outputs, dtype, cycles, per_input * inputs, operand, run)
