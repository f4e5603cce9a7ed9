"""From work to steps: how each :mod:`ipuperf.ops.work` description becomes phases of one IPU.

A superstep is ``sync, exchange, compute``. The tiles meet, operands move to where the vertices run unless they already
lie there, and the vertices are launched and run. A phase carries one vector over tiles. Everything here is a pure
function of the op, the layouts of its operands and the chip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, TypeVar, cast

import numpy as np

from ipuperf.ir import BOOL, INT32, IrError, Tensor
from ipuperf.machine import Chip, Machine
from ipuperf.ops import vertices
from ipuperf.ops import work as w
from ipuperf.ops.base import Op
from ipuperf.ops.selection.dynamic import Dynamic
from ipuperf.ops.shape import Reshape
from ipuperf.ops.updates.update_vertices import fused_cycles

from . import code
from .code import CodeBytes
from .layout import Layout, distinct_elements, linear
from .planner.plan import ConvolutionPlan
from .reductions import plan_reduction
from .steps import Collective, InterIpuCopy, IpuTransfer, Phase, RemoteTransfer, Step, StreamCopy, Sync, TileSetCopy
from .tilevector import TileVector


@dataclass(slots=True)
class OpSteps:
    """The steps of one op, and the memory and code that they need.

    Attributes:
        steps: leaf steps in order.
        temp: temporary bytes per tile while the op runs (``None``: none).
        code: always-live code and state bytes per tile by category.
        vertices: vertex types whose code the op needs, with the tiles that hold it.
        low_confidence: names of costs without a primary source.
        elsewhere: always-live code of the op on other IPUs (the sender of a copy between IPUs).
        sender: always-live code of the op on the other tile set of its IPU (the sender of a copy between them).
        plans: plans of its products and convolutions.
    """

    steps: list[Step] = field(default_factory=list)
    temp: TileVector | None = None
    code: CodeBytes = field(default_factory=CodeBytes)
    vertices: dict[str, int] = field(default_factory=dict)
    low_confidence: list[str] = field(default_factory=list)
    elsewhere: dict[int, CodeBytes] = field(default_factory=dict)
    sender: CodeBytes | None = None
    plans: tuple[ConvolutionPlan, ...] = ()

    def for_op(self, op_id: int) -> OpSteps:
        """The same steps for the op with this number in the op table."""
        # The passes of a product and the time steps of a sequence are few objects, and stay so.
        distinct = {id(step): step for step in self.steps}
        copies = {number: step.for_op(op_id) for number, step in distinct.items()}
        steps = [copies[id(step)] for step in self.steps]
        return OpSteps(
            steps, self.temp, self.code, self.vertices, self.low_confidence, self.elsewhere, self.sender, self.plans
        )

    def need(self, temp: TileVector) -> None:
        """Raise the temporary memory to at least ``temp`` on every tile."""
        if self.temp is None:
            self.temp = temp
        else:
            self.temp = TileVector.of(np.maximum(self.temp.dense(), temp.dense()))


Lowers = TypeVar("Lowers", bound=Callable[..., None])

# Filled by :func:`lowers`.
_LOWERINGS: dict[type[w.Work], Callable[[Superstepper, Any], None]] = {}


def lowers(kind: type[w.Work]) -> Callable[[Lowers], Lowers]:
    """Register how work of this kind is lowered: a :class:`Superstepper` method, or a function like one.

    The function appends steps to :attr:`Superstepper.out`, with the code and temporary memory they need. It may also
    lay out results.
    """

    def register(function: Lowers) -> Lowers:
        _LOWERINGS[kind] = function
        return function

    return register


def is_extended() -> bool:
    """Whether somebody else's code lowers some kind of work: no digest of our code then says what lowering gives."""
    # Code that is executed as text may have no module.
    return any(not str(function.__module__).startswith("ipuperf.") for function in _LOWERINGS.values())


