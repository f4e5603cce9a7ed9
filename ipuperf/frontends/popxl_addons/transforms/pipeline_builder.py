"""Turns the ops of a pipeline, written as one step of a loop, into a graph that runs its stages in parallel.

Per stage there is one graph with its computation (``stage_<i>``). A *cycle* loads from the host for the stages that are
active, calls their graphs in ascending order (on an IPU with several stages: the forward of a new micro-batch before
the backward of an old one), stores to the host, and then does all copies between IPUs, also those of idle stages, which
send whatever there is. ``pipeline_graph`` holds the ramp-up cycles, the repeat of the full cycle and the ramp-down
cycles; the last cycle needs no copies. The schedule is :func:`ipuperf.schedules.popart_pipeline` over as many stages as
were annotated (forward and backward stages are alike here).

What a copy brings waits in a buffer of the receiving IPU that the copy writes in place. Simplification: upstream puts
loads, stores and copies into called graphs of their own (``loads_stage_<i>``, ``stores_stage_<i>``, ``ipu_copies``);
here they are ops of the cycle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipuperf import ir as _ir
from ipuperf import ops as _k
from ipuperf.functions import make
from ipuperf.functions.shapes import undefined
from ipuperf.ir import CONTEXT
from ipuperf.pipelines.routine import Routine
from ipuperf.pipelines.schedules import popart_pipeline
from ipuperf.pipelines.scope import Scope
from ipuperf.pipelines.windows import Window, program_of

from .moving import clone, remove
from .stage_ops import AnnotatedOps

Values = dict[_ir.Tensor, _ir.Tensor]
"""Tensors as the user made them -> the tensors that stand for them in this cycle."""


def build_pipeline(graph: _ir.Graph, stage_of: Mapping[_ir.Op, int], steps: int) -> _ir.Op:
    """Replace the ops of ``stage_of`` in ``graph`` by a call of a pipeline that executes them ``steps`` times.

    Raises:
        ValueError: fewer steps than twice the number of stages, gaps in the stage numbers, or a tensor used in a stage
            that is at another micro-batch.
    """
    order = [op for op in _ir.schedule(graph) if op in stage_of]
    annotated = AnnotatedOps(order, stage_of)
    count = len(annotated.stages)
    if steps < 2 * count:
        raise ValueError(f"pipelined_execution: steps={steps} for {count} stages; at least {2 * count} are needed")
    return _Builder(graph, order, annotated, steps).build()


class _Builder:
    """State of :func:`build_pipeline`."""

    def __init__(self, graph: _ir.Graph, order: Sequence[_ir.Op], annotated: AnnotatedOps, steps: int) -> None:
        self.graph = graph
        self.order = order
        self.annotated = annotated
        self.count = len(annotated.stages)
        self.program = program_of(popart_pipeline(self.count, steps, inference=True))
        self.pipeline = Scope(graph).inner("pipeline_graph")
        self.needs = _ir.dependencies(graph)
        self.phases = _ir.phases_of(graph)
        self.routines = {number: self._routine(number) for number in range(self.count)}
        self.buffers: Values = {}

    def build(self) -> _ir.Op:
        """Everything, in order."""
        # Copies write into these buffers in place, so they are there before the first cycle.
        for copy in self.annotated.copies:
            result = copy.outputs[0]
            with self.pipeline.on(copy.destination):
                self.buffers[result] = undefined(result.spec, result.name)
        for window in self.program.before:
            self._cycle(self.pipeline, window)
        if self.program.trips:
            body = self.pipeline.inner("main_cycle")
            for window in self.program.body:
                self._cycle(body, window)
            body.close(trips=self.program.trips)
        for window in self.program.after:
            self._cycle(self.pipeline, window)
        return self._replace()

    # -- the graph of a stage ------------------------------------------------------------------------------------------

    def _routine(self, number: int) -> Routine:
        """The computation of a stage: what its loads and the copies bring are arguments, what its stores and the copies
        read are results; tensors from outside come by reference."""
        ops = self.annotated.stages[number].compute
        ir, name = self.graph.ir, f"stage_{number}_subgraph({self.graph.ir.take_subgraph_number()})"
        routine = Routine(ir, name, next((op.ipu for op in ops if op.ipu is not None), 0))
        images: Values = {}
        clones: dict[_ir.Op, _ir.Op] = {}
        for op in ops:
            operands = [images.get(t) or self._operand(routine, t) for t in op.inputs]
            with CONTEXT.detached():
                clones[op] = self._clone(_ir.Builder(routine.graph), op, operands)
            images.update(zip(op.outputs, clones[op].outputs, strict=True))
        for op, copied in clones.items():
            for predecessor in self._predecessors(op, clones):
                routine.graph.constrain(predecessor, copied)
        for tensor in self.annotated.leaving(number):
            routine.give(tensor, images[tensor])
        return routine

    def _operand(self, routine: Routine, tensor: _ir.Tensor) -> _ir.Tensor:
        """The routine's input for a tensor that is not made in it."""
        if tensor not in self.annotated.arrives:
            return routine.get(tensor)
        image = routine.argument(tensor, tensor.spec, tensor.name.replace("/", "_"))
        image.ipu = tensor.ipu
        return image

    def _predecessors(self, op: _ir.Op, clones: Mapping[_ir.Op, _ir.Op]) -> list[_ir.Op]:
        """Clones of the ops that come before ``op``, directly or by way of ops that are not in its graph."""
        producers: dict[_ir.Op, None] = {}
        seen: set[_ir.Op] = set()
        waiting = list(self.needs[op])
        while waiting:
            producer = waiting.pop()
            if producer in seen:
                continue
            seen.add(producer)
            if producer in clones:
                producers[clones[producer]] = None
            else:
                waiting.extend(self.needs[producer])
        return sorted(producers, key=lambda clone: clone.id)

    # -- cycles --------------------------------------------------------------------------------------------------------

    def _cycle(self, scope: Scope, window: Window) -> None:
        active = [cell.stage for cell in window.cells]
        values: Values = {}
        for number in active:
            for op in self.annotated.stages[number].loads:
                self._emit(scope, op, values)
        for number in active:
            if self.annotated.stages[number].compute:
                self._call(scope, self.routines[number], values)
        for number in active:
            for op in self.annotated.stages[number].stores:
                self._emit(scope, op, values)
        # In the last cycle only the last stage is active, and there is nothing left to send.
        if active[0] < self.count - 1:
            self._copy(scope, values)

    def _value(self, tensor: _ir.Tensor, values: Values) -> _ir.Tensor:
        """What stands for a tensor: what this cycle has made, a buffer, or itself when it is from outside."""
        return values.get(tensor) or self.buffers.get(tensor, tensor)

    def _emit(self, scope: Scope, op: _ir.Op, values: Values) -> None:
        """One op of the user in a cycle."""
        with scope.on(op.ipu or 0):
            clone = self._clone(scope, op, [self._value(t, values) for t in op.inputs])
        values.update(zip(op.outputs, clone.outputs, strict=True))

    def _call(self, scope: Scope, routine: Routine, values: Values) -> None:
        results = routine.call(
            scope, {t: self._value(t, values) for t in routine.arguments if isinstance(t, _ir.Tensor)}
        )
        routine_results = routine.results
        for key, tensor in results.items():
            assert isinstance(key, _ir.Tensor)
            tensor.ipu = routine_results[key].ipu
            values[key] = tensor

    def _copy(self, scope: Scope, values: Values) -> None:
        """All copies; what they read exists before the first, so that they become one exchange."""
        sources = {}
        for copy in self.annotated.copies:
            operand = copy.inputs[0]
            # A stage that is idle has received nothing yet, but its copy runs all the same.
            idle = operand in self.annotated.arrives and operand not in values and operand not in self.buffers
            if idle:
                with scope.on(copy.source), CONTEXT.phase(self.phases[copy]):
                    values[operand] = undefined(operand.spec, "idle")
            sources[copy] = self._value(operand, values)
        for copy in self.annotated.copies:
            with scope.on(copy.destination), CONTEXT.phase(self.phases[copy]):
                make(_k.IpuCopy, sources[copy], self.buffers[copy.outputs[0]], source=copy.source,
                     destination=copy.destination)  # fmt: skip

    # -- the graph that the user wrote ---------------------------------------------------------------------------------

    def _replace(self) -> _ir.Op:
        """Call the pipeline where the ops were."""
        moved = set(self.order)
        graph, target = self.graph, self.pipeline.graph
        earlier = remove(graph, moved, target)
        with CONTEXT.sequence(True):
            call = _ir.Builder(graph).create(_k.Call, list(self.pipeline.captured), [], callee=target)
        graph.constraints[call] = {op for op in graph.constraints.get(call, ()) if op not in moved} | earlier
        return call

    def _clone(self, builder: _ir.Builder, op: _ir.Op, operands: Sequence[_ir.Tensor]) -> _ir.Op:
        """The same op in another graph, where the op was stated to be and for what it is."""
        return clone(builder, op, operands, self.phases[op])
