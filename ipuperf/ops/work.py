"""What an op asks of the machine: frozen descriptions that :mod:`ipuperf.lowering` turns into phases.

An op states *what* has to be done (how many elements, which vertex, how many bytes between whom) and the cycle formula
of its vertices. The rooms below decide on which tiles it happens, with which plan and at what time. A list of works is
executed in order; each :class:`Vertices`, :class:`Reduction` or :class:`MatMul` is at least one superstep.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ipuperf.ir import DType, Graph, RemoteBuffer, ReplicaGrouping

if TYPE_CHECKING:
    from ipuperf.machine import Chip

DEFAULT_SHARE = 0.6
"""Share of a tile's memory that plans may take when none is stated (PopLibs' default)."""

#: Tile cycles for a vector of element counts (int64, one per tile): ``cycles(elements, chip) -> int64 vector``.
#: Zero elements cost zero cycles.
TileCycles = Callable[[np.ndarray, "Chip"], np.ndarray]


class Outlining(Enum):
    """How much sharing an op's code is worth to PopART's outliner (:mod:`ipuperf.lowering.outlining`)."""

    NEVER = "never shared"
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True)
class Work:
    """Base of all descriptions. The lowering registers a function for each class that says what it becomes
    (:func:`ipuperf.lowering.supersteps.lowers`).

    Attributes:
        outlining: whether its code is worth sharing.
    """

    outlining: ClassVar[Outlining] = Outlining.LOW

    @property
    def flops(self) -> int:
        """Floating-point operations in all."""
        return 0


@dataclass(frozen=True)
class Vertices(Work):
    """One compute set of element-wise vertices that live where the op's first output (or modified input) lives.

    Attributes:
        vertex: vertex type, e.g. ``popops::BinaryOp1D<ADD,float>``; vertices of one type share code on a tile.
        elements: elements processed in all (per replica).
        cycles: tile cycles for a number of elements on a tile.
        flops: floating-point operations in all.
        low_confidence: the formula has no primary source (reports say so).
        operands: for each input of the op, how many of its elements all vertices together read. An element that
            several tiles need counts once for each of them. A tile with a share of the ``elements`` reads that share
            of these, at most the whole input. They arrive over the exchange unless the input lies like the result.
            None: one element of each input for each element. Empty: the vertices read nothing.
        reduced: for values that the op reduced over several tiles before (one for each row, or a vector for all rows):
            the bytes of them that a tile with so many elements reads. They arrive over the exchange. None: nothing.
    """

    vertex: str
    elements: int
    cycles: TileCycles = field(compare=False)
    flops: int = 0
    low_confidence: bool = False
    operands: tuple[int, ...] | None = None
    reduced: Callable[[np.ndarray], np.ndarray] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Reduction(Work):
    """Reduce ``inputs`` elements to ``outputs``: partial sums where the data lies, exchange of partials, final sums.

    ``cycles(inputs on tile, chip)`` is the cost of one reduction vertex over that many elements; the lowering applies
    it to every stage. ``operand`` is the index of the op's input that is reduced. ``run`` says how many neighbouring
    elements of it (row by row) go into the same output. Where ``together`` outputs lie side by side (the channels of a
    grouping), every ``together``-th element of a stretch of ``run * together`` goes into the same one.
    """

    vertex: str
    inputs: int
    outputs: int
    dtype: DType
    cycles: TileCycles = field(compare=False)
    flops: int = 0
    operand: int = 0
    run: int = 1
    together: int = 1


@dataclass(frozen=True)
class MatMul(Work):
    """``[groups, m, k] x [groups, k, n]``; the planner chooses splits and vertices.

    ``pass_`` is one of ``nonemm``, ``fcinf``, ``fcfwd``, ``fcbwd``, ``fcwu`` (fully connected forward, backward,
    weight update). ``stationary`` is the index of the operand (0 or 1) that is a parameter, or -1.
    """

    outlining: ClassVar[Outlining] = Outlining.HIGH

    groups: int
    m: int
    k: int
    n: int
    input_dtype: DType
    output_dtype: DType
    partials_dtype: DType
    pass_: str = "nonemm"
    available_memory_proportion: float = DEFAULT_SHARE

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        # A multiplication and an addition for each of the k terms.
        return 2 * self.groups * self.m * self.k * self.n


@dataclass(frozen=True)
class Recurrence(Work):
    """A loop over time steps, of a recurrent layer or of its gradient.

    Each step reads its slices of sequences, runs products and then vertices on their results, and writes its slices of
    results. With ``backward`` the products come last, with weights that are arranged for them once. The lowering
    decides where slices lie and how many shards of tiles hold those of successive steps. The sequence of inputs (or of
    their gradients) is the op's first operand (or result).

    Attributes:
        steps: time steps.
        batch, inputs, units: the number of sequences, and the elements of one sequence in one step: of an input, of a
            state.
        products: the products of one step.
        vertices: the vertices of one step. They lie as the states do; their elements are as many as the states', or a
            multiple.
        read, written, results: slices of a step, of inputs and of states: those read and written in sequences, and
            those that the products give.
        kept: slices of states that a forward step keeps for the backward pass.
        dtype: the type of the sequences.
        backward: the products come last.
        weights: index of the first of the op's two inputs that hold the weights.
        rows: values that each sequence has in a step; they are sent to the tiles of its state.
    """

    outlining: ClassVar[Outlining] = Outlining.HIGH

    steps: int
    batch: int
    inputs: int
    units: int
    products: tuple[MatMul, ...]
    vertices: tuple[Vertices, ...]
    read: tuple[int, int]
    written: tuple[int, int]
    results: tuple[int, int]
    kept: int
    dtype: DType
    backward: bool = False
    weights: int = 1
    rows: int = 0

    @property
    def flops(self) -> int:
        """The operations of all steps."""
        return self.steps * sum(work.flops for work in (*self.products, *self.vertices))


@dataclass(frozen=True)
class Convolution(Work):
    """One pass of a convolution; the planner chooses splits and vertices.

    The fields describe the *forward* convolution whatever the pass is (``fwd``, ``bwd``: gradient of the input, ``wu``:
    gradient of the weights), so that the three passes of a layer can be planned together.

    Attributes:
        batch, channels_in, channels_out: totals over all groups.
        input_size, kernel_size, strides, dilation: per spatial axis (one or more axes).
        padding: per spatial axis, elements before and after.
        groups: channel groups.
    """

    outlining: ClassVar[Outlining] = Outlining.HIGH

    batch: int
    channels_in: int
    channels_out: int
    input_size: tuple[int, ...]
    kernel_size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    input_dtype: DType
    output_dtype: DType
    partials_dtype: DType
    pass_: str = "fwd"
    available_memory_proportion: float = DEFAULT_SHARE

    @property
    def output_size(self) -> tuple[int, ...]:
        """Spatial shape of the forward result."""
        return tuple(
            # The last window begins where the spread kernel still fits.
            (n + pad_before + pad_after - d * (k - 1) - 1) // s + 1
            for n, k, s, (pad_before, pad_after), d in zip(
                self.input_size, self.kernel_size, self.strides, self.padding, self.dilation, strict=True
            )
        )

    @property
    def flops(self) -> int:
        """Multiplications and additions (the same in each pass)."""
        # In each pass every output position meets every kernel position once.
        positions = math.prod(self.output_size) * math.prod(self.kernel_size)
        return 2 * self.batch * positions * self.channels_in * self.channels_out // self.groups


@dataclass(frozen=True)
class MultiConvolution(Work):
    """Several convolutions that do not need each other's results and are planned together (PopLibs
    ``lib/poplin/MultiConvolution.cpp``).

    Attributes:
        convolutions: one for each result of the op, with the op's operands two by two.
        plan_type: ``parallel`` (at once, each on tiles of its own) or ``serial`` (one after the other on all tiles).
        reserved_tiles: in a parallel plan, the tiles reserved for each convolution but the largest.
        cycle_back_off: in a parallel plan, how much longer than its fastest plan the largest may take for each of the
            others (0.1: a tenth).
    """

    outlining: ClassVar[Outlining] = Outlining.HIGH

    convolutions: tuple[Convolution, ...]
    plan_type: str
    reserved_tiles: int
    cycle_back_off: float

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return sum(convolution.flops for convolution in self.convolutions)


@dataclass(frozen=True)
class SliceVertices(Work):
    """A compute set of DynamicSlice or DynamicUpdateSlice vertices.

    They run where the base tensor lies. When every tile has the same elements of each slice, as
    ``popops::createSliceableTensor`` maps it, only the index travels.

    Attributes:
        vertex: vertex type.
        elements: elements of the slice.
        cycles: tile cycles for a number of elements *of the slice* on a tile.
        writes: whether the slice is written to the base or read from it.
    """

    vertex: str
    elements: int
    cycles: TileCycles
    writes: bool


@dataclass(frozen=True)
class Lookup(Work):
    """``indices`` slices of a table of ``entries`` x ``width`` elements, in each of ``groups`` (popops ``multiSlice``);
    the planner splits table and indices over the tiles.

    ``available_memory_proportion``: share of a tile's memory that temporary data of the plan may take.
    """

    outlining: ClassVar[Outlining] = Outlining.HIGH

    entries: int
    width: int
    indices: int
    dtype: DType
    groups: int = 1
    available_memory_proportion: float = DEFAULT_SHARE


@dataclass(frozen=True)
class TableUpdate(Lookup):
    """``indices`` slices combined into the table by ``operation``, or written with ``NONE`` (popops
    ``multiUpdateAdd``, ``multiUpdate``).

    ``cleared``: the table is a result that is first filled with the operation's start value.
    ``copied``: it is a result into which an operand is copied first.
    """

    operation: str = "ADD"
    cleared: bool = False
    copied: bool = False

    @property
    def flops(self) -> int:
        """One operation for each element of the slices; sums also take a multiplication with the scale."""
        # The update vertex of sums multiplies by a scale first; writing computes nothing.
        return {"ADD": 2, "NONE": 0}.get(self.operation, 1) * self.groups * self.indices * self.width


@dataclass(frozen=True)
class Copy(Work):
    """Bytes of the result that must be moved between tiles or rearranged on a tile (transpose, concat, slice copy)."""

    bytes: int


@dataclass(frozen=True)
class TileSetTransfer(Work):
    """``bytes`` per replica over the internal exchange to the tile set ``destination`` of the same IPU."""

    destination: str
    bytes: int


@dataclass(frozen=True)
class InterIpuTransfer(Work):
    """``bytes`` per replica over IPU-Links from IPU ``source`` to IPU ``destination`` of the same replica."""

    outlining: ClassVar[Outlining] = Outlining.NEVER

    source: int
    destination: int
    bytes: int


@dataclass(frozen=True)
class HostTransfer(Work):
    """A stream copy of ``bytes`` per replica between host and IPU; ``stream`` is the id of the stream, ``direction``
    ``h2d`` or ``d2h``."""

    outlining: ClassVar[Outlining] = Outlining.NEVER

    stream: str
    direction: str
    bytes: int


@dataclass(frozen=True)
class RemoteAccess(Work):
    """A transfer of ``bytes`` per replica between a remote buffer and the IPU. ``direction``: ``load`` or ``store``."""

    outlining: ClassVar[Outlining] = Outlining.HIGH

    buffer: RemoteBuffer
    direction: str
    bytes: int


@dataclass(frozen=True)
class CodeLoad(Work):
    """The code of ``graph`` from Streaming Memory to the tiles that execute it."""

    outlining: ClassVar[Outlining] = Outlining.NEVER

    graph: Graph


@dataclass(frozen=True)
class GroupCollective(Work):
    """A collective between the replicas of each group of ``group``.

    ``kind``: ``all_reduce``, ``reduce_scatter`` or ``all_gather``. ``bytes``: the whole (unsharded) tensor on one
    replica; ``elements`` likewise. ``reduce`` is the operator (``add``, ``mean``, ``max``...), empty for a gather.
    ``operand`` is the index of the op's input that takes part; None: a value within the op, which lies spread over all
    tiles.
    """

    outlining: ClassVar[Outlining] = Outlining.HIGH

    kind: str
    reduce: str
    bytes: int
    elements: int
    dtype: DType
    group: ReplicaGrouping
    operand: int | None = 0

    @property
    def flops(self) -> int:
        """Multiplications that make a mean of a sum, on one replica. The simulation makes the additions in the
        rounds of the ring and counts them neither here nor in the trace."""
        # Only the division of a mean is computed on the tiles.
        if self.reduce != "mean":
            return 0
        # After a reduce-scatter each replica scales only its own part, rounded up.
        return self.elements if self.kind == "all_reduce" else -(-self.elements // self.group.group_size)


@dataclass(frozen=True)
class ReadCondition(Work):
    """Every tile reads the boolean (the op's first operand) that decides what the program executes next. It is one
    word (``bytes``) for each, as Poplar's control code branches on every tile by itself."""

    bytes: ClassVar[int] = 4


@dataclass(frozen=True)
class CallGraph(Work):
    """Execute a subgraph ``trips`` times."""

    graph: Graph
    trips: int = 1
