"""Loops: the IR's ``Loop``, whose number of iterations is known.

It follows from counters (:mod:`.counting`). Where data decides, too, whether a loop goes on, counters say how often it
runs at most: each iteration then asks whether it still computes, and the time is that of the greatest number. Lists of
tensors are one tensor each in the loop (:mod:`.stacked`). Loops are unrolled where gradients are ipuperf's (the IR's
loop has none), and where the shape of a list's items is not known before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf.functions import arithmetic, constant, make, shapes
from ipuperf.functions.arranging import joined, reshaped
from ipuperf.ir import BOOL, CONTEXT, INT32, Tensor, TensorSpec
from ipuperf.ops import CopyVarUpdate, Loop
from ipuperf.ops.control import modified_graph_inputs

from ..counting import Counted, UnknownValue, count
from ..errors import GraphError
from ..lists import TensorList
from ..needed import function_of
from ..node import Node
from ..stacked import Counter, ListStorage, OneItem, StackedList
from ..table import Family
from ..values import Value
from .control import either
from .lists import stacked_list

FAMILY = Family("Loops")
op = FAMILY.op

LISTS = (TensorList, StackedList, OneItem)


@op("While", "StatelessWhile", folds=False)
def while_loop(node: Node, *values: Value) -> Sequence[Value]:
    """A body as long as a condition on counters holds."""
    cond, body = function_of(node.op, "cond"), function_of(node.op, "body")
    try:
        counted = count(cond, body, values)
    except UnknownValue as reason:
        raise node.error(
            f"how often it runs depends on data ({reason}), and programs of the IPU have fixed lengths here: give "
            "tf.while_loop its maximum_iterations, loop over a tf.range of a constant, or select by a condition"
        ) from None
    # One trip gains nothing from being a loop.
    if counted.trips <= 1 and not counted.data:
        return _unrolled(node, body, values, counted.trips)
    lists = None if node.place.differentiated else _lists(node, body, values, counted)
    if lists is not None:
        looped = _Looped(node, cond, body, values, counted, lists)
        try:
            return looped.build()
        except GraphError:
            if not lists or counted.data:
                raise
            looped.forget()  # what needs the iteration's number may be known in each iteration
    if counted.data:
        return _asked(node, cond, body, values, counted.trips)
    return _unrolled(node, body, values, counted.trips)


def _unrolled(node: Node, body: FuncGraph, values: Sequence[Value], trips: int) -> Sequence[Value]:
    for _ in range(trips):
        values = node.importer.call(body, values)
    return values


def _asked(node: Node, cond: FuncGraph, body: FuncGraph, values: Sequence[Value], trips: int) -> Sequence[Value]:
    """The iterations behind each other, each of which asks whether it computes."""
    for _ in range(trips):
        values = _if_it_holds(node, cond, body, values)
    return values


def _if_it_holds(node: Node, cond: FuncGraph, body: FuncGraph, values: Sequence[Value]) -> list[Value]:
    """The values after an iteration where the condition holds, else as they are. A condition that does not hold will
    not hold again, as nothing changes."""
    (flag,) = node.importer.call(cond, values)
    tensor = reshaped(node.tensor(flag, BOOL), ())
    return either(node, node.importer, tensor, [lambda i: i.call(body, values), lambda i: list(values)])


# -- lists -------------------------------------------------------------------------------------------------------------


@dataclass
class _Carried:
    """A list that a loop changes.

    Attributes:
        value: before the loop.
        shape: of an item.
        length: number of items before the loop.
        step: how many items an iteration adds.
        written: the loop writes items, not only takes them off.
    """

    value: Value
    shape: tuple[int, ...]
    length: int
    step: int
    written: bool

    @property
    def known(self) -> TensorList | None:
        """The list itself where the loop only takes items off, which are all the same."""
        items = self.value.items if isinstance(self.value, TensorList) else ()
        same = items and items[0] is not None and all(item is items[0] for item in items)
        return self.value if same and not self.written else None

    def buffer(self, node: Node, trips: int) -> Tensor | None:
        """A tensor with place for what the loop adds, of its own where the loop writes; None for zeros."""
        more = max(0, self.step) * trips
        if isinstance(self.value, TensorList) and all(item is None for item in self.value.items):
            return None
        whole = stacked_list(node, self.value).whole(node)
        if more:
            return joined([whole, shapes.init((more, *self.shape), whole.dtype, "list")], 0)
        # Something else may still read the list as it is, so the loop writes into a copy.
        return arithmetic.identity(whole) if self.written else whole


def _lists(node: Node, body: FuncGraph, values: Sequence[Value], counted: Counted) -> dict[int, _Carried] | None:
    """The lists that the loop changes, by loop variable; None: one of them cannot be one tensor."""
    carried: dict[int, _Carried] = {}
    for i, value in enumerate(values):
        if not isinstance(value, LISTS) or i in counted.invariant:
            continue
        change = _change(body, i)
        if change.step and counted.data:
            raise node.error(
                "data decide how often it runs, so a list that grows in it (as its gradient needs one) has no fixed "
                "length; loop over a tf.range of a constant, and select by a condition inside"
            )
        item_shape = _item_shape(value)
        shape = change.shape if item_shape is None else item_shape
        if shape is None or value.dtype == tf.variant:
            return None
        length = len(value.items) if isinstance(value, TensorList) else value.length
        if length + change.step * counted.trips < 0:
            raise node.error(f"it takes {-change.step * counted.trips} items off a list of {length}")
        carried[i] = _Carried(value, shape, length, change.step, change.written)
    return carried


@dataclass
class _Change:
    """What an iteration does to a list."""

    step: int = 0
    written: bool = False
    shape: tuple[int, ...] | None = None


def _change(body: FuncGraph, index: int) -> _Change:
    change, tensor = _Change(), body.outputs[index]
    while tensor is not body.inputs[index]:
        made = tensor.op
        for op_ in (made, *(t.op for t in made.inputs)):  # what an AddN adds is written by the ops before it
            if op_.type in ("TensorListPushBack", "TensorListSetItem") and op_.inputs[-1].shape.is_fully_defined():
                change.shape = tuple(op_.inputs[-1].shape.as_list())
        change.written = change.written or made.type not in ("Identity", "TensorListPopBack")
        change.step += {"TensorListPushBack": 1, "TensorListPopBack": -1}.get(made.type, 0)
        if made.type not in ("Identity", "TensorListPushBack", "TensorListPopBack", "TensorListSetItem"):
            break
        tensor = made.inputs[0]
    return change


def _item_shape(value: Value) -> tuple[int, ...] | None:
    if isinstance(value, OneItem):
        return tuple(value.value.shape)
    if isinstance(value, TensorList) and value.shape is None:
        written = [item for item in value.items if item is not None]
        return tuple(written[0].shape) if written else None
    shape: tuple[int, ...] | None = value.shape
    return shape


# -- the loop ----------------------------------------------------------------------------------------------------------


class _Looped:
    """One loop: variables that change are carried, others are captured, lists are written where they are."""

    def __init__(
        self,
        node: Node,
        cond: FuncGraph,
        body: FuncGraph,
        values: Sequence[Value],
        counted: Counted,
        lists: dict[int, _Carried],
    ) -> None:
        self.node, self.cond, self.body = node, cond, body
        self.values = [self._invariant(i, v, counted) for i, v in enumerate(values)]
        self.counted = counted
        self.lists = lists
        self.count = 0
        self.read: dict[int, Tensor] = {}
        # Where data decide, nobody knows where the counters end.
        self.final = {} if counted.data else counted.final
        changing = [i for i in range(len(values)) if i not in counted.invariant and i not in lists]
        results = [i for i in [*changing, *lists] if i not in self.final]
        uses = node.importer.uses
        # A counter with a known end is carried only where the body needs it for something else.
        self.carried = [i for i in changing if i not in self.final or uses(body, i, results)]
        self.place = node.place.inner("while", node.place.executions * counted.trips)
        self.own = Node(node.importer.inside(self.place), node.op)

    def _invariant(self, index: int, value: Value, counted: Counted) -> Value:
        """A list that the loop only reads, in one tensor."""
        whole = isinstance(value, TensorList) and any(isinstance(item, Tensor) for item in value.items)
        return stacked_list(self.node, value) if whole and index in counted.invariant else value

    def build(self) -> list[Value]:
        """The values after it."""
        initial = [self.node.tensor(self.values[i]) for i in self.carried]
        # Where the next item goes follows from the number of the iteration, so the loop counts it.
        numbered = any(one.step and one.known is None for one in self.lists.values())
        if numbered:
            initial.append(constant(0, INT32))
        self.count = len(initial)
        inputs = [
            self.place.graph.add_input(TensorSpec(t.shape, t.dtype), f"carried_{i}") for i, t in enumerate(initial)
        ]
        with CONTEXT.building(self.place):
            inner = self._inner(inputs, Counter(inputs[-1]) if numbered else None)
            after = self._iteration(inner)
            for i, tensor in zip(self.carried, initial):
                _carry(self.own, self.body, i, after[i], tensor)
            if numbered:
                self.place.graph.add_output(arithmetic.add(inputs[-1], constant(1, INT32)))
            lists = {i: self._written(i, inner[i], after[i]) for i in self.lists}
        operands = [*initial, *self.place.captured]
        names = [f"{self.node.op.name}_{i}" for i in range(len(initial))]
        builder = self.node.place
        outputs = builder.create(Loop, operands, names, callee=self.place.graph, trip_count=self.counted.trips).outputs
        return self._after(outputs, lists)

    def forget(self) -> None:
        """Take back the body, which was not finished."""
        del self.node.place.graph.ir.graphs[self.place.graph.name]

    def _iteration(self, inner: Sequence[Value]) -> Sequence[Value]:
        if self.counted.data:
            return _if_it_holds(self.own, self.cond, self.body, inner)
        return self.own.importer.call(self.body, inner)

    def _inner(self, inputs: Sequence[Tensor], counter: Counter | None) -> list[Value]:
        """The values in the body."""
        inner = list(self.values)
        for i, tensor in zip(self.carried, inputs):
            inner[i] = tensor
        for i, one in self.lists.items():
            inner[i] = one.known if one.known is not None else self._stacked(one, counter if one.step else None)
        return inner

    def _stacked(self, one: _Carried, counter: Counter | None) -> StackedList:
        """A list in the body."""
        with CONTEXT.building(self.node.place):
            buffer = one.buffer(self.node, self.counted.trips)
        dtype = one.value.dtype
        if not one.written and buffer is not None:
            stacked = StackedList(self.place.get(buffer), dtype, one.length, counter, one.step)
            self.read[id(stacked)] = buffer
            return stacked
        shape = (one.length + max(0, one.step) * self.counted.trips, *one.shape)
        storage = ListStorage(self.node.place, self.place, self.count, shape, self.node.narrowed(dtype), buffer)
        return StackedList(None, dtype, one.length, counter, one.step, storage)

    def _written(self, index: int, before: Value, after: Value) -> Value:
        """The list after the loop, which after an iteration is where it was before.

        Raises:
            GraphError: its length does not change by the same number in each iteration.
        """
        one, trips = self.lists[index], self.counted.trips
        if one.known is not None:
            return one.known.with_items(one.known.items[: one.length + one.step * trips])
        stacked = stacked_list(self.own, after)
        if stacked.length != before.length + one.step or stacked.counter is not before.counter:
            raise self.own.error(f"list {self.body.inputs[index].name!r} does not grow evenly; use one of a fixed size")
        if stacked.same is not None:
            return TensorList((self._same(stacked.same),) * trips, stacked.dtype, one.shape)
        storage: ListStorage | None = before.storage
        if storage is not None and stacked.storage is not storage:
            make(CopyVarUpdate, storage.image(), self.place.get(stacked.buffer))
        outer = self.read[id(before)] if storage is None else storage.outer()
        return StackedList(outer, one.value.dtype, one.length + one.step * trips)

    def _same(self, item: Value) -> Value:
        """Outside of the loop, the value that the body has in every iteration; a variable's as it is now.

        Raises:
            GraphError: the body changes it.
        """
        if isinstance(item, np.ndarray):
            return item
        inputs = self.place.graph.inputs
        number = inputs.index(item)
        if number in modified_graph_inputs(self.place.graph):
            raise self.own.error("the body changes a variable whose values it collects")
        outer = self.place.captured[number - self.count]
        with CONTEXT.building(self.node.place):
            return arithmetic.identity(self.node.place.get(outer)) if item.by_ref else outer

    def _after(self, outputs: Sequence[Tensor], lists: dict[int, Value]) -> list[Value]:
        values = list(self.values)
        for i, tensor in zip(self.carried, outputs):
            values[i] = tensor
        values = [self.final.get(i, value) for i, value in enumerate(values)]
        return [lists.get(i, value) for i, value in enumerate(values)]


def _carry(node: Node, body: FuncGraph, index: int, value: Value, start: Tensor) -> None:
    """The value of a loop variable after an iteration, of the shape and type that it has before."""
    tensor, graph = node.tensor(value, start.dtype), node.place.graph
    if tensor.shape != start.shape:
        raise node.error(
            f"loop variable {body.inputs[index].name!r} has shape {start.shape} before an iteration and {tensor.shape} "
            "after it; programs of the IPU have fixed shapes"
        )
    # Each output has to be a tensor of its own, and an input is none.
    taken = tensor in graph.outputs or tensor in graph.inputs
    graph.add_output(arithmetic.identity(tensor) if taken else tensor)
