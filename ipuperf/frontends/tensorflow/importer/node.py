"""One op of a TensorFlow graph while it is imported: what handlers read of it, and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from ipuperf.functions import arithmetic
from ipuperf.ir import DType, Tensor

from .arranged import plain
from .errors import GraphError
from .origins import user_line
from .place import Place
from .values import DTYPES, Resource, Value

if TYPE_CHECKING:
    from .graph import Importer


class Node:
    """An op that is being imported.

    Attributes:
        op: TensorFlow's.
        importer: of its graph.
    """

    __slots__ = ("importer", "op")

    def __init__(self, importer: Importer, op: tf.Operation) -> None:
        self.importer = importer
        self.op = op

    @property
    def place(self) -> Place:
        """Where new ops go."""
        return self.importer.place

    def attr(self, name: str) -> Any:
        """An attribute; strings as ``str``."""
        value = self.op.get_attr(name)
        return value.decode() if isinstance(value, bytes) else value

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an output as TensorFlow inferred it.

        Raises:
            GraphError: it is not fixed.
        """
        known_shape = self.op.outputs[index].shape
        if not known_shape.is_fully_defined():
            raise self.dynamic(self.op.outputs[index])
        return tuple(known_shape.as_list())

    def dtype(self, index: int = 0) -> DType:
        """Element type of an output on the IPU."""
        return self.narrowed(self.op.outputs[index].dtype)

    def narrowed(self, dtype: tf.DType) -> DType:
        """The IPU's type for one of TensorFlow's.

        Raises:
            GraphError: there is none.
        """
        if dtype not in DTYPES:
            allowed = ", ".join(d.name for d in DTYPES)
            raise self.error(f"its element type {dtype.name} does not exist on the IPU; allowed: {allowed}")
        return DTYPES[dtype]

    # -- operands ------------------------------------------------------------------------------------------------------

    def tensor(self, value: Value, dtype: DType | None = None) -> Tensor:
        """A value as a tensor of the place's graph; an array becomes a constant.

        Raises:
            GraphError: a value without elements on the IPU (a handle, a string), a number that int32 cannot hold.
        """
        value = plain(value)
        if isinstance(value, Tensor):
            tensor_here = self.place.get(value)
            return tensor_here if dtype is None or tensor_here.dtype == dtype else arithmetic.cast(tensor_here, dtype)
        if not isinstance(value, np.ndarray):
            raise self.error(f"operand {value!r} is no tensor of numbers")
        element_type = dtype or self.narrowed(tf.as_dtype(value.dtype))
        if value.dtype in (np.int64, np.uint64) and value.size and element_type.is_integer:
            limits, ends = np.iinfo(element_type.numpy), (int(value.min()), int(value.max()))
            if wrong := [n for n in ends if not limits.min <= n <= limits.max]:
                raise self.error(f"the constant {wrong[0]} does not fit into {element_type.name}")
        return self.importer.constant(value, element_type)

    def tensors(self, values: Sequence[Value]) -> list[Tensor]:
        """Several values as tensors."""
        return [self.tensor(v) for v in values]

    def static(self, value: Value, what: str) -> np.ndarray:
        """An operand that has to be known when the program is compiled.

        Raises:
            GraphError: it is computed on the IPU.
        """
        if not isinstance(value, np.ndarray):
            raise self.error(
                f"{what} is computed on the IPU, but programs of the IPU have fixed shapes: it has to be a constant or "
                "follow from shapes"
            )
        return value

    def integers(self, value: Value, what: str) -> tuple[int, ...]:
        """A static operand as whole numbers."""
        return tuple(int(n) for n in np.asarray(self.static(value, what)).reshape(-1))

    def integer(self, value: Value, what: str) -> int:
        """A static operand as one whole number."""
        return int(np.asarray(self.static(value, what)).reshape(()))

    def resource(self, value: Value) -> Resource:
        """An operand that is the handle of a variable."""
        if not isinstance(value, Resource):
            raise self.error(f"operand {value!r} is no variable")
        return value

    # -- errors --------------------------------------------------------------------------------------------------------

    def error(self, reason: str) -> GraphError:
        """The error for this op: name, type, the user's line, why."""
        line = user_line(self.op)
        at = f"{line}: " if line else ""
        return GraphError(f"{at}op {self.op.name!r} ({self.op.type}): {reason}")

    def dynamic(self, tensor: tf.Tensor) -> GraphError:
        """The error for a tensor whose shape is not fixed."""
        return self.error(
            f"tensor {tensor.name!r} has shape {tensor.shape}, but programs of the IPU have fixed shapes; give the "
            "sizes where the data come in (batch(..., drop_remainder=True), input_signature, Input(batch_size=...))"
        )
