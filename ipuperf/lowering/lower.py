"""``lower(ir, machine) -> DeviceProgram``: graphs of ops become trees of steps on IPUs.

Each graph becomes one function per IPU that takes part in it. Its operands are laid out as in its first call; a later
call with operands laid out differently copies them into place. The layout of a variable follows its first use. The
parameter operand of a matrix product lies as the product reads it. A stash lies so that each slice matches the tensor
written to it. The buffer of a copy between IPUs lies as its source. Everything else lies linearly. What is written to a
stash or buffer is known only after lowering. Programs that have them are therefore lowered twice, first as a draft
without steps.

Ops that are alike are lowered once (:mod:`.alike`). Neighbouring copies become one exchange (:mod:`.merging`);
neighbouring collectives become one collective on request (:mod:`.collective_merging`).

All IPUs of a replica run one program. Where one of them communicates, the others meet it at that place of their lists
(:class:`.steps.ExternalSync`) and go on. Communication of different IPUs therefore comes in the program's order.

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
from ipuperf.ops.products.float8 import needed_architecture
from ipuperf.ops.selection.dynamic import Dynamic
from ipuperf.ops.transfers.io_tile_copy import IoTileCopy
from ipuperf.ops.transfers.ipu_copy import IpuCopy
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

#: Which IPUs stand while one of them copies to or from the host (PopART's ``SyncPattern``).
SYNC_PATTERNS = ("full", "single_pipeline", "replica_and_ladder")

_COMMUNICATING = (InterIpuCopy, Collective, RemoteTransfer)
"""Steps before which IPUs may meet although they take no part in them (:meth:`Lowering.meeting`)."""


class Lowering(Places):
    """Lowers one program; use :func:`lower`.

    Args:
        known: facts and steps of the program's ops that are already worked out.
        draft_walk: the draft, if there is one: where tensors lie and which layouts they should have.
        merging: which collectives become one.
        draft: only find out where tensors lie; make no steps.
        outlining: see :func:`lower`.

    Attributes:
        ops: the op table.
        graphs: lowered graphs.
        phases: the purpose of each op (:mod:`ipuperf.ir.phase`).
        low_confidence: names of costs without a primary source.
    """

    def __init__(
        self,
        ir: Ir,
        machine: Machine,
        name: str,
        sync_pattern: str,
        known: Known,
        draft_walk: Lowering | None = None,
        *,
        merging: CollectiveMerging = NO_MERGING,
        draft: bool = False,
        outlining: float | None = None,
    ) -> None:
        super().__init__(ir, TileSets(machine, ir.num_io_tiles), draft_walk)
        self.merging = merging
        self.name = name
        self.sync_pattern = sync_pattern
        self.known = known
        self.draft = draft
        self.outlining = outlining
        self.ipus: int = draft_walk.ipus if draft_walk else ipus_per_replica(ir)
        self.ops: list[OpInfo] = []
        self.graphs: dict[Graph, LoweredGraph] = {}
        self.low_confidence: dict[str, None] = {}
        self.plans: dict[int, tuple[ConvolutionPlan, ...]] = {}
        self.phases = {} if draft else phases_of(ir.main_graph)
        self._ipus_of: dict[Graph, set[int]] = {}
        self._amounts: branches.Known = {}

    # -- graphs ----------------------------------------------------------------------------------------------------

    def lower_graph(self, graph: Graph, operands: dict[Tensor, Layout]) -> LoweredGraph:
        """Lower ``graph`` for its first call, with its inputs laid out as ``operands``."""
        layouts = dict(operands)
        self.lay_out_data(graph, layouts)
        lowered = LoweredGraph(graph, [], layouts)
        # Registered before its ops are lowered, as callers are listed before the graphs they call.
        self.graphs[graph] = lowered
        for op in self.known.order(graph):
            if not isinstance(op, Op):
                raise IrError(f"{op.where()}: not an op that can be lowered")
            lowered_op = self.lower_op(op, layouts)
            if lowered_op is not None:
                lowered.ops.append(lowered_op)
        if not self.draft:
            merge_exchanges(lowered, self.standing)
            if self.merging != NO_MERGING:
                merge_collectives(lowered, self.merging, self.known.work, self.machine)
        return lowered

    def lower_op(self, op: Op, layouts: dict[Tensor, Layout]) -> LoweredOp | None:
        """Lower one op to local steps or to calls; a draft gives None."""
        if isinstance(op, (CallOp, If, Loop)):
            return self.lower_call(op, layouts)
        ipu = op.destination if isinstance(op, IpuCopy) else op.ipu or 0
        if self.draft_walk is None:
            self.place(op, ipu)
            if self.draft and isinstance(op, (IpuCopy, Dynamic)):
                self.wish(op, layouts)
        if self.draft:
            # Results that share storage with an operand need no steps to be laid out.
            if not self.share(op, layouts):
                self.known.steps(op, self.known.facts(op), layouts)
            return None
        facts = self.known.facts(op)
        steps = self.known.steps(op, facts, layouts)
        if steps.low_confidence:
            self.low_confidence.update(dict.fromkeys(steps.low_confidence))
        op_id = self.register(op, facts.flops)
        # Equal ops share their steps, so each op gets copies with its own number.
        steps = steps.for_op(op_id)
        if steps.plans:
            self.plans[op_id] = steps.plans
        return LoweredOp(op, ipu, steps, tile_set=self.tile_sets.of(op))

    def lower_call(self, op: CallOp | Loop | If, layouts: dict[Tensor, Layout]) -> LoweredOp | None:
        """Lower a call, loop or conditional: its graphs, the copies of its operands, the layouts of its results.

        The program of a conditional contains the branch that takes longer.
        """
        # A draft makes no steps, so its ops need no numbers.
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
        """The branch of a conditional that takes longer, behind the steps that send the condition to its IPUs.

        The condition goes to every IPU that takes part in either branch.
        """
        bodies = [way.calls[0][0] for way in ways]
        way = ways[bodies.index(branches.longer_of(op, bodies, self._amounts))]
        home = self.home(op.inputs[0])
        informed_ipus = sorted(set().union(*map(self.ipus_of, bodies)) - {home})
        read = Superstepper(op, op_id, layouts, self.machine)
        read.lower(ReadCondition())
        if informed_ipus:
            moves = tuple(IpuTransfer(home, ipu, ReadCondition.bytes) for ipu in informed_ipus)
            way.shared = InterIpuCopy(op_id, f"{op.type}/condition", moves)
        for ipu in informed_ipus:
            way.copies.before[ipu] = [*read.out.steps, *way.copies.before.get(ipu, ())]
            read.out.elsewhere[ipu] = read.out.code
        way.ipu, way.steps = home, read.out
        return way

    def lower_way(
        self,
        op: CallOp | Loop | If,
        work: CallGraph,
        operands_passed: Seq[Tensor],
        op_id: int,
        layouts: dict[Tensor, Layout],
    ) -> LoweredOp:
        """One graph that ``op`` executes, with the operands ``passed`` to it."""
        copies, callee = CallCopies(), work.graph
        if self.draft_walk is None:
            self.pass_operands(op, callee, operands_passed, first=callee not in self.graphs)
        body = self.graphs.get(callee)
        if body is None:
            operands = dict(zip(callee.inputs, [layouts[t] for t in operands_passed], strict=True))
            body = self.lower_graph(callee, operands)
        if self.draft_walk is None:
            self.place_results(op, callee)
        if not self.draft:
            self.copy_operands(copies, op, operands_passed, op_id, body, layouts)
            if isinstance(op, If):
                self.copy_results(copies, op_id, body)
            elif work.trips > 1:
                self.copy_carried(copies, op, op_id, body)
        return LoweredOp(
            op, op.ipu or 0, OpSteps(), calls=[(body, work.trips)], operands=operands_passed, copies=copies
        )

    def lay_out_results(self, op: Op, body: LoweredGraph, layouts: dict[Tensor, Layout]) -> None:
        """Lay out the results of a call as the called graph leaves them."""
        for callee_output, result in zip(body.graph.outputs, op.outputs, strict=True):
            layouts[result] = body.layouts[callee_output]

    def copy_results(self, call_copies: CallCopies, op_id: int, body: LoweredGraph) -> None:
        """Add copies of a branch's results to the results of the conditional."""
        for result in body.graph.outputs:
            end_copies = call_copies.after_trip.setdefault(self.home(result), [])
            end_copies += self.on_tiles(result, on_tile_copy(op_id, result, body.layouts[result], self.machine))

    def copy_operands(
        self,
        call_copies: CallCopies,
        op: CallOp | Loop | If,
        passed: Seq[Tensor],
        op_id: int,
        body: LoweredGraph,
        layouts: Mapping[Tensor, Layout],
    ) -> None:
        """Add copies of operands that lie elsewhere, or that the callee changes although they are passed by value."""
        callee = body.graph
        copied = modified_graph_inputs(callee)
        if not isinstance(op, If):
            # The program asks for changes of operands that it passes by reference.
            copied = copied - op.references()
        call_copies.copied.update(copied)
        for index, (callee_input, operand) in enumerate(zip(callee.inputs, passed, strict=True)):
            layout = body.layouts[callee_input]
            copies: list[Step] = []
            if index in copied:
                copies += self.on_tiles(callee_input, on_tile_copy(op_id, callee_input, layout, self.machine))
            operand_layout = layouts[operand]
            # Most layouts are the same object; that test comes first because comparing layouts is slow.
            if layout is not operand_layout and layout != operand_layout:
                name = f"{op.type}/operand {callee_input.name}"
                copies += self.on_tiles(
                    callee_input, local_copy(op_id, name, layout, callee_input.dtype.size, self.machine)
                )
            if copies:
                call_copies.before.setdefault(self.home(callee_input), []).extend(copies)

    def copy_carried(self, call_copies: CallCopies, op: CallOp | Loop, op_id: int, body: LoweredGraph) -> None:
        """Add copies of loop-carried values at the end of a trip (PopART popx/op/loopx.cpp).

        All results are first copied into clones, as another value of the loop may be an alias of one. The clones are
        then copied to where the body reads them, over the exchange where result and input lie differently. The copies
        of one IPU and tile set are made at once.
        """
        sets: dict[tuple[int, bool], list[tuple[Tensor, Tensor]]] = {}
        for callee_input, result in zip(body.graph.inputs, body.graph.outputs, strict=False):
            self.check_carried(op, callee_input, result)
            place = (self.home(callee_input), self.tile_set_of.get(callee_input) == IO)
            sets.setdefault(place, []).append((callee_input, result))
        if isinstance(op, Loop) and op.conditional:
            call_copies.after_trip.setdefault(op.ipu or 0, []).extend(trip_control(op_id, op.type, self.machine))
        for (home, _), pairs in sets.items():
            result_layouts = [(body.layouts[result], result.dtype.size) for _, result in pairs]
            input_layouts = [(body.layouts[callee_input], callee_input.dtype.size) for callee_input, _ in pairs]
            # Identity first: comparing layouts is slow.
            stays = [
                input_layout[0] is result_layout[0] or input_layout[0] == result_layout[0]
                for input_layout, result_layout in zip(input_layouts, result_layouts, strict=True)
            ]
            moved = [input_layout for input_layout, stay in zip(input_layouts, stays, strict=True) if not stay]
            copies = on_tile_copies(op_id, result_layouts, self.machine)
            names = [callee_input.name for (callee_input, _), stay in zip(pairs, stays, strict=True) if not stay]
            copies += local_copies(op_id, f"{op.type}/carried {', '.join(names)}", moved, self.machine)
            unmoved = [input_layout for input_layout, stay in zip(input_layouts, stays, strict=True) if stay]
            copies += on_tile_copies(op_id, unmoved, self.machine)
            call_copies.after_trip.setdefault(home, []).extend(self.on_tiles(pairs[0][0], copies))

    def on_tiles(self, tensor: Tensor, steps: list[Step]) -> list[Step]:
        """``steps`` as they run on the tile set where ``tensor`` lies."""
        return [IoTiles(-1, "I/O tiles", tuple(steps))] if self.tile_set_of.get(tensor) == IO else steps

    def standing(self, ipu: int) -> tuple[int, ...]:
        """IPUs of the replica that stand while ``ipu`` does a stream copy, including ``ipu``."""
        if self.sync_pattern == "full":
            return tuple(range(self.ipus))
        if self.sync_pattern == "replica_and_ladder":
            # The ladder has two sides: the IPUs with even numbers and those with odd ones.
            return tuple(range(ipu % 2, self.ipus, 2))
        return (ipu,)

    def register(self, op: Op, flops: int) -> int:
        """Enter ``op`` into the op table and return its number there."""
        graph = op.graph.name or "main"
        name, number = f"{graph}/{op.scope}/{op.label}" if op.scope else f"{graph}/{op.label}", len(self.ops)
        self.ops.append(OpInfo(number, name, op.type, graph, self.phases[op], flops, op.location, computed_type(op)))
        return number

    # -- the program -----------------------------------------------------------------------------------------------

    def program(self) -> DeviceProgram:
        """Lower the main graph and assemble the device program."""
        placement = self.tile_sets.machine.place(self.ir.replication_factor, self.ipus)
        main = self.lower_graph(self.ir.main_graph, {})
        # The loads move the code of graphs, whose size is known only now.
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
        # The copies of calls go among the steps of their ops, so this comes before the steps are assembled.
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

    def value(self, lowered_op: LoweredOp) -> float | None:
        """Value of an op to the outliner; None for a call, which ends a stretch."""
        return (
            None
            if lowered_op.calls
            else value_of(lowered_op.op.type, self.known.work(lowered_op.op), self.ir.replication_factor)
        )

    def recomputed(self, lowered_op: LoweredOp) -> bool:
        """Whether an op repeats one of the forward pass."""
        return self.phases[lowered_op.op] == "recompute"

    def steps_of(self, lowered: LoweredGraph) -> dict[int, list[Step]]:
        """The steps of ``lowered`` on each IPU; a call becomes a :class:`Call` of the callee's function there."""
        steps: dict[int, list[Step]] = {ipu: [] for ipu in range(self.ipus)}
        for lowered_op in lowered.ops:
            # A copy between the tile sets belongs to both, so it stands outside of IoTiles.
            if lowered_op.tile_set == IO and not isinstance(lowered_op.op, IoTileCopy):
                steps[lowered_op.ipu] += [IoTiles(-1, "I/O tiles", (step,)) for step in lowered_op.steps.steps]
            else:
                ipu_steps = steps[lowered_op.ipu]
                for step in lowered_op.steps.steps:
                    if isinstance(step, _COMMUNICATING):
                        self.meet(steps, step, lowered_op.ipu)
                    ipu_steps.append(step)
            if lowered_op.shared is not None:
                self.meet(steps, lowered_op.shared, lowered_op.ipu)
                for party in lowered_op.shared.parties():
                    steps[party].append(lowered_op.shared)
            for ipu, copies in lowered_op.copies.before.items():
                steps[ipu] += copies
            for body, trips in lowered_op.calls:
                # Only IPUs that take part in the callee, or that copy after it, have something to run.
                for ipu, ipu_steps in steps.items():
                    end_copies = lowered_op.copies.after_trip.get(ipu, ())
                    if end_copies or ipu in self.ipus_of(body):
                        call = Call(-1, body.graph.name, f"{body.graph.name}@{ipu}")
                        trip = Sequence(-1, "body", (call, *end_copies))
                        ipu_steps += [call, *end_copies] if trips == 1 else [Repeat(-1, body.graph.name, trips, trip)]
        return steps

    def meet(self, steps: dict[int, list[Step]], step: Step, ipu: int) -> None:
        """Add a sync before a step in which IPUs communicate, on every IPU that waits for it."""
        meeting = self.meeting(step, ipu)
        if meeting:
            sync = ExternalSync(step.op_id, step.name, meeting)
            for party in meeting:
                steps[party].append(sync)

    def meeting(self, step: Step, ipu: int) -> tuple[int, ...]:
        """IPUs of the replica that wait for each other before ``step`` of ``ipu``, though some take no part in it.

        Collectives and copies between IPUs synchronise all IPUs under every sync pattern, as one of the two sync groups
        always holds all of them. Transfers of Streaming Memory are synchronised like those of the host (PopART user
        guide, "Sync patterns").
        """
        if isinstance(step, InterIpuCopy):
            alone = len(step.participants) < self.ipus
        else:
            # A collective in groups of one replica moves nothing, so nobody waits for it.
            alone = isinstance(step, Collective) and len(step.groups[0]) > 1
        if alone:
            party = tuple(range(self.ipus))
        else:
            party = self.standing(ipu) if isinstance(step, RemoteTransfer) else ()
        return party if len(party) > 1 else ()

    def ipus_of(self, lowered: LoweredGraph) -> set[int]:
        """IPUs that take part in a completely lowered graph or in the graphs it calls."""
        # The graph is complete, so the answer stays the same.
        if lowered.graph not in self._ipus_of:
            ipus = {lowered_op.ipu for lowered_op in lowered.ops if not lowered_op.calls}
            for lowered_op in lowered.ops:
                if lowered_op.tile_set != IO:
                    for step in lowered_op.steps.steps:
                        if isinstance(step, _COMMUNICATING):
                            ipus.update(self.meeting(step, lowered_op.ipu))
                if lowered_op.shared is not None:
                    ipus.update(self.meeting(lowered_op.shared, lowered_op.ipu), lowered_op.shared.parties())
                if lowered_op.copies.before:
                    ipus.update([ipu for ipu, copies in lowered_op.copies.before.items() if copies])
                for body, _ in lowered_op.calls:
                    ipus |= self.ipus_of(body)
            self._ipus_of[lowered.graph] = ipus
        return self._ipus_of[lowered.graph]


