"""From work to steps: how each :mod:`ipuperf.ops.work` description becomes phases of one IPU.

A superstep is ``sync, exchange, compute``: tiles meet, data moves where operands do not already lie where the vertices
run, then vertices are launched and run. Phases carry one vector over tiles. Everything here is a pure function of the
op, the layouts of its operands and the chip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ipuperf.ir import BOOL, INT32, IrError, Tensor
from ipuperf.ops import vertices
from ipuperf.ops import work as w
from ipuperf.ops.base import Op
from ipuperf.ops.dynamic import Dynamic
from ipuperf.ops.shape import Reshape
from ipuperf.ops.update_vertices import fused_cycles

from . import code
from .code import CodeBytes
from .layout import Layout, distinct_elements, linear
from .planner.plan import ConvolutionPlan
from .reductions import plan_reduction
from .steps import Collective, InterIpuCopy, IpuTransfer, Phase, RemoteTransfer, Step, StreamCopy, Sync, TileSetCopy
from .tilevector import TileVector

if TYPE_CHECKING:
    from ipuperf.machine import Chip, Machine


@dataclass(slots=True)
class OpSteps:
    """What one op became.

    Attributes:
        steps: leaf steps in order.
        temp: temporary bytes per tile while the op runs (``None``: none).
        code: always-live code and state bytes per tile by category.
        vertices: vertex types whose code the op needs, with the tiles that hold it.
        low_confidence: names of costs without a primary source.
        elsewhere: always-live code of the op on other IPUs (the sender of a copy between IPUs).
        sender: always-live code of the op on the other tile set of its IPU (the sender of a copy between them).
        plans: of its products and convolutions.
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
        """The same for the op of this number in the op table."""
        steps = [step.for_op(op_id) for step in self.steps]
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

_LOWERINGS: dict[type[w.Work], Callable[[Superstepper, Any], None]] = {}


