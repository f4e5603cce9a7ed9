"""What the compiler must know of a graph before it binds memory: order, storage groups, lifetimes, changes.

A *storage group* is the set of tensors of a graph that live in the same memory: results of in-place ops and views, and
those results of copying ops (Transpose, Reshape, Slice...) for which nobody can tell a copy from a view. Its lifetime
ends with the last op that reads any of its tensors.
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
        kept: representatives of groups that hold an output of the graph.
        changes: for each representative the positions of ops that change it in place.
        written: results whose storage the program itself shares with a tensor that is changed in place.
        elided: copying ops whose result is to be a view of their first input.
        unread: ``Init`` ops whose values are overwritten before anybody reads them.
    """

    graph: Graph
    order: list[Op]
    last_use: dict[Tensor, int] = field(default_factory=dict)
    kept: set[Tensor] = field(default_factory=set)
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
        return {i for i, t in enumerate(self.graph.inputs) if self.group(t) in self.changes}


def make_plan(graph: Graph, shared: Sequence[tuple[int, int]] = ()) -> Plan:
    """Analyse ``graph``; ``shared`` are pairs of its inputs that live in the same memory at this call."""
    plan = Plan(graph, schedule(graph))
    for first, second in shared:
        plan._parent[graph.inputs[second]] = graph.inputs[first]
    for op in plan.order:
        for index, source in op.aliases().items():
            plan._parent[op.outputs[index]] = plan.group(op.inputs[source])
    for position, op in enumerate(plan.order):
        for tensor in (*op.inputs, *op.outputs):
            plan.last_use[plan.group(tensor)] = position
        for index in op.modified_inputs():
            plan.changes.setdefault(plan.group(op.inputs[index]), []).append(position)
        if op.type == "Init" and _is_overwritten(op.outputs[0]):
            plan.unread.add(op)
    plan.kept = {plan.group(t) for t in graph.outputs}
    plan.written = {t for op in plan.order for t in op.outputs if plan.group(t) in plan.changes}
    for position, op in enumerate(plan.order):
        if isinstance(op, ConcatInplace):
            _check_joined(plan, position, op)
    for position, op in enumerate(plan.order):  # only now: a copy that is elided shares nothing that users see
        if _copies_a_view(op):
            _elide(plan, position, op)
    return plan


def _check_joined(plan: Plan, position: int, op: Op) -> None:
    """IrError where somebody reads the operands of an in-place concat after its result was changed, or its result after
    an operand was changed: the value is a copy here."""
    result = plan.group(op.outputs[0])
    sources = {plan.group(t) for t in op.inputs}
    seen = [t for t in sources if isinstance(t, Variable) or t in plan.graph.inputs or t in plan.kept]
    for change in plan.changes.get(result, ()):
        if seen or any(plan.last_use[t] > change for t in sources):
            _refuse_joined(op, plan.order[change], "an operand of it")
    read = len(plan.order) if result in plan.kept else plan.last_use[result]
    for change in (change for t in sources for change in plan.changes.get(t, ()) if position < change < read):
        _refuse_joined(op, plan.order[change], "its result")


def _refuse_joined(op: Op, changer: Op, read: str) -> None:
    raise IrError(f"{op.where()}: {changer.label} changes what it shares, and {read} is read later; use concat")


def _overwrites(op: Op) -> bool:
    return isinstance(op, base.Op) and op.overwrites


def _is_overwritten(tensor: Tensor) -> bool:
    """True when the only op that uses the tensor overwrites all of it."""
    consumers = tensor.consumers
    return len(consumers) == 1 and _overwrites(consumers[0]) and tensor not in tensor.graph.outputs


def _copies_a_view(op: Op) -> bool:
    """True for ops that own their result but could give it as a view of their first input."""
    return isinstance(op, base.Op) and type(op).view is not base.Op.view and not op.aliases() and len(op.outputs) == 1


def _elide(plan: Plan, position: int, op: Op) -> None:
    """Merge the result of a copying op into its source's group when no change can be observed.

    The result must not be changed in place nor leave the graph, and the source must not be changed between the op and
    the last use of the result.
    """
    source, result = plan.group(op.inputs[0]), plan.group(op.outputs[0])
    if source is result or result in plan.changes or result in plan.kept:
        return
    end = plan.last_use[result]
    if any(position < change <= end for change in plan.changes.get(source, ())):
        return
    plan._parent[result] = source
    plan.last_use[source] = max(plan.last_use[source], plan.last_use.pop(result))
    plan.elided.add(op)


def dead_ops(plan: Plan, needed: Sequence[bool]) -> set[Op]:
    """Ops of ``plan`` whose results reach no needed output of the graph and that do nothing else.

    Ops that change or alias an operand, read streams or remote buffers (they alias the tensor they fill), call graphs,
    print or have no result are never dead.
    """
    wanted = {t for t, need in zip(plan.graph.outputs, needed, strict=True) if need}
    dead: set[Op] = set()
    for op in reversed(plan.order):
        pure = op.outputs and not (op.modified_inputs() or op.aliases() or op.called_graphs() or op.seen())
        if pure and not any(t in wanted for t in op.outputs):
            dead.add(op)
        else:
            wanted.update(op.inputs)
    return dead
