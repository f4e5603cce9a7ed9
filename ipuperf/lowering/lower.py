"""``lower(ir, machine) -> DeviceProgram``: graphs of ops become trees of steps on IPUs.

Each graph becomes one function per IPU that takes part in it; its operand layouts are those of its first call. A later
call with operands laid out differently copies them into place. Layouts of variables follow their first use: the
parameter operand of a matrix product lies as the product reads it, a stash lies so that each of its slices lies as what
is written to it, the buffer of a copy between IPUs lies as its source, everything else linearly. What is written to a
stash or buffer is known only after lowering, so for programs that have them a draft without steps is made first.

Ops that are alike are lowered once (:mod:`.alike`); neighbouring copies become one exchange (:mod:`.merging`), on
request neighbouring collectives one collective (:mod:`.collective_merging`).

A program is one for all IPUs of a replica: where one of them communicates, the others meet it at that place of their
lists (:class:`.steps.ExternalSync`) and go on, so that communication of different IPUs comes in the program's order.

Simplifications (``docs/accuracy.md``): a call copies operands only when their layout differs or the callee changes
them (unchanged operands and results are aliased, as by PopART's ``aliasZeroCopy``, which PopXL sets; calls of outlined
functions copy them, see :mod:`.function_calls`); element-wise ops are not fused.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from ipuperf.ir import Graph, Ir, IrError, Tensor, phases_of
from ipuperf.ir.collector import collector_paused
from ipuperf.kinds import checked
from ipuperf.machine import MachineError
from ipuperf.ops.base import Op
from ipuperf.ops.control import Call as CallOp
from ipuperf.ops.control import If, Loop, modified_graph_inputs
from ipuperf.ops.dynamic import Dynamic
from ipuperf.ops.float8 import needed_architecture
from ipuperf.ops.io_tile_copy import IoTileCopy
from ipuperf.ops.ipu_copy import IpuCopy
from ipuperf.ops.work import CallGraph, ReadCondition

from . import branches, lookups, products, recurrences  # noqa: F401 (the last three register how their works are lowered)
from .alike import Known
from .code_loading import loaded_codes, write_transfers
from .collective_merging import NO_MERGING, CollectiveMerging, merge_collectives
from .fitting import DoesNotFitError, memory_warnings
from .function_calls import add_copies, shared_code
from .layout import Layout
from .lowered import CallCopies, LoweredGraph, LoweredOp
from .memory import MemoryModel
from .merging import merge_exchanges
from .outlining import value_of
from .placement import ipus_per_replica
from .places import Places
from .program import DeviceProgram, OpInfo, ProgramWarning
from .steps import (
    Call,
    Collective,
    ExternalSync,
    InterIpuCopy,
    IoTiles,
    IpuTransfer,
    RemoteTransfer,
    Repeat,
    Sequence,
    Step,
)
from .streaming_memory import check_streaming_memory
from .supersteps import (
    OpSteps,
    Superstepper,
    local_copies,
    local_copy,
    on_tile_copies,
    on_tile_copy,
    trip_control,
)
from .tile_sets import IO, TileSets

if TYPE_CHECKING:
    from ipuperf.machine import Machine

    from .planner.plan import ConvolutionPlan

#: Who stands while any IPU copies to or from the host (PopART's ``SyncPattern``).
SYNC_PATTERNS = ("full", "single_pipeline", "replica_and_ladder")

_COMMUNICATING = (InterIpuCopy, Collective, RemoteTransfer)
"""Steps before which IPUs may meet that take no part in them (:meth:`Lowering.meeting`)."""


class Lowering(Places):
    """Lowers one program; use :func:`lower`.

    Args:
        known: what is known about the program's ops.
        found: the draft, if there is one: where tensors lie and which layouts they should have.
        merging: which collectives become one.
        draft: only find out where tensors lie; no steps are made.
        outlining: see :func:`lower`.

    Attributes:
        ops: the op table.
        graphs: lowered graphs.
        phases: what each op is for.
        low_confidence: names of costs without a primary source.
    """

    def __init__(
        self,
        ir: Ir,
        machine: Machine,
        name: str,
        sync_pattern: str,
        known: Known,
        found: Lowering | None = None,
        *,
        merging: CollectiveMerging = NO_MERGING,
        draft: bool = False,
        outlining: float | None = None,
    ) -> None:
        super().__init__(ir, TileSets(machine, ir.num_io_tiles), found)
        self.merging = merging
        self.name = name
        self.sync_pattern = sync_pattern
        self.known = known
        self.draft = draft
        self.outlining = outlining
        self.ipus: int = found.ipus if found else ipus_per_replica(ir)
        self.ops: list[OpInfo] = []
        self.graphs: dict[Graph, LoweredGraph] = {}
        self.low_confidence: dict[str, None] = {}
        self.plans: dict[int, tuple[ConvolutionPlan, ...]] = {}
        self.phases = {} if draft else phases_of(ir.main_graph)
        self._ipus_of: dict[Graph, set[int]] = {}
        self._amounts: branches.Known = {}

    # -- graphs ----------------------------------------------------------------------------------------------------

    def lower_graph(self, graph: Graph, operands: dict[Tensor, Layout]) -> LoweredGraph:
        """Lower ``graph``, for its first call, with its inputs laid out as ``operands``."""
        layouts = dict(operands)
        self.lay_out_data(graph, layouts)
        lowered = LoweredGraph(graph, [], layouts)
        self.graphs[graph] = lowered
        for op in self.known.order(graph):
            if not isinstance(op, Op):
                raise IrError(f"{op.where()}: not an op that can be lowered")
            item = self.lower_op(op, layouts)
            if item is not None:
                lowered.ops.append(item)
        if not self.draft:
            merge_exchanges(lowered, self.standing)
            if self.merging != NO_MERGING:
                merge_collectives(lowered, self.merging, self.known.work, self.machine)
        return lowered

    def lower_op(self, op: Op, layouts: dict[Tensor, Layout]) -> LoweredOp | None:
        """Lower one op: local steps, or calls (None in a draft)."""
        if isinstance(op, (CallOp, If, Loop)):
            return self.lower_call(op, layouts)
        ipu = op.destination if isinstance(op, IpuCopy) else op.ipu or 0
        if self.found is None:
            self.place(op, ipu)
            if self.draft and isinstance(op, (IpuCopy, Dynamic)):
                self.wish(op, layouts)
        if self.draft:
            if not self.share(op, layouts):
                self.known.steps(op, self.known.facts(op), layouts)
            return None
        facts = self.known.facts(op)
        steps = self.known.steps(op, facts, layouts)
        if steps.low_confidence:
            self.low_confidence.update(dict.fromkeys(steps.low_confidence))
        op_id = self.register(op, facts.flops)
        steps = steps.for_op(op_id)
        if steps.plans:
            self.plans[op_id] = steps.plans
        return LoweredOp(op, ipu, steps, tile_set=self.tile_sets.of(op))

    def lower_call(self, op: CallOp | Loop | If, layouts: dict[Tensor, Layout]) -> LoweredOp | None:
        """A call, loop or conditional: lower what it executes, copy operands that lie elsewhere, lay out the results.
        Of a conditional the branch that takes longer stands in the program."""
        op_id = -1 if self.draft else self.register(op, 0)
        works = self.known.facts(op).calls
        ways = [self.lower_way(op, w, passed, op_id, layouts) for w, (_, passed) in zip(works, op.calls(), strict=True)]
        if self.draft:
            self.lay_out_results(op, ways[0].calls[0][0], layouts)
            return None
        way = self.longer(op, ways, op_id, layouts) if isinstance(op, If) else ways[0]
        self.lay_out_results(op, way.calls[0][0], layouts)
        return way

    def longer(self, op: If, ways: Seq[LoweredOp], op_id: int, layouts: dict[Tensor, Layout]) -> LoweredOp:
        """The way of a conditional that takes longer, behind the steps that let every IPU of both know the
        condition."""
        bodies = [way.calls[0][0] for way in ways]
        way = ways[bodies.index(branches.longer_of(op, bodies, self._amounts))]
        home = self.home(op.inputs[0])
        told = sorted(set().union(*map(self.ipus_of, bodies)) - {home})
        read = Superstepper(op, op_id, layouts, self.machine)
        read.lower(ReadCondition())
        if told:
            moves = tuple(IpuTransfer(home, ipu, ReadCondition.bytes) for ipu in told)
            way.shared = InterIpuCopy(op_id, f"{op.type}/condition", moves)
        for ipu in told:
            way.copies.before[ipu] = [*read.out.steps, *way.copies.before.get(ipu, ())]
            read.out.elsewhere[ipu] = read.out.code
        way.ipu, way.steps = home, read.out
        return way

    def lower_way(
        self, op: CallOp | Loop | If, work: CallGraph, passed: Seq[Tensor], op_id: int, layouts: dict[Tensor, Layout]
    ) -> LoweredOp:
        """One graph that ``op`` executes, with the operands ``passed`` to it."""
        copies, callee = CallCopies(), work.graph
        if self.found is None:
            self.pass_operands(op, callee, passed, first=callee not in self.graphs)
        body = self.graphs.get(callee)
        if body is None:
            operands = dict(zip(callee.inputs, [layouts[t] for t in passed], strict=True))
            body = self.lower_graph(callee, operands)
        if self.found is None:
            self.place_results(op, callee)
        if not self.draft:
            self.copy_operands(copies, op, passed, op_id, body, layouts)
            if isinstance(op, If):
                self.copy_results(copies, op_id, body)
            elif work.trips > 1:
                self.copy_carried(copies, op, op_id, body)
        return LoweredOp(op, op.ipu or 0, OpSteps(), calls=[(body, work.trips)], operands=passed, copies=copies)

    def lay_out_results(self, op: Op, body: LoweredGraph, layouts: dict[Tensor, Layout]) -> None:
        """The results of a call lie as in the graph that gave them."""
        for inner, outer in zip(body.graph.outputs, op.outputs, strict=True):
            layouts[outer] = body.layouts[inner]

    def copy_results(self, made: CallCopies, op_id: int, body: LoweredGraph) -> None:
        """Copies of a branch's results to those of the conditional."""
        for result in body.graph.outputs:
            after = made.after_trip.setdefault(self.home(result), [])
            after += self.on_tiles(result, on_tile_copy(op_id, result, body.layouts[result], self.machine))

    def copy_operands(
        self,
        made: CallCopies,
        op: CallOp | Loop | If,
        passed: Seq[Tensor],
        op_id: int,
        body: LoweredGraph,
        layouts: Mapping[Tensor, Layout],
    ) -> None:
        """Copies of operands that the callee changes although they are passed by value, or that lie elsewhere."""
        callee = body.graph
        copied = modified_graph_inputs(callee)
        if not isinstance(op, If):
            copied = copied - op.references()
        made.copied.update(copied)
        for index, (inner, outer) in enumerate(zip(callee.inputs, passed, strict=True)):
            layout = body.layouts[inner]
            copies: list[Step] = []
            if index in copied:
                copies += self.on_tiles(inner, on_tile_copy(op_id, inner, layout, self.machine))
            given = layouts[outer]
            if layout is not given and layout != given:  # comparing takes a while
                name = f"{op.type}/operand {inner.name}"
                copies += self.on_tiles(inner, local_copy(op_id, name, layout, inner.dtype.size, self.machine))
            if copies:
                made.before.setdefault(self.home(inner), []).extend(copies)

    def copy_carried(self, made: CallCopies, op: CallOp | Loop, op_id: int, body: LoweredGraph) -> None:
        """Copies of loop-carried values at the end of a trip: of all results into clones of them, as another value of
        the loop may be an alias of one, then to where the body reads them (PopART popx/op/loopx.cpp); over the exchange
        where result and input lie differently. Copies that follow each other are made at once, per IPU and tile set."""
        sets: dict[tuple[int, bool], list[tuple[Tensor, Tensor]]] = {}
        for inner, result in zip(body.graph.inputs, body.graph.outputs, strict=False):
            self.check_carried(op, inner, result)
            place = (self.home(inner), self.tile_set_of.get(inner) == IO)
            sets.setdefault(place, []).append((inner, result))
        if isinstance(op, Loop) and op.conditional:
            made.after_trip.setdefault(op.ipu or 0, []).extend(trip_control(op_id, op.type, self.machine))
        for (home, _), pairs in sets.items():
            given = [(body.layouts[result], result.dtype.size) for _, result in pairs]
            wanted = [(body.layouts[inner], inner.dtype.size) for inner, _ in pairs]
            stays = [new[0] is old[0] or new[0] == old[0] for new, old in zip(wanted, given, strict=True)]
            moved = [new for new, stay in zip(wanted, stays, strict=True) if not stay]
            copies = on_tile_copies(op_id, given, self.machine)
            names = [inner.name for (inner, _), stay in zip(pairs, stays, strict=True) if not stay]
            copies += local_copies(op_id, f"{op.type}/carried {', '.join(names)}", moved, self.machine)
            kept = [new for new, stay in zip(wanted, stays, strict=True) if stay]
            copies += on_tile_copies(op_id, kept, self.machine)
            made.after_trip.setdefault(home, []).extend(self.on_tiles(pairs[0][0], copies))

    def on_tiles(self, tensor: Tensor, steps: list[Step]) -> list[Step]:
        """Steps that run on the tile set where ``tensor`` lies."""
        return [IoTiles(-1, "I/O tiles", tuple(steps))] if self.tile_set_of.get(tensor) == IO else steps

    def standing(self, ipu: int) -> tuple[int, ...]:
        """IPUs of the replica that stand while ``ipu`` does a stream copy, itself included."""
        if self.sync_pattern == "full":
            return tuple(range(self.ipus))
        if self.sync_pattern == "replica_and_ladder":
            return tuple(range(ipu % 2, self.ipus, 2))
        return (ipu,)

    def register(self, op: Op, flops: int) -> int:
        """Enter ``op`` into the op table."""
        graph = op.graph.name or "main"
        name, number = f"{graph}/{op.scope}/{op.label}" if op.scope else f"{graph}/{op.label}", len(self.ops)
        self.ops.append(OpInfo(number, name, op.type, graph, self.phases[op], flops, op.location, computed_type(op)))
        return number

    # -- the program -----------------------------------------------------------------------------------------------

    def program(self) -> DeviceProgram:
        """Lower the main graph and assemble the device program."""
        placement = self.tile_sets.machine.place(self.ir.replication_factor, self.ipus)
        main = self.lower_graph(self.ir.main_graph, {})
        write_transfers(self.graphs, self.machine)
        loaded = loaded_codes(self.graphs, self.machine.chip)
        shared = shared_code(
            self.graphs,
            loaded,
            self.value,
            self.recomputed,
            self.outlining,
            self.tile_sets,
        )
        for (_, tile_set), code in shared.items():
            add_copies(code.calls, self.tile_sets.machines[tile_set])
        functions = {
            f"{graph.name}@{ipu}": Sequence(-1, graph.name, tuple(steps))
            for graph, lowered in self.graphs.items()
            if not graph.is_main
            for ipu, steps in self.steps_of(lowered).items()
        }
        memory = MemoryModel(self, self.graphs, self.ipus, loaded, shared).report()
        warnings = [ProgramWarning("low confidence", f"low confidence: {name}") for name in self.low_confidence]
        warnings += memory_warnings(memory, self.tile_sets.machine, outlined=self.outlining is not None)
        return DeviceProgram(
            name=self.name,
            machine=self.machine.name,
            replicas=self.ir.replication_factor,
            placement=placement,
            ipus=tuple(Sequence(-1, "main", tuple(steps)) for steps in self.steps_of(main).values()),
            functions=functions,
            ops=tuple(self.ops),
            memory=memory,
            streams={s.id: (s.direction, s.spec.bytes) for s in self.ir.streams()},
            warnings=tuple(warnings),
            io_tiles=self.tile_sets.io_tiles,
            plans=self.plans,
        )

    def value(self, item: LoweredOp) -> float | None:
        """Value of an op to the outliner; calls end a stretch."""
        return None if item.calls else value_of(item.op.type, self.known.work(item.op), self.ir.replication_factor)

    def recomputed(self, item: LoweredOp) -> bool:
        """Whether an op runs again what the forward pass ran."""
        return self.phases[item.op] == "recompute"

    def steps_of(self, lowered: LoweredGraph) -> dict[int, list[Step]]:
        """The steps of ``lowered`` on each IPU, calls as :class:`Call` of the callee's function there."""
        steps: dict[int, list[Step]] = {ipu: [] for ipu in range(self.ipus)}
        for item in lowered.ops:
            if item.tile_set == IO and not isinstance(item.op, IoTileCopy):
                steps[item.ipu] += [IoTiles(-1, "I/O tiles", (step,)) for step in item.steps.steps]
            else:
                own = steps[item.ipu]
                for step in item.steps.steps:
                    if isinstance(step, _COMMUNICATING):
                        self.meet(steps, step, item.ipu)
                    own.append(step)
            if item.shared is not None:
                self.meet(steps, item.shared, item.ipu)
                for party in item.shared.parties():
                    steps[party].append(item.shared)
            for ipu, copies in item.copies.before.items():
                steps[ipu] += copies
            for body, trips in item.calls:
                for ipu, own in steps.items():
                    after = item.copies.after_trip.get(ipu, ())
                    if after or ipu in self.ipus_of(body):
                        call = Call(-1, body.graph.name, f"{body.graph.name}@{ipu}")
                        trip = Sequence(-1, "body", (call, *after))
                        own += [call, *after] if trips == 1 else [Repeat(-1, body.graph.name, trips, trip)]
        return steps

    def meet(self, steps: dict[int, list[Step]], step: Step, ipu: int) -> None:
        """The sync before a step in which IPUs communicate, on those that wait for it."""
        meeting = self.meeting(step, ipu)
        if meeting:
            sync = ExternalSync(step.op_id, step.name, meeting)
            for party in meeting:
                steps[party].append(sync)

    def meeting(self, step: Step, ipu: int) -> tuple[int, ...]:
        """IPUs of the replica that wait for each other before ``step`` of ``ipu`` without all taking part in it.

        Collectives and copies between IPUs synchronise all, whatever the sync pattern: one of the two sync groups
        holds all IPUs under each. Transfers of Streaming Memory are synchronised as those of the host (PopART user
        guide, "Sync patterns").
        """
        if isinstance(step, InterIpuCopy):
            alone = len(step.participants) < self.ipus
        else:
            alone = isinstance(step, Collective) and len(step.groups[0]) > 1
        if alone:
            party = tuple(range(self.ipus))
        else:
            party = self.standing(ipu) if isinstance(step, RemoteTransfer) else ()
        return party if len(party) > 1 else ()

    def ipus_of(self, lowered: LoweredGraph) -> set[int]:
        """IPUs that take part in a graph that is lowered to its end, callees included."""
        if lowered.graph not in self._ipus_of:
            found = {item.ipu for item in lowered.ops if not item.calls}
            for item in lowered.ops:
                if item.tile_set != IO:
                    for step in item.steps.steps:
                        if isinstance(step, _COMMUNICATING):
                            found.update(self.meeting(step, item.ipu))
                if item.shared is not None:
                    found.update(self.meeting(item.shared, item.ipu), item.shared.parties())
                if item.copies.before:
                    found.update([ipu for ipu, copies in item.copies.before.items() if copies])
                for body, _ in item.calls:
                    found |= self.ipus_of(body)
            self._ipus_of[lowered.graph] = found
        return self._ipus_of[lowered.graph]


