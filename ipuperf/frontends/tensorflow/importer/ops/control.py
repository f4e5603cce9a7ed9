"""Conditionals: one whose condition is known is its branch; another one is the IR's ``If``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf.functions import arithmetic
from ipuperf.functions.arranging import reshaped
from ipuperf.ir import BOOL, CONTEXT, Tensor
from ipuperf.ops import If

from ..branches import BranchPlace
from ..lists import TensorList
from ..needed import function_of, named_function
from ..node import Node
from ..stacked import OneItem, StackedList
from ..table import Family
from ..values import MISSING, Resource, Value
from .lists import stacked_list

if TYPE_CHECKING:
    from ..graph import Importer

FAMILY = Family("Conditionals")
op = FAMILY.op

Build = Callable[["Importer"], Sequence[Value]]

# -- conditionals ------------------------------------------------------------------------------------------------------


def _called(graph: FuncGraph, operands: Sequence[Value], importer: Importer) -> Sequence[Value]:
    return importer.call(graph, operands)


@op("If", "StatelessIf", folds=False)
def conditional(node: Node, condition: Value, *operands: Value) -> Sequence[Value]:
    """One of two functions."""
    then, other = (function_of(node.op, name) for name in ("then_branch", "else_branch"))
    if isinstance(condition, np.ndarray):
        return node.importer.call(then if condition.any() else other, operands)
    flag = node.tensor(condition)
    flag = flag if flag.dtype == BOOL else arithmetic.not_equal(flag, 0)
    builds: list[Build] = [partial(_called, graph, operands) for graph in (then, other)]
    return either(node, node.importer, reshaped(flag, ()), builds)


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
    return either(node, importer, reshaped(flag, ()), builds)


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

    def in_one_tensor(self, value: TensorList | StackedList | OneItem) -> StackedList:
        """A list of the branch in one tensor."""
        with CONTEXT.building(self.place):
            return stacked_list(self.node, value)

    def value_of(self, resource: Resource) -> Tensor:
        """What a variable has after the branch."""
        with CONTEXT.building(self.place):
            return self.place.read(resource)


def either(node: Node, importer: Importer, flag: Tensor, builds: Sequence[Build]) -> list[Value]:
    """One of two imports, by a condition that is computed on the IPU."""
    then, other = (_Side(node, importer, build) for build in builds)
    changed = list(dict.fromkeys([*then.place.assigned, *other.place.assigned]))
    pairs = [_alike(then, other, *pair) for pair in zip(then.values, other.values, strict=True)]
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


def _alike(then: _Side, other: _Side, left: Value, right: Value) -> tuple[Value, Value]:
    """Two branches' values: where one is a list in one tensor, the other becomes one as well."""
    if isinstance(left, (StackedList, OneItem)) or isinstance(right, (StackedList, OneItem)):
        return then.in_one_tensor(left), other.in_one_tensor(right)
    return left, right


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
    if isinstance(left, StackedList) and isinstance(right, StackedList):
        return _merge_stacked(node, left, right, leaves)
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


def _merge_stacked(
    node: Node, left: StackedList, right: StackedList, leaves: list[tuple[Value, Value]]
) -> Callable[[Sequence[Tensor]], Value]:
    """The lists of two branches, which are of one length."""
    if (left.length, left.counter) != (right.length, right.counter):
        raise node.error(f"its branches give lists of {left.length} and {right.length} tensors")
    place = len(leaves)
    leaves.append((left.buffer, right.buffer))
    return lambda outputs: replace(left, tensor=outputs[place], storage=None)


def _zeros(value: Value) -> np.ndarray:
    """Zeros like the value of the other branch, which nothing reads."""
    return np.zeros(value.shape, value.dtype.numpy if isinstance(value, Tensor) else value.dtype)


@op("FakeParam", "OptionalNone", folds=False)
def fake_param(_node: Node) -> Value:
    """A value that the other branch gives and nothing reads from this one."""
    return MISSING
