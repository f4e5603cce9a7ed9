"""The analysis of a graph before the compiler binds memory: order, storage groups, lifetimes, changes.

A *storage group* is the set of tensors of a graph that live in the same memory. These are results of in-place ops and
views, and those results of copying ops (Transpose, Reshape, Slice...) for which nobody can tell a copy from a view. Its
lifetime ends with the last op that reads any of its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ipuperf.ir import Graph, IrError, Op, Tensor, Variable, schedule
from ipuperf.ops import ConcatInplace, base


@dataclass
class Plan:
    """Order and storage of one graph.

    Attributes:
        order: ops in execution order.
        last_use: for each group's representative, the position of the last op that reads or defines it.
        output_groups: representatives of groups that hold an output of the graph.
        changes: for each representative the positions of ops that change it in place.
        written: results whose storage the program itself shares with a tensor that is changed in place.
        elided: copying ops whose result becomes a view of their first input.
        unread: ``Init`` ops whose values are overwritten before any op reads them.
    """

    graph: Graph
    order: list[Op]
    last_use: dict[Tensor, int] = field(default_factory=dict)
    output_groups: set[Tensor] = field(default_factory=set)
    changes: dict[Tensor, list[int]] = field(default_factory=dict)
    written: set[Tensor] = field(default_factory=set)
    elided: set[Op] = field(default_factory=set)
    unread: set[Op] = field(default_factory=set)
    _parent: dict[Tensor, Tensor] = field(default_factory=dict)

    def group(self, tensor: Tensor) -> Tensor:
        """The representative of the tensor's storage group."""
        while tensor in self._parent:
            tensor = self._parent[tensor]
        return tensor

    def changed_inputs(self) -> set[int]:
        """Indices of the graph's inputs that it changes in place."""
        return {index for index, tensor in enumerate(self.graph.inputs) if self.group(tensor) in self.changes}


def make_plan(graph: Graph, shared: Sequence[tuple[int, int]] = ()) -> Plan:
    """Analyse ``graph``. ``shared`` holds pairs of its inputs that live in the same memory at this call."""
    plan = Plan(graph, schedule(graph))
    for leader, follower in shared:
        # Inputs that share memory become one storage group before the ops are looked at.
        plan._parent[graph.inputs[follower]] = graph.inputs[leader]
    for op in plan.order:
        for index, source in op.aliases().items():
            plan._parent[op.outputs[index]] = plan.group(op.inputs[source])
    for position, op in enumerate(plan.order):
        for tensor in (*op.inputs, *op.outputs):
            # Positions ascend, so the last one remains.
            plan.last_use[plan.group(tensor)] = position
        for index in op.modified_inputs():
            plan.changes.setdefault(plan.group(op.inputs[index]), []).append(position)
        if op.type == "Init" and _is_overwritten(op.outputs[0]):
            plan.unread.add(op)
    plan.output_groups = {plan.group(tensor) for tensor in graph.outputs}
    plan.written = {tensor for op in plan.order for tensor in op.outputs if plan.group(tensor) in plan.changes}
    for position, op in enumerate(plan.order):
        if isinstance(op, ConcatInplace):
            _check_joined(plan, position, op)
    for position, op in enumerate(plan.order):  # last, as elided copies must not count as sharing that users asked for
        if _copies_a_view(op):
            _elide(plan, position, op)
    return plan


def _check_joined(plan: Plan, position: int, op: Op) -> None:
    """Raise IrError where an in-place concat would have to share memory, which it does not here: its value is a copy.

    That is where an operand is read after the result was changed, or the result after an operand was changed.
    """
    result = plan.group(op.outputs[0])
    sources = {plan.group(tensor) for tensor in op.inputs}
    # Something outside may read these after the graph has run, so any change of the result would show.
    visible = [
        tensor
        for tensor in sources
        if isinstance(tensor, Variable) or tensor in plan.graph.inputs or tensor in plan.output_groups
    ]
    for change_position in plan.changes.get(result, ()):
        if visible or any(plan.last_use[tensor] > change_position for tensor in sources):
            _refuse_joined(op, plan.order[change_position], "an operand of it")
    # An output is read by the caller, after all ops.
    last_read = len(plan.order) if result in plan.output_groups else plan.last_use[result]
    for change_position in (
        change_position
        for tensor in sources
        for change_position in plan.changes.get(tensor, ())
        if position < change_position < last_read
    ):
        _refuse_joined(op, plan.order[change_position], "its result")


def _refuse_joined(op: Op, changer: Op, reader: str) -> None:
    raise IrError(f"{op.where()}: {changer.label} changes what it shares, and {reader} is read later; use concat")


def _overwrites(op: Op) -> bool:
    return isinstance(op, base.Op) and op.overwrites


def _is_overwritten(tensor: Tensor) -> bool:
    """True when the only op that uses the tensor overwrites all of it."""
    consumers = tensor.consumers
    return len(consumers) == 1 and _overwrites(consumers[0]) and tensor not in tensor.graph.outputs


def _copies_a_view(op: Op) -> bool:
    """True for ops that own their result but could give it as a view of their first input."""
    # Only op classes with a view of their own can give one.
    return isinstance(op, base.Op) and type(op).view is not base.Op.view and not op.aliases() and len(op.outputs) == 1


def _elide(plan: Plan, position: int, op: Op) -> None:
    """Merge the result of a copying op into its source's group when no change can be observed.

    The result must not be changed in place nor leave the graph, and the source must not be changed between the op and
    the last use of the result.
    """
    source, result = plan.group(op.inputs[0]), plan.group(op.outputs[0])
    if source is result or result in plan.changes or result in plan.output_groups:
        return
    # A view stays valid only while nothing changes its source.
    end = plan.last_use[result]
    if any(position < change <= end for change in plan.changes.get(source, ())):
        return
    plan._parent[result] = source
    plan.last_use[source] = max(plan.last_use[source], plan.last_use.pop(result))
    plan.elided.add(op)


def dead_ops(plan: Plan, needed: Sequence[bool]) -> set[Op]:
    """Ops of ``plan`` whose results reach no needed output of the graph and that have no other effect.

    Ops that change or alias an operand, read streams or remote buffers (they alias the tensor they fill), call graphs,
    print or have no result are never dead.
    """
    needed_tensors = {tensor for tensor, is_needed in zip(plan.graph.outputs, needed, strict=True) if is_needed}
    dead: set[Op] = set()
    for op in reversed(plan.order):
        # Only pure ops may go; everything else may have an effect that somebody sees.
        pure = op.outputs and not (op.modified_inputs() or op.aliases() or op.called_graphs() or op.seen())
        if pure and not any(tensor in needed_tensors for tensor in op.outputs):
            dead.add(op)
        else:
            needed_tensors.update(op.inputs)
    return dead