def lowers(kind: type[w.Work]) -> Callable[[Lowers], Lowers]:
    """Registers how work of this kind is lowered: a method of :class:`Superstepper`, or a function of one and the work.

    It appends steps to :attr:`Superstepper.out`, with the code and temporary memory they need, and may lay out results.
    """

    def register(function: Lowers) -> Lowers:
        _LOWERINGS[kind] = function
        return function

    return register


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
        self.gathered = False
        self.apart = False  # whether the op's last reduction was over several tiles

    # -- layouts ---------------------------------------------------------------------------------------------------

    def linear(self, tensor: Tensor) -> Layout:
        """Linear mapping for ``tensor``."""
        return self.spread(tensor.spec.elements, tensor.dtype.size)

    def spread(self, elements: int, size: int) -> Layout:
        """Linear mapping for so many elements of ``size`` bytes."""
        return linear(elements, size, self.chip.vector_width(size), self.chip.tiles)

    @cached_property
    def anchor(self) -> Layout:
        """Where the vertices run: on the tensor changed in place, else with the first operand of the result's size,
        else on a linear mapping of the result (or of the largest operand when there is no result)."""
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
                if whole and self.layouts[tensor].distinct is None:
                    return self.layouts[tensor]
            return self.linear(result)
        return self.layouts[max(op.inputs, key=lambda t: t.spec.elements)]

    def lay_out_views(self) -> None:
        """Lay out results that are views: reshaped as the operand, expanded like nothing else and spread evenly (a
        simplification); what is broadcast is there once."""
        op = self.op
        for index in op.views():
            tensor, layout = op.outputs[index], self.layouts[op.inputs[0]]
            if tensor in self.layouts:
                continue
            if isinstance(op, Reshape):
                self.layouts[tensor] = replace(layout, distinct=None)
                continue
            key = ("view", op.type, *op.attributes.values(), layout.key)
            self.layouts[tensor] = Layout(key, self.linear(tensor).elements, op.inputs[0].shape)

    def assign_outputs(self, anchor: Layout) -> None:
        """Lay out the op's results: aliases like what they alias, equal sizes like the anchor, others linearly."""
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
        """A sync and an exchange phase in which each tile receives ``bytes_in``, in so many ``cycles`` if it is known;
        ``sent``: bytes that each tile sends, to several others (:func:`~.code.exchange_code`)."""
        if bytes_in.total == 0:
            return
        self.out.steps.append(Sync(self.op_id, name, self.chip.sync_cycles))
        rate = self.chip.exchange_bytes_per_cycle
        setup = self.chip.exchange_setup_cycles
        if cycles is None:
            per_tile = bytes_in.map(lambda values: np.where(values > 0, setup - (-values // rate), 0)).merged()
        else:
            per_tile = TileVector.of(np.where(bytes_in.dense() > 0, setup + cycles.dense(), 0))
        self.out.steps.append(Phase(self.op_id, name, "exchange", per_tile, bytes_in.total, bytes_in.total))
        self.out.code += code.exchange_code(self.chip, bytes_in, sent)

    def compute(self, name: str, cycles: TileVector, *, flops: int = 0) -> None:
        """A compute phase: the launch of the compute set and ``cycles`` of its vertices."""
        self.out.steps.append(compute_set(self.op_id, name, cycles, self.machine, flops=flops))
        self.need_vertex(name, cycles.active)
        self.out.code += code.compute_code(self.chip)

    def need_vertex(self, name: str, tiles: int) -> None:
        """The code of a vertex type on at least so many tiles."""
        self.out.vertices[name] = max(self.out.vertices.get(name, 0), tiles)

    def gather_operands(self, anchor: Layout, reads: tuple[int, ...] | None = None) -> None:
        """Exchange so that each tile has the operand elements its vertices need; temporary copies of what moved.

        ``reads``: elements of each input that all vertices read (:attr:`ipuperf.ops.work.Vertices.operands`; none at
        all where it is empty, so that what comes later still finds its operands).
        """
        if self.gathered or reads == ():
            return
        self.gathered = True
        total = np.zeros(self.chip.tiles, dtype=np.int64)
        need, op = anchor.elements.dense(), self.op
        whole = (op.outputs[0] if op.outputs else op.inputs[min(op.modified_inputs(), default=0)]).shape
        for tensor in dict.fromkeys(self.op.inputs):
            layout = self.layouts[tensor]
            elements = tensor.spec.elements
            if layout.key == anchor.key or elements == 0:
                continue
            if reads is not None:
                read = max(n for n, operand in zip(reads, self.op.inputs, strict=True) if operand is tensor)
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
        """Lower all of the op's work (``works`` if it is known already).

        Raises:
            IrError: work of a kind that nothing is registered for.
        """
        for item in self.op.work() if works is None else works:
            self.lower(item)
        if not self.out.steps:
            self.lay_out_views()
        if self.op.outputs and any(t not in self.layouts for t in self.op.outputs):
            self.assign_outputs(self.anchor)
        return self.out

    def lower(self, item: w.Work) -> None:
        """Lower one piece of work, as registered for its class (:func:`lowers`)."""
        lowering = _LOWERINGS.get(type(item))
        if lowering is None:
            raise IrError(f"{self.op.where()}: no lowering for {type(item).__name__}")
        lowering(self, item)

    @lowers(w.Vertices)
    def vertices(self, item: w.Vertices) -> None:
        """Element-wise vertices on the anchor's tiles; a different element count is spread like the anchor."""
        self.gather_operands(self.anchor, item.operands)
        elements = self.anchor.elements
        if item.elements != self.anchor.total:
            size = self.op.outputs[0].dtype.size if self.op.outputs else self.op.inputs[0].dtype.size
            elements = self.spread(item.elements, size).elements
        if self.apart and item.reduced is not None:
            self.exchange(f"{item.vertex}/reduced", elements.map(item.reduced))
        self.compute(item.vertex, self.tile_cycles(item.cycles, elements), flops=item.flops)
        if item.low_confidence:
            self.out.low_confidence.append(f"{item.vertex} ({self.op.type})")

    def tile_cycles(self, formula: w.TileCycles, elements: TileVector) -> TileVector:
        """``formula`` applied to each run of ``elements``."""
        return elements.map(lambda values: formula(values, self.chip))

    @lowers(w.Reduction)
    def reduction(self, item: w.Reduction) -> None:
        """Partial reduction where the data lies, then the stages of :func:`~.reductions.plan_reduction`."""
        source = self.layouts[self.op.inputs[item.operand]]
        self.compute(item.vertex, self.tile_cycles(item.cycles, source.elements), flops=item.flops)
        stages = plan_reduction(source.elements, item, self.chip)
        self.apart = bool(stages)
        for stage in stages:
            self.exchange(f"{item.vertex}/partials", stage.arriving)
            self.out.need(stage.arriving)
            self.compute(item.vertex, self.tile_cycles(item.cycles, stage.partials))
            if stage.last_copy is not None:
                self.exchange(f"{item.vertex}/result", stage.last_copy)

    @lowers(w.Copy)
    def copy(self, item: w.Copy) -> None:
        """RearrangementPhase: the result's bytes arrive over the exchange and are put in place by on-tile copies; of
        several results all are spread as the largest."""
        target = max(self.op.outputs or self.op.inputs[:1], key=lambda tensor: tensor.spec.elements)
        modified = self.op.modified_inputs()
        layout = self.layouts[self.op.inputs[modified[0]]] if modified else self.linear(target)
        if item.bytes == 0:
            return
        size = target.dtype.size
        share = layout.elements.map(lambda values: -(-values * item.bytes // max(1, layout.total)))
        self.exchange(f"{self.op.type}/copy", share)
        self.compute(f"poplar::Memcpy{size * 8}", copy_cycles(share, self.machine))

    @lowers(w.ReadCondition)
    def read_condition(self, item: w.ReadCondition) -> None:
        """A sync and a broadcast to all tiles."""
        self.exchange(f"{self.op.type}/condition", TileVector.uniform(item.bytes, self.chip.tiles, self.chip.tiles))

    @lowers(w.HostTransfer)
    def host(self, item: w.HostTransfer) -> None:
        """A stream copy."""
        name = f"{self.op.type}({item.stream})"
        self.out.steps.append(StreamCopy(self.op_id, name, item.direction, item.bytes, item.stream))
        tensor = self.op.inputs[0]
        self.out.code += code.host_exchange_code(self.chip, self.layouts[tensor].bytes(tensor.dtype.size))

    @lowers(w.RemoteAccess)
    def remote(self, item: w.RemoteAccess) -> None:
        """A remote transfer; each tile's piece is at least one efficient DDR access."""
        tensor = self.op.inputs[0]
        share = self.layouts[tensor].bytes(tensor.dtype.size)
        packet = self.machine.ipu_machine.remote_packet_bytes
        wire = share.at_least(packet).total
        name = f"{self.op.type}(buffer {item.buffer.id})"
        self.out.steps.append(RemoteTransfer(self.op_id, name, item.direction, item.bytes, wire, item.buffer.id))
        self.out.code += code.host_exchange_code(self.chip, share)

    @lowers(w.CodeLoad)
    def code_load(self, item: w.CodeLoad) -> None:
        """A transfer whose bytes are written when the graph has been lowered (:mod:`.code_loading`)."""
        self.out.steps.append(RemoteTransfer(self.op_id, f"{self.op.type}({item.graph.name})", "load", 0, 0, 0))

    @lowers(w.InterIpuTransfer)
    def inter_ipu(self, item: w.InterIpuTransfer) -> None:
        """A copy between IPUs: the result lies on the tiles of the same numbers (or as the buffer it is written to; the
        exchange reaches any tile, so another layout costs nothing more)."""
        tensor, source = self.op.inputs[0], self.layouts[self.op.inputs[0]]
        name = f"{self.op.type}({item.source}->{item.destination})"
        self.out.steps.append(InterIpuCopy(self.op_id, name, (IpuTransfer(item.source, item.destination, item.bytes),)))
        one_way = code.global_exchange_code(self.chip, source.bytes(tensor.dtype.size))
        self.out.code += one_way
        self.out.elsewhere[item.source] = one_way
        if not self.op.aliases():
            self.layouts[self.op.outputs[0]] = source

    @lowers(w.TileSetTransfer)
    def tile_set_copy(self, item: w.TileSetTransfer) -> None:
        """A copy to the other tile set of the IPU, as long as its busiest tile sends or receives (a tile does either at
        the exchange's rate): with few I/O tiles those set the pace."""
        tensor, chip = self.op.inputs[0], self.chip
        size = tensor.dtype.size
        buffer = self.op.inputs[-1] if self.op.aliases() else None
        target = self.linear(tensor) if buffer is None else self.layouts[buffer]
        self.layouts[self.op.outputs[0]] = target
        arriving, leaving = target.bytes(size), self.layouts[tensor].bytes(size)
        cycles = chip.exchange_setup_cycles - (-max(arriving.max, leaving.max) // chip.exchange_bytes_per_cycle)
        name = f"{self.op.type}(to {item.destination})"
        self.out.steps.append(TileSetCopy(self.op_id, name, item.destination, item.bytes, chip.sync_cycles, cycles))
        self.out.code += code.exchange_code(self.chip, arriving)
        self.out.sender = code.exchange_code(self.chip, leaving)

    @lowers(w.SliceVertices)
    def dynamic_slice(self, item: w.SliceVertices) -> None:
        """Vertices where the base lies sliced; the index travels, and the slice when it lies elsewhere. A base that is
        not laid out for slicing is brought into such a layout first (and back after an update in place)."""
        op = self.op
        assert isinstance(op, Dynamic)
        base, part, size = op.base, op.part, op.base.dtype.size
        positions, count = positions_of(op)
        lies = self.layouts.get(base)
        unit = unit_layout(lies, op.axes, positions) if lies is not None else None
        moves = unit is None and base in op.inputs
        if unit is None:
            written = part is not None and part in self.layouts and count == 1
            unit = self.layouts[part] if written and part is not None else self.unit(base, positions)
        stacked, slices = stack(unit, op.axes, positions), stack(unit, op.axes, count)
        index, arriving = len(op.axes) * op.inputs[1].dtype.size, 0  # the latter for each element of one position
        if part is not None and part in op.inputs and self.layouts[part].key != slices.key:
            arriving += count * size
            self.out.need(slices.bytes(size))
        if moves:
            arriving += positions * size
            self.out.need(stacked.bytes(size))
        share = unit.elements.map(lambda values: np.where(values > 0, index, 0) + arriving * values)
        self.exchange(f"{op.type}/index", share.merged())
        self.compute(item.vertex, self.tile_cycles(item.cycles, slices.elements))
        if moves and lies is not None and op.modified_inputs():
            self.exchange(f"{op.type}/base", lies.bytes(size))
        if op.outputs[0] not in self.layouts and not op.aliases():
            self.layouts[op.outputs[0]] = slices if op.outputs[0] is part else stacked

    def unit(self, base: Tensor, positions: int) -> Layout:
        """Linear mapping of one position of a tensor that is to be sliced."""
        return self.spread(base.spec.elements // positions, base.dtype.size)

    @lowers(w.GroupCollective)
    def collective(self, item: w.GroupCollective) -> None:
        """A collective alone."""
        if item.operand is not None:
            self.collectives([(item, self.layouts[self.op.inputs[item.operand]])])
            return
        self.collectives([(item, self.spread(item.elements, item.dtype.size))])

    def collectives(self, items: Sequence[tuple[w.GroupCollective, Layout]]) -> None:
        """Rearrange to the collective's layout, the rounds, and back when the result is not sharded.

        ``items``: one collective, or several of one kind, operator, type and group that are done as one, each with the
        layout of its operand.
        """
        first, dtype = items[0][0], items[0][0].dtype
        size, layouts = first.group.group_size, [layout for _, layout in items]
        if size == 1:
            return
        held = layouts[0].elements
        for layout in layouts[1:]:
            held = held + layout.elements
        bytes_each = held.times(dtype.size)
        self.exchange(f"{self.op.type}/rearrange", bytes_each)
        elements = sum(item.elements for item, _ in items)
        chunk = self.spread(-(-elements // size), dtype.size).elements
        reduce = 0
        if first.reduce:
            adding = vertices.binary("ADD", dtype, chunk.total, in_place=True)
            reduce = self.tile_cycles(adding.cycles, chunk).max
        more = f" and {len(items) - 1} more" if len(items) > 1 else ""
        self.out.steps.append(
            Collective(self.op_id, f"{self.op.type}[{first.reduce or 'gather'}]{more}", first.kind,
                       sum(item.bytes for item, _ in items), first.group.groups, reduce)
        )  # fmt: skip
        if first.reduce == "mean":
            result = chunk if first.kind == "reduce_scatter" else held
            scale = vertices.broadcast_scalar("MULTIPLY", dtype, result.total, in_place=True)
            flops = chunk.total if first.kind == "reduce_scatter" else elements  # a view has its storage's layout
            self.compute(scale.vertex, self.tile_cycles(scale.cycles, result), flops=flops)
        self.out.need(chunk.times(dtype.size))
        loops = 2 if first.kind == "all_reduce" else 1  # the sums are scattered, then gathered
        self.out.code += code.global_exchange_code(self.chip, chunk.times(dtype.size), loops)
        if first.kind == "all_reduce":
            self.exchange(f"{self.op.type}/rearrange back", bytes_each)


def positions_of(op: Dynamic) -> tuple[int, int]:
    """Positions of the base along the sliced axes, and how many of them a slice has."""
    return math.prod(op.base_shape()[axis] for axis in op.axes), math.prod(op.sizes)


def stack(unit: Layout, axes: tuple[int, ...], positions: int) -> Layout:
    """A tensor of ``positions`` slices along ``axes`` that all lie as ``unit``, so that slicing moves nothing between
    tiles (``popops::createSliceableTensorFromSlice``)."""
    if positions == 1:
        return unit
    return Layout(("stacked", axes, positions, unit), unit.elements.times(positions))


def unit_layout(layout: Layout, axes: tuple[int, ...], positions: int) -> Layout | None:
    """How one position lies in ``layout``; None when it is not stacked along ``axes``."""
    if positions == 1:
        return layout
    key = layout.key
    if isinstance(key, tuple) and key[:3] == ("stacked", axes, positions):
        return key[3]
    return None


def superstep_cycles(chip: Chip, exchange: int | None, compute: int | None) -> int:
    """Cycles from the sync to the last vertex of a superstep whose longest exchange and vertices take so many (None:
    there are none), as :meth:`Superstepper.exchange` and :func:`compute_set` charge them."""
    moved = 0 if exchange is None else chip.sync_cycles + chip.exchange_setup_cycles + exchange
    return moved if compute is None else moved + chip.launch_cycles + compute


def compute_set(op_id: int, vertex: str, cycles: TileVector, machine: Machine, *, flops: int = 0) -> Phase:
    """A compute phase of ``cycles`` of vertices, launched on each tile that has any."""
    launch = machine.chip.launch_cycles
    return Phase(op_id, vertex, "compute", cycles.raised(launch), flops=flops, vertex=vertex, launch=launch)


def copy_cycles(share: TileVector, machine: Machine) -> TileVector:
    """Cycles of on-tile copies of ``share`` bytes."""
    rate, setup = machine.chip.memcpy_bytes_per_cycle, machine.chip.copy_setup_cycles
    return share.map(lambda values: np.where(values != 0, setup - (-values // rate), 0))


def on_tile_copy(op_id: int, tensor: Tensor, layout: Layout, machine: Machine) -> list[Step]:
    """A copy of a tensor that stays where it lies: one compute set of on-tile copies."""
    return on_tile_copies(op_id, [(layout, tensor.dtype.size)], machine)


def on_tile_copies(op_id: int, pieces: Sequence[tuple[Layout, int]], machine: Machine) -> list[Step]:
    """Copies of tensors (layout, bytes of an element) that stay where they lie, at once: one compute set, with one
    set-up."""
    if not pieces:
        return []
    share = _shares(pieces)
    name = f"poplar::Memcpy{max(size for _, size in pieces) * 8}"
    return [compute_set(op_id, name, copy_cycles(share, machine), machine)]


def local_copy(op_id: int, name: str, layout: Layout, size: int, machine: Machine) -> list[Step]:
    """Steps that bring a tensor of elements of ``size`` bytes into ``layout`` from another one (call operands)."""
    return local_copies(op_id, name, [(layout, size)], machine)


def local_copies(op_id: int, name: str, pieces: Sequence[tuple[Layout, int]], machine: Machine) -> list[Step]:
    """As :func:`local_copy` for tensors (layout, bytes of an element) that go together: one exchange."""
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
    """Bytes of all tensors (layout, bytes of an element) on each tile."""
    first, *others = (layout.bytes(size) for layout, size in pieces)
    return reduce(TileVector.__add__, others, first)


def trip_control(op_id: int, name: str, machine: Machine) -> list[Step]:
    """What a trip of a conditional loop takes beside its body (PopART popx/op/loopx.cpp): one tile works out whether to
    leave the loop from four scalars, all tiles learn it, one tile counts."""
    tiles, word = machine.chip.tiles, w.ReadCondition.bytes
    leave = TileVector.of(fused_cycles(BOOL, 4, 0, 4)(np.eye(1, tiles, dtype=np.int64)[0], machine.chip))
    count = TileVector.of(fused_cycles(INT32, 1, 0, 1)(np.eye(1, tiles, dtype=np.int64)[0], machine.chip))
    cycles = TileVector.uniform(machine.chip.exchange_setup_cycles + 1, tiles, tiles)
    return [
        compute_set(op_id, "popops::map<bool>", leave, machine),
        Sync(op_id, f"{name}/condition", machine.chip.sync_cycles),
        Phase(op_id, f"{name}/condition", "exchange", cycles, word * tiles, word * tiles),
        compute_set(op_id, "popops::map<int>", count, machine),
    ]