def computed_type(op: Op) -> str:
    """The type an op computes with: that of its first floating-point operand, else result; "" for neither."""
    for tensor in itertools.chain(op.inputs, op.outputs):
        dtype = tensor.spec.dtype
        if dtype.category in ("float", "float8"):
            return dtype.name
    return ""


@checked()
@collector_paused()
def lower(
    ir: Ir,
    machine: Machine,
    *,
    name: str = "program",
    strict_memory: bool = False,
    sync_pattern: str = "single_pipeline",
    merging: CollectiveMerging = NO_MERGING,
    outlining: float | None = None,
) -> DeviceProgram:
    """Compile ``ir`` for ``machine``.

    Args:
        ir: the program; it is not changed.
        machine: where it runs; replicas x IPUs per replica have to fit.
        name: name of the program in reports.
        strict_memory: raise :class:`DoesNotFitError` instead of a warning when a tile's memory is exceeded.
        sync_pattern: which IPUs of a replica stand during the stream copies of one of them (PopART user guide,
            "Sync patterns"): ``single_pipeline`` none but itself, ``full`` all, ``replica_and_ladder`` those of its
            side of the ladder (the IPUs with even numbers, those with odd ones). Transfers of Streaming Memory follow
            the pattern as well. Before copies between IPUs and collectives all IPUs of the replica meet, whatever the
            pattern; other replicas only take part in collectives.
        merging: which collectives become one; none by default.
        outlining: stretches of ops that occur again and are worth more than this share their code (:mod:`.outlining`);
            None: none do.

    Raises:
        MachineError: the replicas cannot be placed, an op has no vertices on these IPUs, Streaming Memory is missing or
            too small; IrError: an op without a cost
            model, an operand on another IPU or tile set, an unknown sync pattern, too many I/O tiles.
    """
    if sync_pattern not in SYNC_PATTERNS:
        raise IrError(f"sync_pattern is {sync_pattern!r}, allowed: {', '.join(SYNC_PATTERNS)}")
    check_streaming_memory(ir, machine)
    _check_architecture(ir, machine)
    with ir.checked(), ir.deep_calls():
        known, draft = Known(machine, merging, ir.num_io_tiles), None
        if any(isinstance(op, (IpuCopy, Dynamic)) for graph in ir.all_graphs() for op in graph.ops):
            draft = Lowering(ir, machine, name, sync_pattern, known, draft=True)
            draft.lower_graph(ir.main_graph, {})
        lowering = Lowering(ir, machine, name, sync_pattern, known, draft, merging=merging, outlining=outlining)
        program = lowering.program()
    problems = program.texts("does not fit")
    if strict_memory and problems:
        raise DoesNotFitError("; ".join(problems))
    return program


def _check_architecture(ir: Ir, machine: Machine) -> None:
    """MachineError when an op of the program has no vertices on the machine's IPUs."""
    wanted = needed_architecture(ir)
    if wanted is not None and machine.chip.architecture != wanted[1]:
        raise MachineError(
            f"{wanted[0].where()}: {machine.name} has IPUs of architecture {machine.chip.architecture}, which compute "
            f"no 8-bit floats; allowed: {wanted[1]} (presets bow-...)"
        )
