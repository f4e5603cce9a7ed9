"""Ops become steps, graph by graph.

Each graph is lowered once, at its first call, with its operands laid out as there; a later call with operands laid out
differently copies them into place (:mod:`.calls`). Ops that are alike are lowered once (:mod:`.alike`). Neighbouring
copies of a lowered graph become one exchange (:mod:`.merging`), neighbouring collectives one collective on request
(:mod:`.collective_merging`). That happens before the caller goes on, because the caller of a conditional compares its
branches as they will run, and the layouts of its results are those of the longer branch.

Simplification (``docs/accuracy/simplifications.md``): element-wise ops are not fused.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ipuperf.ir import Graph, Tensor, phases_of, sources_of
from ipuperf.ops.base import Op
from ipuperf.ops.control import If
from ipuperf.ops.work import CallGraph, ReadCondition

from . import branches, lookups, products, recurrences  # noqa: F401 (the last three register how their works are lowered)
from .assembly import participants
from .calls import CallCopier
from .collective_merging import NO_MERGING, merge_collectives
from .layout import Layout
from .lowered import CallingOp, LoweredGraph, LoweredOp
from .merging import merge_exchanges
from .places import ipu_of
from .program import OpInfo
from .steps import InterIpuCopy, IpuTransfer
from .supersteps import OpSteps, Superstepper

if TYPE_CHECKING:
    from .compilation import Compilation


def lower_ops(program: Compilation) -> Compilation:
    """The pass that lowers all graphs, beginning with the main graph.

    Raises:
        IrError: an op has no cost model, or it is not certain which branch of a conditional takes longer.
    """
    program.phases = phases_of(program.ir.main_graph)
    program.sources = sources_of(program.ir.main_graph)
    _GraphLowering(program).lower_graph(program.ir.main_graph, {})
    return program


class _GraphLowering:
    """Lowers the graphs of ``program``: fills its graphs, op table and plans."""

    def __init__(self, program: Compilation) -> None:
        self._program = program
        self._cache = program.cache
        self._places = program.places
        self._amounts: branches.Amounts = {}

    def lower_graph(self, graph: Graph, layouts: dict[Tensor, Layout]) -> LoweredGraph:
        """Lower ``graph`` for its first call; ``layouts`` are those of its inputs there."""
        program = self._program
        program.data_layouts.add_to(layouts, graph)
        lowered = LoweredGraph(graph, [], layouts)
        # Registered before its ops are lowered, as callers are listed before the graphs they call.
        program.graphs[graph] = lowered
        for op in self._cache.order(graph):
            assert isinstance(op, Op)
            lowered_op = self._lower_call(op, layouts) if isinstance(op, CallingOp) else self._lower_op(op, layouts)
            lowered.ops.append(lowered_op)
        merge_exchanges(lowered, program.syncs)
        if program.merging != NO_MERGING:
            merge_collectives(lowered, program.merging, self._cache.work, self._places.machine)
        return lowered

    def _lower_op(self, op: Op, layouts: dict[Tensor, Layout]) -> LoweredOp:
        """Lower an op that calls nothing to steps of its IPU."""
        facts = self._cache.facts(op)
        steps = self._cache.steps(op, facts, layouts)
        self._program.low_confidence.update(dict.fromkeys(steps.low_confidence))
        op_id = self._register(op, facts.flops)
        # Equal ops share their steps, so each op gets copies with its own number.
        steps = steps.for_op(op_id)
        if steps.plans:
            self._program.plans[op_id] = steps.plans
        return LoweredOp(op, ipu_of(op), steps, tile_set=self._places.tile_sets.of(op))

    def _lower_call(self, op: CallingOp, layouts: dict[Tensor, Layout]) -> LoweredOp:
        """Lower a call, loop or conditional: its graphs, the copies of its operands, the layouts of its results.

        The program of a conditional contains the branch that takes longer.
        """
        op_id = self._register(op, 0)
        works = self._cache.facts(op).calls
        calls = [
            self._lower_callee(op, work, operands, op_id, layouts)
            for work, (_, operands) in zip(works, op.calls(), strict=True)
        ]
        call = self._longer(op, calls, op_id, layouts) if isinstance(op, If) else calls[0]
        body, _ = call.calls[0]
        # The results lie as the called graph leaves them.
        for callee_output, result in zip(body.graph.outputs, op.outputs, strict=True):
            layouts[result] = body.layouts[callee_output]
        return call

    def _lower_callee(
        self, op: CallingOp, work: CallGraph, operands: Sequence[Tensor], op_id: int, layouts: dict[Tensor, Layout]
    ) -> LoweredOp:
        """One graph that ``op`` executes, with the ``operands`` passed to it."""
        callee = work.graph
        body = self._program.graphs.get(callee)
        if body is None:
            inputs = dict(zip(callee.inputs, [layouts[tensor] for tensor in operands], strict=True))
            body = self.lower_graph(callee, inputs)
        copier = CallCopier(self._places, op, op_id, body)
        copier.copy_operands(operands, layouts)
        if isinstance(op, If):
            copier.copy_results()
        # A single trip hands nothing on to a next one.
        elif work.trips > 1:
            copier.copy_carried()
        calls = [(body, work.trips)]
        return LoweredOp(op, op.ipu or 0, OpSteps(), calls=calls, operands=operands, copies=copier.copies)

    def _longer(self, op: If, ways: Sequence[LoweredOp], op_id: int, layouts: dict[Tensor, Layout]) -> LoweredOp:
        """The branch of a conditional that takes longer, behind the steps that send the condition to its IPUs.

        The condition goes to every IPU that takes part in either branch.
        """
        bodies = [way.calls[0][0] for way in ways]
        way = ways[bodies.index(branches.longer_of(op, bodies, self._amounts))]
        home = self._places.home(op.inputs[0])
        informed_ipus = sorted(set().union(*[participants(body, self._program.syncs) for body in bodies]) - {home})
        read = Superstepper(op, op_id, layouts, self._places.machine)
        read.lower(ReadCondition())
        if informed_ipus:
            moves = tuple(IpuTransfer(home, ipu, ReadCondition.bytes) for ipu in informed_ipus)
            way.shared = InterIpuCopy(op_id, f"{op.type}/condition", moves)
        # The other IPUs read the condition when it has arrived, before they copy operands.
        for ipu in informed_ipus:
            way.copies.before[ipu] = [*read.out.steps, *way.copies.before.get(ipu, ())]
            read.out.elsewhere[ipu] = read.out.code
        way.ipu, way.steps = home, read.out
        return way

    def _register(self, op: Op, flops: int) -> int:
        """Enter ``op`` into the op table and return its number there."""
        table, graph = self._program.ops, op.graph.name or "main"
        name = f"{graph}/{op.scope}/{op.label}" if op.scope else f"{graph}/{op.label}"
        source, phase = self._program.sources.of(op), self._program.phases[op]
        line, module = source.location or op.location, source.module or graph
        self._program.numbers[op] = len(table)
        table.append(OpInfo(len(table), name, op.type, graph, phase, flops, line, _computed_type(op), module))
        return len(table) - 1


def _computed_type(op: Op) -> str:
    """The type an op computes with: of its first floating-point operand, otherwise result; "" without either."""
    for tensor in itertools.chain(op.inputs, op.outputs):
        dtype = tensor.spec.dtype
        if dtype.category in ("float", "float8"):
            return dtype.name
    return ""
