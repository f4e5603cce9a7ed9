"""Conditionals and loops.

A conditional whose condition is known is its branch; another one is the IR's ``If``. A loop's number of iterations has
to be known: it follows from counters (:mod:`.counting`). A loop is the IR's ``Loop``; it is unrolled where gradients
are ipuperf's (the IR's loop has none) or where it carries lists of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf.functions import arithmetic
from ipuperf.functions.arranging import reshaped
from ipuperf.ir import BOOL, CONTEXT, Tensor, TensorSpec
from ipuperf.ops import If, Loop

from .branches import BranchPlace
from .counting import Counted, UnknownValue, count
from .lists import TensorList
from .needed import function_of, named_function
from .node import Node
from .table import Family
from .values import MISSING, Resource, Value

if TYPE_CHECKING:
    from .importer import Importer

FAMILY = Family("Control flow")
op = FAMILY.op

Build = Callable[["Importer"], Sequence[Value]]

# -- conditionals ------------------------------------------------------------------------------------------------------


@op("If", "StatelessIf", folds=False)
def conditional(node: Node, condition: Value, *operands: Value) -> Sequence[Value]:
    """One of two functions."""
    then, other = (function_of(node.op, name) for name in ("then_branch", "else_branch"))
    if isinstance(condition, np.ndarray):
        return node.importer.call(then if condition.any() else other, operands)
    flag = node.tensor(condition)
    flag = flag if flag.dtype == BOOL else arithmetic.not_equal(flag, 0)
    builds: list[Build] = [lambda i, g=graph: i.call(g, operands) for graph in (then, other)]  # type: ignore[misc]
    return _either(node, node.importer, reshaped(flag, ()), builds)


@op("Case", "StatelessCase", folds=False)
def case(node: Node, index: Value, *operands: Value) -> Sequence[Value]:
    """One of several functions; the last one where the index is out of range."""
    graphs = [named_function(node.op, f.name) for f in node.op.get_attr("branches")]
    if isinstance(index, np.ndarray):
        chosen = int(index)
        return node.importer.call(graphs[chosen if 0 <= chosen < len(graphs) else -1], operands)
    return _one_of(node, node.importer, index, 0, graphs, operands)


def _one_of(
    node: Node, importer: Importer, index: Tensor, number: int, graphs: Sequence[FuncGraph], operands: Sequence[Value]
) -> Sequence[Value]:
    """The graph whose number is ``index``, the first of ``graphs`` having ``number``."""
    first, *rest = graphs
    if not rest:
        return importer.call(first, operands)
    flag = arithmetic.equal(importer.place.get(index), np.array(number, np.int32))
    builds: list[Build] = [
        lambda i: i.call(first, operands),
        lambda i: _one_of(node, i, index, number + 1, rest, operands),
    ]
    return _either(node, importer, reshaped(flag, ()), builds)


class _Side:
    """A branch that has been imported."""

    def __init__(self, node: Node, importer: Importer, build: Build) -> None:
        self.place = BranchPlace(importer.place, f"{importer.place.graph.name or 'main'}_branch")
        self.node = Node(importer.inside(self.place), node.op)
        with CONTEXT.building(self.place):
            self.values = list(build(self.node.importer))

    def add_output(self, value: Value) -> None:
        """A value as a further result of the branch."""
        with CONTEXT.building(self.place):
            tensor = self.node.tensor(value)
            graph = self.place.graph
            graph.add_output(arithmetic.identity(tensor) if tensor in graph.outputs else tensor)

    def value_of(self, resource: Resource) -> Tensor:
        """What a variable has after the branch."""
        with CONTEXT.building(self.place):
            return self.place.read(resource)


def _either(node: Node, importer: Importer, flag: Tensor, builds: Sequence[Build]) -> list[Value]:
    """One of two imports, by a condition that is computed on the IPU."""
    then, other = (_Side(node, importer, build) for build in builds)
    changed = list(dict.fromkeys([*then.place.assigned, *other.place.assigned]))
    pairs = list(zip(then.values, other.values, strict=True))
    pairs += [(then.value_of(resource), other.value_of(resource)) for resource in changed]
    leaves: list[tuple[Value, Value]] = []
    rebuilds = [_merge(node, *pair, leaves) for pair in pairs]
    for left, right in leaves:
        then.add_output(left)
        other.add_output(right)
    outputs: Sequence[Tensor] = []
    if leaves:
        operands = [flag, *then.place.captured, *other.place.captured]
        names = [f"{node.op.name}_{i}" for i in range(len(leaves))]
        graphs = {"then_branch": then.place.graph, "else_branch": other.place.graph}
        builder = importer.place
        outputs = builder.create(If, operands, names, **graphs).outputs
    values = [rebuild(outputs) for rebuild in rebuilds]
    for resource, value in zip(changed, values[len(then.values) :], strict=True):
        importer.place.assign(resource, value)
    return values[: len(then.values)]


def _merge(
    node: Node, left: Value, right: Value, leaves: list[tuple[Value, Value]]
) -> Callable[[Sequence[Tensor]], Value]:
    """Note the tensors of two branches' values that differ in ``leaves``; what makes one value of the conditional's
    results."""
    if left is MISSING and right is MISSING:
        return lambda outputs: MISSING
    if left is None and right is None:
        return lambda outputs: None
    if isinstance(left, TensorList) and isinstance(right, TensorList):
        if len(left.items) != len(right.items):
            raise node.error(f"its branches give lists of {len(left.items)} and {len(right.items)} tensors")
        parts = [_merge(node, a, b, leaves) for a, b in zip(left.items, right.items)]
        return lambda outputs: left.with_items([part(outputs) for part in parts])
    if isinstance(left, Resource) and left == right:
        return lambda outputs: left
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and np.array_equal(left, right):
        return lambda outputs: left
    pair = (
        (_zeros(right) if left is MISSING or left is None else left),
        (_zeros(left) if right is MISSING or right is None else right),
    )
    place = len(leaves)
    leaves.append(pair)
    return lambda outputs: outputs[place]


def _zeros(value: Value) -> np.ndarray:
    """Zeros like the value of the other branch, which nothing reads."""
    return np.zeros(value.shape, value.dtype.numpy if isinstance(value, Tensor) else value.dtype)


@op("FakeParam", "OptionalNone", folds=False)
def fake_param(_node: Node) -> Value:
    """A value that the other branch gives and nothing reads from this one."""
    return MISSING


# -- loops -------------------------------------------------------------------------------------------------------------


@op("While", "StatelessWhile", folds=False)
def while_loop(node: Node, *values: Value) -> Sequence[Value]:
    """A body as long as a condition on counters holds."""
    cond, body = function_of(node.op, "cond"), function_of(node.op, "body")
    try:
        counted = count(cond, body, values)
    except UnknownValue as reason:
        raise node.error(
            f"how often it runs depends on data ({reason}), which a program of the IPU cannot express here; loop over "
            "a tf.range of a constant, or select by a condition"
        ) from None
    if node.place.differentiated or any(isinstance(v, TensorList) for v in values):
        return _unrolled(node, body, values, counted.trips)
    return _looped(node, body, values, counted)


def _unrolled(node: Node, body: FuncGraph, values: Sequence[Value], trips: int) -> Sequence[Value]:
    for _ in range(trips):
        values = node.importer.call(body, values)
    return values


def _looped(node: Node, body: FuncGraph, values: Sequence[Value], counted: Counted) -> list[Value]:
    """The IR's loop: variables that change are carried, others are captured."""
    if not counted.trips:
        return list(values)
    changing = [i for i in range(len(values)) if i not in counted.invariant]
    results = [i for i in changing if i not in counted.final]
    carried = [i for i in changing if i not in counted.final or node.importer.uses(body, i, results)]
    place = node.place.inner("while", node.place.executions * counted.trips)
    initial = [node.tensor(values[i]) for i in carried]
    inner = list(values)
    for i, tensor in zip(carried, initial, strict=True):
        spec = TensorSpec(tensor.shape, tensor.dtype)
        inner[i] = place.graph.add_input(spec, f"carried_{i}")
    own = Node(node.importer.inside(place), node.op)
    with CONTEXT.building(place):
        after = own.importer.call(body, inner)
        for i, tensor in zip(carried, initial, strict=True):
            _carry(own, body, i, after[i], tensor)
    operands = [*initial, *place.captured]
    names = [f"{node.op.name}_{i}" for i in carried]
    builder = node.place
    outputs = builder.create(Loop, operands, names, callee=place.graph, trip_count=counted.trips).outputs
    found = list(values)
    for i, tensor in zip(carried, outputs, strict=True):
        found[i] = tensor
    for i, value in counted.final.items():
        found[i] = value
    return found


def _carry(node: Node, body: FuncGraph, index: int, value: Value, start: Tensor) -> None:
    """The value of a loop variable after an iteration, of the shape and type that it has before."""
    tensor, graph = node.tensor(value, start.dtype), node.place.graph
    if tensor.shape != start.shape:
        raise node.error(
            f"loop variable {body.inputs[index].name!r} has shape {start.shape} before an iteration and {tensor.shape} "
            "after it; programs of the IPU have fixed shapes"
        )
    taken = tensor in graph.outputs or tensor in graph.inputs
    graph.add_output(arithmetic.identity(tensor) if taken else tensor)