class Superstepper:
    """Builds the steps of one op on one IPU.

    Args:
        op: the op.
        op_id: its index in the program's op table.
        layouts: where the op's inputs lie (every input must be there); results are added.
        machine: the machine.
    """

    def __init__(self, op: Op, op_id: int, layouts: dict[Tensor, Layout], machine: Machine) -> None:
        self.op = op
        self.op_id = op_id
        self.layouts = layouts
        self.machine = machine
        self.chip = machine.chip
        self.out = OpSteps()
        # Whether the operands have been brought to the vertices, which happens once for an op.
        self.gathered = False
        # Whether the op's last reduction went over several tiles, so that its result must travel back.
        self.apart = False

    # -- layouts ---------------------------------------------------------------------------------------------------

    def linear(self, tensor: Tensor) -> Layout:
        """Linear mapping for ``tensor``."""
        return self.spread(tensor.spec.elements, tensor.dtype.size)

    def spread(self, elements: int, size: int) -> Layout:
        """Linear mapping of ``elements`` elements of ``size`` bytes."""
        return linear(elements, size, self.chip.vector_width(size), self.chip.tiles)

    @cached_property
    def anchor(self) -> Layout:
        """The layout by which the vertices run.

        This is the layout of the tensor changed in place, otherwise of the first operand of the result's size,
        otherwise a linear mapping of the result. Without a result it is the layout of the largest operand.
        """
        op = self.op
        modified = op.modified_inputs()
        if modified:
            return self.layouts[op.inputs[modified[0]]]
        if op.outputs:
            result = op.outputs[0]
            if not op.inputs and result in self.layouts:
                return self.layouts[result]
            for tensor in op.inputs:
                whole = tensor.spec.elements == result.spec.elements and tensor.spec.elements > 1
                # A view that repeats elements holds each once, so it does not say where all vertices run.
                if whole and self.layouts[tensor].distinct is None:
                    return self.layouts[tensor]
            return self.linear(result)
        return self.layouts[max(op.inputs, key=lambda t: t.spec.elements)]

    def lay_out_views(self) -> None:
        """Lay out results that are views.

        A reshaped tensor lies as its operand. Other views get a layout of their own and are spread evenly (a
        simplification); elements that are broadcast exist once.
        """
        op = self.op
        for index in op.views():
            tensor, layout = op.outputs[index], self.layouts[op.inputs[0]]
            if tensor in self.layouts:
                continue
            if isinstance(op, Reshape):
                # A reshape may split or join the axes that ``distinct`` is aligned to.
                self.layouts[tensor] = replace(layout, distinct=None)
                continue
            key = ("view", op.type, *op.attributes.values(), layout.key)
            self.layouts[tensor] = Layout(key, self.linear(tensor).elements, op.inputs[0].shape)

    def assign_outputs(self, anchor: Layout) -> None:
        """Lay out the op's results: aliases as their operand, results of the anchor's size as it, others linearly."""
        aliases = self.op.aliases()
        for index, tensor in enumerate(self.op.outputs):
            if tensor in self.layouts:
                continue
            if index in aliases:
                self.layouts[tensor] = self.layouts[self.op.inputs[aliases[index]]]
            elif tensor.spec.elements == anchor.total:
                self.layouts[tensor] = anchor
            else:
                self.layouts[tensor] = self.linear(tensor)

    # -- phases ----------------------------------------------------------------------------------------------------

    def exchange(
        self, name: str, bytes_in: TileVector, *, cycles: TileVector | None = None, sent: int | None = None
    ) -> None:
        """Append a sync and an exchange phase in which each tile receives ``bytes_in``.

        ``cycles``: how long the tiles receive; by default it follows from the bytes. ``sent``: bytes that each tile
        sends to several others (:func:`~.code.exchange_code`).
        """
        # Operands that already lie where the vertices run need neither exchange nor sync.
        if bytes_in.total == 0:
            return
        self.out.steps.append(Sync(self.op_id, name, self.chip.sync_cycles))
        rate = self.chip.exchange_bytes_per_cycle
        setup = self.chip.exchange_setup_cycles
        if cycles is None:
            # Minus the floor of a negative quotient is plus the quotient rounded up.
            per_tile = bytes_in.map(lambda values: np.where(values > 0, setup - (-values // rate), 0)).merged()
        else:
            per_tile = TileVector.of(np.where(bytes_in.dense() > 0, setup + cycles.dense(), 0))
        # The exchange stays within the IPU, so as many bytes leave its tiles as arrive.
        self.out.steps.append(Phase(self.op_id, name, "exchange", per_tile, bytes_in.total, bytes_in.total))
        self.out.code += code.exchange_code(self.chip, bytes_in, sent)

    def compute(self, name: str, cycles: TileVector, *, flops: int = 0) -> None:
        """Append a compute phase: the launch of the compute set and ``cycles`` of its vertices."""
        self.out.steps.append(compute_set(self.op_id, name, cycles, self.machine, flops=flops))
        self.need_vertex(name, cycles.active)
        self.out.code += code.compute_code(self.chip)

    def need_vertex(self, name: str, tiles: int) -> None:
        """Note that the code of a vertex type is needed on at least ``tiles`` tiles."""
        self.out.vertices[name] = max(self.out.vertices.get(name, 0), tiles)

    def gather_operands(self, anchor: Layout, reads: tuple[int, ...] | None = None) -> None:
        """Append an exchange that brings each tile the operand elements its vertices need, into temporary copies.

        ``reads``: elements of each input that all vertices read (:attr:`ipuperf.ops.work.Vertices.operands`). Where it
        is empty nothing is gathered, so that later work of the op still gathers its operands.
        """
        if self.gathered or reads == ():
            return
        self.gathered = True
        total = np.zeros(self.chip.tiles, dtype=np.int64)
        need, op = anchor.elements.dense(), self.op
        whole = (op.outputs[0] if op.outputs else op.inputs[min(op.modified_inputs(), default=0)]).shape
        # A tensor that is given twice is sent once.
        for tensor in dict.fromkeys(self.op.inputs):
            layout = self.layouts[tensor]
            elements = tensor.spec.elements
            if layout.key == anchor.key or elements == 0:
                continue
            if reads is not None:
                read = max(n for n, operand in zip(reads, self.op.inputs, strict=True) if operand is tensor)
                # A tile reads in proportion to the results it computes, and no element twice.
                arriving = np.minimum(-(-need * read // max(1, anchor.total)), elements)
            elif layout.distinct is None and elements == anchor.total:
                arriving = need
            else:
                arriving = np.minimum(need, distinct_elements(layout.distinct or tensor.shape, whole, need))
            total += arriving * tensor.dtype.size
        if total.any():
            vector = TileVector.of(total)
            self.exchange(f"{self.op.type}/operands", vector)
            self.out.need(vector)

    # -- work ------------------------------------------------------------------------------------------------------

    def run(self, works: Sequence[w.Work] | None = None) -> OpSteps:
        """Lower all of the op's work, or ``works`` if they are already known.

        Raises:
            IrError: work of a kind that nothing is registered for.
        """
        for work in self.op.work() if works is None else works:
            self.lower(work)
        # An op without steps moves nothing, so its results are views of its operands.
        if not self.out.steps:
            self.lay_out_views()
        if self.op.outputs and any(t not in self.layouts for t in self.op.outputs):
            self.assign_outputs(self.anchor)
        return self.out

    def lower(self, work: w.Work) -> None:
        """Lower one piece of work, as registered for its class (:func:`lowers`)."""
        lowering = _LOWERINGS.get(type(work))
        if lowering is None:
            raise IrError(f"{self.op.where()}: no lowering for {type(work).__name__}")
        lowering(self, work)

    @lowers(w.Vertices)
    def vertices(self, work: w.Vertices) -> None:
        """Append element-wise vertices on the anchor's tiles; another count of elements is mapped linearly."""
        self.gather_operands(self.anchor, work.operands)
        elements = self.anchor.elements
        if work.elements != self.anchor.total:
            size = self.op.outputs[0].dtype.size if self.op.outputs else self.op.inputs[0].dtype.size
            elements = self.spread(work.elements, size).elements
        # A result that was reduced over several tiles must first get to the tiles that read it.
        if self.apart and work.reduced is not None:
            self.exchange(f"{work.vertex}/reduced", elements.map(work.reduced))
        self.compute(work.vertex, self.tile_cycles(work.cycles, elements), flops=work.flops)
        if work.low_confidence:
            self.out.low_confidence.append(f"{work.vertex} ({self.op.type})")

    def tile_cycles(self, formula: w.TileCycles, elements: TileVector) -> TileVector:
        """``formula`` applied to each run of ``elements``."""
        return elements.map(lambda values: formula(values, self.chip))

    @lowers(w.Reduction)
    def reduction(self, work: w.Reduction) -> None:
        """Append a partial reduction where the data lies, then the stages of :func:`~.reductions.plan_reduction`."""
        source = self.layouts[self.op.inputs[work.operand]]
        self.compute(work.vertex, self.tile_cycles(work.cycles, source.elements), flops=work.flops)
        stages = plan_reduction(source.elements, work, self.chip)
        self.apart = bool(stages)
        for stage in stages:
            self.exchange(f"{work.vertex}/partials", stage.arriving)
            self.out.need(stage.arriving)
            self.compute(work.vertex, self.tile_cycles(work.cycles, stage.partials))
            if stage.last_copy is not None:
                self.exchange(f"{work.vertex}/result", stage.last_copy)

    @lowers(w.Copy)
    def copy(self, work: w.Copy) -> None:
        """Append an exchange by which the result's bytes arrive, then on-tile copies that put them in place.

        Several results are all spread as the largest one.
        """
        target = max(self.op.outputs or self.op.inputs[:1], key=lambda tensor: tensor.spec.elements)
        modified = self.op.modified_inputs()
        layout = self.layouts[self.op.inputs[modified[0]]] if modified else self.linear(target)
        if work.bytes == 0:
            return
        size = target.dtype.size
        share = layout.elements.map(lambda values: -(-values * work.bytes // max(1, layout.total)))
        self.exchange(f"{self.op.type}/copy", share)
        self.compute(f"poplar::Memcpy{size * 8}", copy_cycles(share, self.machine))

    @lowers(w.ReadCondition)
    def read_condition(self, work: w.ReadCondition) -> None:
        """Append a sync and a broadcast to all tiles."""
        self.exchange(f"{self.op.type}/condition", TileVector.uniform(work.bytes, self.chip.tiles, self.chip.tiles))

    @lowers(w.HostTransfer)
    def host(self, work: w.HostTransfer) -> None:
        """Append a stream copy."""
        name = f"{self.op.type}({work.stream})"
        self.out.steps.append(StreamCopy(self.op_id, name, work.direction, work.bytes, work.stream))
        tensor = self.op.inputs[0]
        self.out.code += code.host_exchange_code(self.chip, self.layouts[tensor].bytes(tensor.dtype.size))

    @lowers(w.RemoteAccess)
    def remote(self, work: w.RemoteAccess) -> None:
        """Append a remote transfer; the piece of each tile is at least one efficient DDR access."""
        tensor = self.op.inputs[0]
        share = self.layouts[tensor].bytes(tensor.dtype.size)
        packet = self.machine.ipu_machine.remote_packet_bytes
        wire = share.at_least(packet).total
        name = f"{self.op.type}(buffer {work.buffer.id})"
        self.out.steps.append(RemoteTransfer(self.op_id, name, work.direction, work.bytes, wire, work.buffer.id))
        self.out.code += code.host_exchange_code(self.chip, share)

    @lowers(w.CodeLoad)
    def code_load(self, work: w.CodeLoad) -> None:
        """Append a transfer whose bytes are filled in once the graph has been lowered (:mod:`.code_loading`)."""
        self.out.steps.append(RemoteTransfer(self.op_id, f"{self.op.type}({work.graph.name})", "load", 0, 0, 0))

    @lowers(w.InterIpuTransfer)
    def inter_ipu(self, work: w.InterIpuTransfer) -> None:
        """Append a copy between IPUs.

        The result lies on the tiles with the same numbers, or as the buffer it is written to. The exchange reaches any
        tile, so another layout costs nothing more.
        """
        tensor, source = self.op.inputs[0], self.layouts[self.op.inputs[0]]
        name = f"{self.op.type}({work.source}->{work.destination})"
        self.out.steps.append(InterIpuCopy(self.op_id, name, (IpuTransfer(work.source, work.destination, work.bytes),)))
        one_way = code.global_exchange_code(self.chip, source.bytes(tensor.dtype.size))
        self.out.code += one_way
        # The sender needs as much code as the receiver.
        self.out.elsewhere[work.source] = one_way
        if not self.op.aliases():
            self.layouts[self.op.outputs[0]] = source

    @lowers(w.TileSetTransfer)
    def tile_set_copy(self, work: w.TileSetTransfer) -> None:
        """Append a copy to the other tile set of the IPU.

        It lasts as long as the busiest tile sends or receives, each at the rate of the exchange. Few I/O tiles
        therefore set the pace.
        """
        tensor, chip = self.op.inputs[0], self.chip
        size = tensor.dtype.size
        buffer = self.op.inputs[-1] if self.op.aliases() else None
        target = self.linear(tensor) if buffer is None else self.layouts[buffer]
        self.layouts[self.op.outputs[0]] = target
        arriving, leaving = target.bytes(size), self.layouts[tensor].bytes(size)
        cycles = chip.exchange_setup_cycles - (-max(arriving.max, leaving.max) // chip.exchange_bytes_per_cycle)
        name = f"{self.op.type}(to {work.destination})"
        self.out.steps.append(TileSetCopy(self.op_id, name, work.destination, work.bytes, chip.sync_cycles, cycles))
        self.out.code += code.exchange_code(self.chip, arriving)
        self.out.sender = code.exchange_code(self.chip, leaving)

    @lowers(w.SliceVertices)
    def dynamic_slice(self, work: w.SliceVertices) -> None:
        """Append vertices on the tiles of the base, and the exchange of the index and, if it lies elsewhere, the slice.

        A base that is not laid out for slicing is first brought into such a layout, and back after an update in place.
        """
        op = self.op
        assert isinstance(op, Dynamic)
        base, part, size = op.base, op.part, op.base.dtype.size
        positions, count = positions_of(op)
        base_layout = self.layouts.get(base)
        unit = unit_layout(base_layout, op.axes, positions) if base_layout is not None else None
        moves = unit is None and base in op.inputs
        if unit is None:
            # A part of several positions does not tell how a single one lies.
            written = part is not None and part in self.layouts and count == 1
            unit = (
                self.layouts[part]
                if written and part is not None
                else self.spread(base.spec.elements // positions, size)
            )
        stacked, slices = stack(unit, op.axes, positions), stack(unit, op.axes, count)
        # Bytes of the index on every tile; bytes that arrive for each element of one position.
        index_bytes, arriving = len(op.axes) * op.inputs[1].dtype.size, 0
        if part is not None and part in op.inputs and self.layouts[part].key != slices.key:
            arriving += count * size
            self.out.need(slices.bytes(size))
        if moves:
            arriving += positions * size
            self.out.need(stacked.bytes(size))
        share = unit.elements.map(lambda values: np.where(values > 0, index_bytes, 0) + arriving * values)
        self.exchange(f"{op.type}/index", share.merged())
        self.compute(work.vertex, self.tile_cycles(work.cycles, slices.elements))
        if moves and base_layout is not None and op.modified_inputs():
            self.exchange(f"{op.type}/base", base_layout.bytes(size))
        if op.outputs[0] not in self.layouts and not op.aliases():
            self.layouts[op.outputs[0]] = slices if op.outputs[0] is part else stacked

    @lowers(w.GroupCollective)
    def collective(self, work: w.GroupCollective) -> None:
        """Append a collective that is not merged with others."""
        if work.operand is not None:
            self.collectives([(work, self.layouts[self.op.inputs[work.operand]])])
            return
        self.collectives([(work, self.spread(work.elements, work.dtype.size))])

    def collectives(self, works: Sequence[tuple[w.GroupCollective, Layout]]) -> None:
        """Append a rearrangement to the collective's layout, its rounds, and the way back unless the result is sharded.

        ``works``: the collectives, each with the layout of its operand. Several must agree in kind, operator, type and
        group; they become one.
        """
        head, dtype = works[0][0], works[0][0].dtype
        size, layouts = head.group.group_size, [layout for _, layout in works]
        if size == 1:
            return
        total_elements_by_tile = layouts[0].elements
        for layout in layouts[1:]:
            total_elements_by_tile = total_elements_by_tile + layout.elements
        bytes_each = total_elements_by_tile.times(dtype.size)
        self.exchange(f"{self.op.type}/rearrange", bytes_each)
        elements = sum(work.elements for work, _ in works)
        # Each replica reduces one chunk. Rounded up, so that the chunks together hold all elements.
        chunk = self.spread(-(-elements // size), dtype.size).elements
        reduce_cycles = 0
        if head.reduce:
            adding = vertices.binary("ADD", dtype, chunk.total, in_place=True)
            # A round waits for its slowest tile.
            reduce_cycles = self.tile_cycles(adding.cycles, chunk).max
        suffix = f" and {len(works) - 1} more" if len(works) > 1 else ""
        self.out.steps.append(
            Collective(
                self.op_id,
                f"{self.op.type}[{head.reduce or 'gather'}]{suffix}",
                head.kind,
                sum(work.bytes for work, _ in works),
                head.group.groups,
                reduce_cycles,
            )
        )
        if head.reduce == "mean":
            result = chunk if head.kind == "reduce_scatter" else total_elements_by_tile
            scale = vertices.broadcast_scalar("MULTIPLY", dtype, result.total, in_place=True)
            # Not the total of the layouts, because a view has the layout of its storage.
            flops = chunk.total if head.kind == "reduce_scatter" else elements
            self.compute(scale.vertex, self.tile_cycles(scale.cycles, result), flops=flops)
        self.out.need(chunk.times(dtype.size))
        # An all-reduce scatters the sums, then gathers them.
        loops = 2 if head.kind == "all_reduce" else 1
        self.out.code += code.global_exchange_code(self.chip, chunk.times(dtype.size), loops)
        if head.kind == "all_reduce":
            self.exchange(f"{self.op.type}/rearrange back", bytes_each)


def positions_of(op: Dynamic) -> tuple[int, int]:
    """Positions of the base along the sliced axes, and how many of them a slice has."""
    return math.prod(op.base_shape()[axis] for axis in op.axes), math.prod(op.sizes)


def stack(unit: Layout, axes: tuple[int, ...], positions: int) -> Layout:
    """Layout of ``positions`` slices along ``axes``, each of which lies as ``unit``.

    Slicing such a tensor moves nothing between tiles (``popops::createSliceableTensorFromSlice``).
    """
    if positions == 1:
        return unit
    return Layout(("stacked", axes, positions, unit), unit.elements.times(positions))


def unit_layout(layout: Layout, axes: tuple[int, ...], positions: int) -> Layout | None:
    """Layout of one position in ``layout``; None when ``layout`` is not stacked along ``axes``."""
    if positions == 1:
        return layout
    key = layout.key
    stacked = isinstance(key, tuple) and key[:3] == ("stacked", axes, positions)
    return cast(tuple[Any, ...], key)[3] if stacked else None


def superstep_cycles(chip: Chip, exchange: int | None, compute: int | None) -> int:
    """Cycles of a superstep from its sync to its last vertex.

    ``exchange`` and ``compute`` are the longest on any tile, None where there are none. The charges are those of
    :meth:`Superstepper.exchange` and :func:`compute_set`.
    """
    moved = 0 if exchange is None else chip.sync_cycles + chip.exchange_setup_cycles + exchange
    return moved if compute is None else moved + chip.launch_cycles + compute


def compute_set(op_id: int, vertex: str, cycles: TileVector, machine: Machine, *, flops: int = 0) -> Phase:
    """A compute phase of ``cycles`` of vertices; each tile that has vertices also pays the launch."""
    launch = machine.chip.launch_cycles
    return Phase(op_id, vertex, "compute", cycles.raised(launch), flops=flops, vertex=vertex, launch=launch)


def copy_cycles(share: TileVector, machine: Machine) -> TileVector:
    """Cycles of on-tile copies of ``share`` bytes."""
    rate, setup = machine.chip.memcpy_bytes_per_cycle, machine.chip.copy_setup_cycles
    return share.map(lambda values: np.where(values != 0, setup - (-values // rate), 0))


def on_tile_copies(op_id: int, pieces: Sequence[tuple[Layout, int]], machine: Machine) -> list[Step]:
    """Copies of tensors that stay where they lie, in one compute set with one set-up.

    ``pieces``: layout and bytes of an element of each tensor.
    """
    if not pieces:
        return []
    share = _shares(pieces)
    name = f"poplar::Memcpy{max(size for _, size in pieces) * 8}"
    return [compute_set(op_id, name, copy_cycles(share, machine), machine)]


def local_copies(op_id: int, name: str, pieces: Sequence[tuple[Layout, int]], machine: Machine) -> list[Step]:
    """Steps that bring tensors from other layouts into these, in one exchange.

    ``pieces``: as in :func:`on_tile_copies`.
    """
    if not pieces:
        return []
    chip = machine.chip
    dense = _shares(pieces).dense()
    cycles = TileVector.of(
        np.where(dense > 0, chip.exchange_setup_cycles - (-dense // chip.exchange_bytes_per_cycle), 0)
    )
    total = int(dense.sum())
    return [Sync(op_id, name, chip.sync_cycles), Phase(op_id, name, "exchange", cycles, total, total)]


def _shares(pieces: Sequence[tuple[Layout, int]]) -> TileVector:
    """Bytes of all tensors on each tile; ``pieces`` as in :func:`on_tile_copies`."""
    total, *others = (layout.bytes(size) for layout, size in pieces)
    return reduce(TileVector.__add__, others, total)


def trip_control(op_id: int, name: str, machine: Machine) -> list[Step]:
    """Steps of a trip of a conditional loop besides its body (PopART popx/op/loopx.cpp).

    One tile works out from four scalars whether to leave the loop, all tiles receive the answer, and one tile counts.
    The counter and the decision lie on that tile (mapTensorLinearly). The number of trips, a constant, and the
    condition, an input of the body, arrive from others: PopART gives each tensor without a layout of its own a tile
    after that of the last one (popx/linearmapper.hpp).
    """
    tiles, word = machine.chip.tiles, w.ReadCondition.bytes
    # One element on the first tile: only that tile runs the vertex.
    leave = TileVector.of(fused_cycles(BOOL, 4, 0, 4)(np.eye(1, tiles, dtype=np.int64)[0], machine.chip))
    count = TileVector.of(fused_cycles(INT32, 1, 0, 1)(np.eye(1, tiles, dtype=np.int64)[0], machine.chip))

    def words(payload: str, number: int, receivers: int) -> list[Step]:
        """``number`` words that arrive on each of ``receivers`` tiles, one in a cycle."""
        cycles = TileVector.uniform(machine.chip.exchange_setup_cycles + number, tiles, receivers)
        size = number * word * receivers
        path = f"{name}/{payload}"
        return [
            Sync(op_id, path, machine.chip.sync_cycles),
            Phase(op_id, path, "exchange", cycles, size, size),
        ]

    return [
        *words("trips and condition", 2, 1),
        compute_set(op_id, "popops::map<bool>", leave, machine),
        *words("answer", 1, tiles),
        compute_set(op_id, "popops::map<int>", count, machine),
    ]
