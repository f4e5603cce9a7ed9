"""Which ops of a graph an import needs, and in which order.

Ops are needed whose outputs are used by others that are, by what the graph returns, or that are there for what they do.
An op that is only a control input of others is not imported; what it waits for is looked at all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph
from tensorflow.python.framework.func_graph import FuncGraph

from .table import Operations


def function_of(op: tf.Operation, attribute: str) -> FuncGraph:
    """The graph of the function that an op names in an attribute (``f``, ``body``, ``then_branch``)."""
    return named_function(op, op.get_attr(attribute).name)


def named_function(op: tf.Operation, name: str) -> FuncGraph:
    """The graph of the function of this name that an op calls."""
    graph: Any = op.graph
    while graph is not None:
        function = graph._functions.get(name) if hasattr(graph, "_functions") else None
        function = function or graph._get_function(name)
        if function is not None:
            return function.graph if hasattr(function, "graph") else _graph_of_definition(graph, function)
        graph = getattr(graph, "outer_graph", None)
    raise LookupError(f"{op.name}: the graph has no function {name!r}")


def _graph_of_definition(around: tf.Graph, function: Any) -> FuncGraph:
    """The graph of a function that has only a definition (``Defun`` of version 1), made once."""
    if not hasattr(function, "ipuperf_graph"):
        with around.as_default():
            function.ipuperf_graph = function_def_to_graph.function_def_to_graph(function.definition)
    graph: FuncGraph = function.ipuperf_graph
    return graph


def functions_of(op: tf.Operation) -> list[FuncGraph]:
    """The graphs of all functions that an op calls."""
    names: list[str] = []
    for value in op.node_def.attr.values():
        if value.HasField("func"):
            names.append(value.func.name)
        elif value.HasField("list"):
            names += [f.name for f in value.list.func]
    return [named_function(op, name) for name in names]


def ancestors(roots: Iterable[tf.Operation]) -> Iterator[tf.Operation]:
    """Ops and all those that they are computed from, each once."""
    waiting, seen = list(roots), set()
    while waiting:
        op = waiting.pop()
        if id(op) not in seen:
            seen.add(id(op))
            yield op
            waiting += [t.op for t in op.inputs]


class SideEffects:
    """Whether ops do something besides giving their outputs; functions are looked at once.

    An op without outputs that the table does not know is there for what it does, too (``tf.print``).
    """

    def __init__(self, table: Operations) -> None:
        self._table = table
        self._graphs: dict[int, bool] = {}

    def of(self, op: tf.Operation) -> bool:
        """Whether ``op`` is there for what it does."""
        kind = op.type
        if self._table.has_effect(kind):
            return True
        if self._table[kind] is None and not op.outputs:
            return True
        # A call has the effects of what its functions hold, however pure it looks.
        calls = kind in ("StatefulPartitionedCall", "PartitionedCall", "While", "If", "Case")
        return calls and any(self.of_graph(graph) for graph in functions_of(op))

    def of_graph(self, graph: FuncGraph) -> bool:
        """Whether an op of a function's graph, or of what it calls, is there for what it does."""
        key = id(graph)
        if key not in self._graphs:
            self._graphs[key] = any(self.of(op) for op in graph.get_operations())
        return self._graphs[key]


def passes_apart(op: tf.Operation, differentiated: bool) -> bool:
    """Whether each result of an op is one of its operands, and needs no other one. A gradient of the program's own,
    which is taken from the op where stages are differentiated, needs all."""
    return op.type == "IdentityN" and not (differentiated and "_gradient_op_type" in op.node_def.attr)


def needed_operations(
    graph: tf.Graph,
    outputs: Iterable[tf.Tensor],
    targets: Sequence[tf.Operation],
    effects: SideEffects,
    *,
    alone: bool = False,
    known: Collection[int] = (),
    differentiated: bool = False,
) -> list[tf.Operation]:
    """The ops to import, each after its operands and control inputs, otherwise in the order of the graph. (TensorFlow
    appends operands to a loop when it differentiates it, so the graph's order alone does not do.)

    Args:
        alone: without those that others only wait for.
        known: identities of tensors whose values are given: what they are computed from is not needed.
        differentiated: the graph is differentiated after its import (:attr:`Place.differentiated`).
    """
    needed: set[tuple[int, int]] = set()
    seen: set[tuple[int, int]] = set()

    def source(tensor: tf.Tensor) -> tuple[tf.Operation, int]:
        """The op of a tensor, and the only operand that the tensor needs; -1: all."""
        return tensor.op, tensor.value_index if passes_apart(tensor.op, differentiated) else -1

    waiting = [(*source(t), True) for t in outputs if id(t) not in known] + [(op, -1, False) for op in targets]
    while waiting:
        op, operand, used = waiting.pop()
        key = id(op), operand
        # An op may be met first as one that others wait for, and only later as one whose result is used.
        if key in needed or (key in seen and not used):
            continue
        seen.add(key)
        used = used or effects.of(op)
        if used:
            needed.add(key)
        operands = op.inputs if operand < 0 else [op.inputs[operand]]
        waiting += [(*source(t), used) for t in operands if id(t) not in known]
        waiting += [] if alone else [(control, -1, False) for control in op.control_inputs]
    # Order passes through ops that are only waited for, so they go only after the sorting.
    met, imported = ({key for key, _ in keys} for keys in (seen, needed))
    ordered = _sorted([op for op in graph.get_operations() if id(op) in met], known)
    return [op for op in ordered if id(op) in imported]


def _sorted(operations: Sequence[tf.Operation], known: Collection[int]) -> list[tf.Operation]:
    """Ops with what they wait for before them, otherwise in their order."""
    done: set[int] = set()
    order: list[tf.Operation] = []
    # A stack of its own: graphs are deeper than Python's recursion.
    for root in operations:
        stack = [root]
        while stack:
            op = stack[-1]
            waits = [t.op for t in op.inputs if id(t) not in known and id(t.op) not in done]
            waits += [control for control in op.control_inputs if id(control) not in done]
            if waits:
                stack += reversed(waits)
                continue
            stack.pop()
            if id(op) not in done:
                done.add(id(op))
                order.append(op)
    return order


#: Ops whose result is their operand itself.
PASSED_ON = frozenset(
    {"Identity", "IdentityN", "StopGradient", "PreventGradient", "EnsureShape", "Snapshot", "Reshape", "Transpose"}
)


def reads_to_copy(
    operations: Sequence[tf.Operation], outputs: Sequence[tf.Tensor], effects: SideEffects, *, called: bool
) -> set[int]:
    """Identities of those ops of ``operations`` (in order) that read a variable and whose value is used after a later
    op may have changed the variable: also after the graph, if it is ``called`` by another one."""
    changes: dict[int, int] = {}
    last_use: dict[int, int] = {id(t): len(operations) + called for t in outputs}
    copies: set[int] = set()
    # Backwards, so that the last use of a value is known before its read.
    for place in range(len(operations) - 1, -1, -1):
        op = operations[place]
        if op.type in PASSED_ON:
            # A value lives as long as what passes it on.
            for result, operand in zip(op.outputs, op.inputs):
                last_use[id(operand)] = max(last_use.get(id(operand), place), last_use.get(id(result), place))
        else:
            for tensor in op.inputs:
                last_use.setdefault(id(tensor), place)
        if op.type == "ReadVariableOp":
            handle, value = id(op.inputs[0]), id(op.outputs[0])
            if changes.get(handle, len(operations)) < last_use.get(value, place):
                copies.add(id(op))
        elif effects.of(op):
            changes.update((id(t), place) for t in op.inputs if t.dtype == tf.resource)
    return copies