def computed_type(op: Op) -> str:
    """The type an op computes with: of its first floating-point operand, otherwise result; "" without either."""
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
        sync_pattern: which IPUs of a replica stand while one of them does a stream copy (PopART user guide, "Sync
            patterns"). ``single_pipeline``: only that IPU; ``full``: all; ``replica_and_ladder``: those on its side of
            the ladder, that is, with even or with odd numbers. Transfers of Streaming Memory follow the pattern as
            well. All IPUs of the replica meet before copies between IPUs and collectives, whatever the pattern. Other
            replicas only take part in collectives.
        merging: which collectives become one; none by default.
        outlining: repeated stretches of ops that are worth more than this share their code (:mod:`.outlining`); with
            None no code is shared.

    Raises:
        MachineError: the replicas cannot be placed, an op has no vertices on these IPUs, or Streaming Memory is missing
            or too small.
        IrError: an op has no cost model, an operand lies on another IPU or tile set, the sync pattern is unknown, or
            there are too many I/O tiles.
    """
    if sync_pattern not in SYNC_PATTERNS:
        raise IrError(f"sync_pattern is {sync_pattern!r}, allowed: {', '.join(SYNC_PATTERNS)}")
    check_streaming_memory(ir, machine)
    _check_architecture(ir, machine)
    with ir.checked(), ir.deep_calls():
        known, draft = Known(machine, merging, ir.num_io_tiles), None
        # Only stashes and buffers of copies need to know where what is written to them lies.
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
    """Raise MachineError when an op of the program has no vertices on the machine's IPUs."""
    float8_op = needed_architecture(ir)
    if float8_op is not None and machine.chip.architecture != float8_op[1]:
        raise MachineError(
            f"{float8_op[0].where()}: {machine.name} has IPUs of architecture {machine.chip.architecture}, "
            f"which compute no 8-bit floats; allowed: {float8_op[1]} (presets bow-...)"
        )
