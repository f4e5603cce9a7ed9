"""Lists of tensors (``TensorList``) while a graph is imported: of a known length, with the values themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from .node import Node
from .values import Value


@dataclass(frozen=True)
class TensorList:
    """A list of tensors.

    Attributes:
        items: values; None where nothing has been written: zeros.
        dtype: of the elements, TensorFlow's.
        shape: of the elements; None: not known yet.
    """

    items: tuple[Value, ...]
    dtype: tf.DType
    shape: tuple[int, ...] | None = None

    def with_item(self, index: int, item: Value) -> TensorList:
        """Another item at a position."""
        return replace(self, items=(*self.items[:index], item, *self.items[index + 1 :]), shape=tuple(item.shape))

    def with_items(self, items: Sequence[Value]) -> TensorList:
        """Other items."""
        shape = tuple(items[0].shape) if items and items[0] is not None else self.shape
        return replace(self, items=tuple(items), shape=shape)

    def item(self, node: Node, index: int, shape: tuple[int, ...] | None = None) -> Value:
        """The item at a position, zeros where nothing has been written.

        Raises:
            GraphError: no such item, or zeros of a shape that is not known.
        """
        if not -len(self.items) <= index < len(self.items):
            raise node.error(f"item {index} of a list of {len(self.items)}")
        value = self.items[index]
        if value is not None:
            return value
        known = self.shape if self.shape is not None else shape
        if known is None:
            raise node.error(f"item {index} has not been written, and the shape of the list's elements is not known")
        return np.zeros(known, self.dtype.as_numpy_dtype)
