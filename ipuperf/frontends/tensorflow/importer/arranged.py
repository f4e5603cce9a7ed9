"""Tensors whose axes lie as ops over images have them, ``(N, C, *spatial)``, while TensorFlow's order is another one.

Such a value goes from one op over images to the next, through element-wise ops between them, without a transpose; one
is made where an op asks for TensorFlow's order, and once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.functions.arranging import permuted, reshaped
from ipuperf.ir import DType, Tensor

from .values import Value

if TYPE_CHECKING:
    from .node import Node


class Arranged:
    """A tensor with its axes in another order than TensorFlow's.

    Attributes:
        inner: the tensor.
        order: ``inner`` is TensorFlow's tensor with its axes in this order.
    """

    __slots__ = ("_outer", "inner", "order")

    def __init__(self, inner: Tensor, order: tuple[int, ...], outer: Tensor | None = None) -> None:
        self.inner = inner
        self.order = order
        self._outer = outer

    def outer(self) -> Tensor:
        """The tensor in TensorFlow's order; made when first asked for (in a graph inside of the tensor's each time)."""
        if self._outer is not None:
            return self._outer
        tensor = permuted(self.inner, [self.order.index(axis) for axis in range(len(self.order))])
        # A branch or loop body has a tensor of its own, which is no use outside of it.
        if tensor.graph is self.inner.graph:
            self._outer = tensor
        return tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in TensorFlow's order."""
        return tuple(self.inner.shape[self.order.index(axis)] for axis in range(len(self.order)))

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.inner.dtype


class Values(dict[int, Value]):
    """Values by the identity of TensorFlow's tensors; a look-up gives them in TensorFlow's order."""

    def __getitem__(self, key: int) -> Value:
        return plain(super().__getitem__(key))

    def arranged(self, key: int) -> Value:
        """The value in the order that it has."""
        return super().__getitem__(key)


def plain(value: Value) -> Value:
    """A value in TensorFlow's order."""
    return value.outer() if isinstance(value, Arranged) else value


def taken(node: Node, index: int, value: Value, order: tuple[int, ...]) -> Tensor:
    """Operand ``index`` of an op with its axes in an order; other ops that take it so find it made."""
    if isinstance(value, Arranged) and value.order == order:
        return value.inner
    outer = node.tensor(plain(value))
    tensor = permuted(outer, order)
    if tensor is not outer:
        node.importer.values[id(node.op.inputs[index])] = Arranged(tensor, order, outer)
    return tensor


def together(node: Node, values: Sequence[Value]) -> tuple[list[Tensor], tuple[int, ...]] | None:
    """The operands of an element-wise op in the order that one of them has, and that order; None where none has one, or
    where one has another shape than a number's, a channel vector's or that of all."""
    arranged = next((v for v in values if isinstance(v, Arranged)), None)
    if arranged is None:
        return None
    tensors = [_beside(node, v, arranged) for v in values]
    return None if any(t is None for t in tensors) else ([t for t in tensors if t is not None], arranged.order)


def _beside(node: Node, value: Value, arranged: Arranged) -> Tensor | None:
    if isinstance(value, Arranged):
        return value.inner if value.order == arranged.order and value.shape == arranged.shape else None
    if not isinstance(value, (np.ndarray, Tensor)):
        return None
    shape, rank = tuple(value.shape), len(arranged.order)
    # A single number needs no order of axes.
    if set(shape) <= {1} and len(shape) <= rank:
        return reshaped(node.tensor(value), ())
    if shape == arranged.shape[-1:]:
        place = arranged.order.index(rank - 1)
        return reshaped(node.tensor(value), [shape[0] if axis == place else 1 for axis in range(rank)])
    return None
