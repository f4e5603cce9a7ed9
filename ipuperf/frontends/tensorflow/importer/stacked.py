"""Lists of tensors as one tensor with the items along its first axis: what loops on the IPU carry.

A loop gets such a list by reference and writes items where they are. A list that grows or shrinks by one item in each
iteration has its greatest length from the start; how many items it has follows from the loop's counter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from ipuperf.functions import arithmetic, constant, shapes
from ipuperf.functions.arranging import cut, reshaped
from ipuperf.functions.selection import dynamic_slice, dynamic_update, dynamic_update_
from ipuperf.ir import CONTEXT, INT32, DType, Tensor

from .lists import TensorList
from .node import Node
from .place import Place
from .values import Value


@dataclass(frozen=True, eq=False)
class Counter:
    """Number of the iteration of a loop: a scalar of the body's graph."""

    tensor: Tensor


@dataclass(eq=False)
class ListStorage:
    """Where a loop writes a list: a tensor around it that it gets by reference, made when it is first needed.

    Attributes:
        around: the place around the loop; inner: that of its body, whose first ``carried`` inputs change.
        shape, dtype: of the tensor.
        buffer: the tensor; None: zeros.
    """

    around: Place
    inner: Place
    carried: int
    shape: tuple[int, ...]
    dtype: DType
    buffer: Tensor | None = None

    def is_same(self, item: Value) -> bool:
        """Whether a value of the body is the same in every iteration: known, or used from around the loop."""
        if isinstance(item, np.ndarray):
            return True
        inputs = self.inner.graph.inputs
        # Inputs behind the carried ones are the same in every iteration.
        return isinstance(item, Tensor) and item in inputs and inputs.index(item) >= self.carried

    def outer(self) -> Tensor:
        """The tensor around the loop."""
        if self.buffer is None:
            with CONTEXT.building(self.around):
                self.buffer = shapes.init(self.shape, self.dtype, "list")
        return self.buffer

    def image(self) -> Tensor:
        """The tensor in the body."""
        image = self.inner.get(self.outer())
        image.by_ref = True
        return image


@dataclass(frozen=True, eq=False)
class StackedList:
    """A list in one tensor.

    Attributes:
        tensor: ``(most items, *shape of an item)``; None: that of the storage, which may not be made yet.
        dtype: of the items, TensorFlow's.
        length: number of items; with a counter that of iteration 0.
        counter: where the number of items follows from that of the iteration; None: it is ``length``.
        step: how many items each iteration adds.
        storage: where the list is written; None: it is not to be changed where it is.
        same: the value of every item, where all are the same.
    """

    tensor: Tensor | None
    dtype: tf.DType
    length: int
    counter: Counter | None = None
    step: int = 0
    storage: ListStorage | None = None
    same: Value = None

    @property
    def buffer(self) -> Tensor:
        """The tensor."""
        if self.tensor is not None:
            return self.tensor
        assert self.storage is not None
        return self.storage.image()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an item."""
        whole = self.storage if self.tensor is None else self.tensor
        assert whole is not None
        return tuple(whole.shape[1:])

    def place_of(self, node: Node, index: int) -> Tensor | int:
        """Where the item ``index`` is; negative ones count from the end."""
        if index >= 0 or self.counter is None:
            return index if index >= 0 else index + self.length
        offset = index + self.length
        number = node.place.get(self.counter.tensor)
        if self.step < 0:
            return arithmetic.sub(constant(offset, INT32), number)
        return number if not offset else arithmetic.add(number, constant(offset, INT32))

    def end(self, node: Node) -> Tensor | int:
        """Where the next item goes."""
        longer = replace(self, length=self.length + 1)
        return longer.place_of(node, -1)

    def item(self, node: Node, index: Tensor | int) -> Tensor:
        """The item at a position."""
        buffer = node.place.get(self.buffer)
        if isinstance(index, int):
            if not 0 <= index < buffer.shape[0]:
                raise node.error(f"item {index} of a list of {self.length}")
            row = cut(buffer, 0, index, index + 1)
            # The row would be the buffer itself, which the next write changes.
            row = arithmetic.identity(row) if row is buffer and self.storage is not None else row
        else:
            row = dynamic_slice(buffer, reshaped(node.place.get(index), (1,)), [0], [1])
        return reshaped(row, self.shape)

    def with_item(self, node: Node, index: Tensor | int, item: Value) -> StackedList:
        """Another item at a position: where it is, if nothing else uses the list as it is before."""
        where = constant(index, INT32) if isinstance(index, int) else node.place.get(index)
        buffer, place = node.place.get(self.buffer), reshaped(where, (1,))
        value = reshaped(node.tensor(item, buffer.dtype), (1, *self.shape))
        written = self.storage is not None and _last_use(node)
        if written and self.storage is not None and buffer.graph is self.storage.image().graph:
            return replace(self, tensor=dynamic_update_(buffer, place, value, [0], [1]))
        return replace(self, tensor=dynamic_update(buffer, place, value, [0], [1]), storage=None)

    def pushed(self, node: Node, item: Value) -> StackedList:
        """One item more. What is the same in every iteration is not written."""
        fresh = self.tensor is None and not self.length and self.counter is not None
        if fresh and self.storage is not None and self.storage.is_same(item):
            return replace(self, length=1, same=item)
        return replace(self.with_item(node, self.end(node), item), length=self.length + 1)

    def without_last(self) -> StackedList:
        """One item fewer."""
        return replace(self, length=self.length - 1)

    def whole(self, node: Node) -> Tensor:
        """All items along a first axis.

        Raises:
            GraphError: how many they are depends on the iteration.
        """
        if self.counter is not None:
            raise node.error("it needs all items of a list that grows in the loop; its length has to be fixed")
        return cut(node.place.get(self.buffer), 0, 0, self.length)

    def listed(self, node: Node) -> TensorList:
        """The items as values of their own."""
        whole = self.whole(node)
        items = [reshaped(cut(whole, 0, i, i + 1), self.shape) for i in range(self.length)]
        return TensorList(tuple(items), self.dtype, self.shape)


@dataclass(frozen=True, eq=False)
class OneItem:
    """A list of zeros but for one item, whose position is computed on the IPU: what a gradient adds to another list."""

    index: Tensor
    value: Tensor
    length: int
    dtype: tf.DType

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an item."""
        return tuple(self.value.shape)


def _last_use(node: Node) -> bool:
    """Whether the op is the last one that uses the lists that it takes."""
    # A list that the graph returns is used after its last op.
    returned = {id(t) for t in getattr(node.op.graph, "outputs", ())}
    return all(
        # TensorFlow numbers ops in the order in which they were made.
        id(operand) not in returned and all(op is node.op or op._id < node.op._id for op in operand.consumers())
        for operand in node.op.inputs
        if operand.dtype == tf.variant
    )


def added(node: Node, total: StackedList, one: OneItem) -> StackedList:
    """A list plus another one that has one item."""
    return total.with_item(node, one.index, total.item(node, one.index) + node.place.get(one.value))
