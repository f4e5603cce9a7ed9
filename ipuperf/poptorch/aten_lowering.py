"""What the handlers of aten ops work with: ops, constants and casts in the graph of one stage.

A value is a tensor of the stage's graph, a ``torch.Tensor`` (a compile-time constant, folded on the host), or a plain
Python value. Types that the IPU lacks are narrowed: int64 to int32 and float64 to float32, as PopTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ipuperf.ir import (
    BOOL,
    FLOAT16,
    FLOAT32,
    INT8,
    INT16,
    INT32,
    UINT8,
    Constant,
    DType,
    Graph,
    Tensor,
)
from ipuperf.ops import Cast, Concat, Detach, Expand, Op, Reshape, Slice, Transpose

from .errors import Error, UnsupportedError

#: Element types on the IPU of PyTorch's element types.
DTYPES: Mapping[torch.dtype, DType] = {
    torch.float32: FLOAT32,
    torch.float64: FLOAT32,
    torch.float16: FLOAT16,
    torch.int64: INT32,
    torch.int32: INT32,
    torch.int16: INT16,
    torch.int8: INT8,
    torch.uint8: UINT8,
    torch.bool: BOOL,
}

TORCH_DTYPES: Mapping[DType, torch.dtype] = {
    FLOAT32: torch.float32,
    FLOAT16: torch.float16,
    INT32: torch.int32,
    INT16: torch.int16,
    INT8: torch.int8,
    UINT8: torch.uint8,
    BOOL: torch.bool,
}

INT32_LIMITS = (-(2**31), 2**31 - 1)

#: A value of an exported program while it is lowered.
Value = Any


class ExportError(Error):
    """A module that cannot be turned into stage graphs; the message says why and where."""


def ir_dtype(dtype: torch.dtype, what: str) -> DType:
    """The IPU's type for a PyTorch type; :class:`ExportError` names ``what`` when there is none."""
    if dtype not in DTYPES:
        allowed = ", ".join(sorted(str(d).removeprefix("torch.") for d in DTYPES))
        raise ExportError(f"{what} is {dtype}, which the IPU does not have; allowed: {allowed}")
    return DTYPES[dtype]


def repeated(value: float, shape: Sequence[int], dtype: DType) -> np.ndarray:
    """An array of one value that takes the memory of one element and cannot be written to."""
    return np.broadcast_to(np.array(value, dtype.numpy), tuple(shape))


def to_numpy(tensor: torch.Tensor, what: str) -> np.ndarray:
    """The values of ``tensor`` in the IPU's type; zeros for a tensor without data (``meta``).

    Raises:
        ExportError: the type does not exist, or an int64 value does not fit into int32.
    """
    dtype = ir_dtype(tensor.dtype, what)
    if tensor.device.type == "meta":
        return repeated(0, tensor.shape, dtype)
    array = tensor.detach().cpu().numpy()
    if array.dtype == np.int64 and array.size:
        low, high = int(array.min()), int(array.max())
        if low < INT32_LIMITS[0] or high > INT32_LIMITS[1]:
            value = low if low < INT32_LIMITS[0] else high
            raise ExportError(f"{what}: {value} does not fit into int32, the IPU's widest integer type")
    return np.array(array, dtype=dtype.numpy, order="C")


class Lowering:
    """The graph of one stage under construction.

    Args:
        graph: new ops go here.
        training: matrix products are those of a training program.
        seed: gives the graph's seed input, made on first use.
        next_key: gives a number for each random op of the program.

    Attributes:
        location: ``file:line`` of the user's code that the current ops come from.
        name: name of the current node, for tensors.
        dtypes: types of the current node's outputs.
        shapes: shapes of the current node's outputs.
    """

    def __init__(
        self, graph: Graph, *, training: bool, seed: Callable[[], Tensor], next_key: Callable[[], int]
    ) -> None:
        self.graph = graph
        self.training = training
        self.seed = seed
        self.next_key = next_key
        self.location = ""
        self.name = "t"
        self.dtypes: list[DType] = []
        self.shapes: list[tuple[int, ...]] = []
        self.target = ""
        self._constants: dict[tuple[Any, ...], Constant] = {}

    # -- ops -------------------------------------------------------------------------------------------------------

    def ops(self, op_class: type[Op], inputs: Sequence[Tensor], outputs: int, **attributes: Any) -> list[Tensor]:
        """An op with several outputs."""
        op = self.graph.create(op_class, inputs, [self.name] * outputs, **attributes)
        op.location = self.location
        return op.outputs

    def op(self, op_class: type[Op], inputs: Sequence[Tensor], **attributes: Any) -> Tensor:
        """An op with one output."""
        return self.ops(op_class, inputs, 1, **attributes)[0]

    def unsupported(self, reason: str) -> UnsupportedError:
        """The error for a use of the current op that is not supported."""
        at = f"{self.location}: " if self.location else ""
        return UnsupportedError(f"{at}{self.target}: {reason}")

    # -- operands --------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        """Type of the current node's (first) result."""
        return self.dtypes[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the current node's (first) result."""
        return self.shapes[0]

    def constant(self, value: Any, dtype: DType) -> Constant:
        """A constant of the graph; equal ones are made once."""
        array = np.asarray(value)
        array = np.ascontiguousarray(array.astype(dtype.numpy)).reshape(array.shape)
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.graph.constant(array, dtype, "constant")
        return self._constants[key]

    def tensor(self, value: Value, dtype: DType | None = None) -> Tensor:
        """``value`` as a tensor of the graph, of type ``dtype`` (default: its own type; the current result's type for
        a Python number)."""
        if isinstance(value, Tensor):
            return value if dtype is None or value.dtype == dtype else self.op(Cast, [value], dtype=dtype)
        if isinstance(value, torch.Tensor):
            own = ir_dtype(value.dtype, f"constant {self.name!r}")
            if own.is_integer and dtype is None:
                return self.constant(to_numpy(value, f"constant {self.name!r}"), own)
            return self.constant(value.detach().cpu().numpy(), dtype or own)
        if isinstance(value, (bool, int, float)):
            return self.constant(value, dtype or self.dtype)
        raise self.unsupported(f"operand {value!r} of type {type(value).__name__}; a tensor or a number is needed")

    def tensors(self, values: Sequence[Value], dtype: DType) -> list[Tensor]:
        """Several operands in one type."""
        return [self.tensor(v, dtype) for v in values]

    def promoted(self, *values: Value) -> DType:
        """The type in which PyTorch computes with these operands together."""
        stand_ins = [self._stand_in(v) for v in values]
        result = stand_ins[0]
        for other in stand_ins[1:]:
            result = torch.empty((1,) * max(_rank(result), _rank(other)), dtype=torch.result_type(result, other))
        found = result.dtype if isinstance(result, torch.Tensor) else torch.result_type(result, result)
        return ir_dtype(found, self.target)

    @staticmethod
    def _stand_in(value: Value) -> Any:
        if isinstance(value, Tensor):
            return torch.empty((1,) * min(len(value.shape), 1), dtype=TORCH_DTYPES[value.dtype])
        return value

    # -- shapes ----------------------------------------------------------------------------------------------------

    def reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """The elements in another shape."""
        shape = tuple(int(n) for n in shape)
        if -1 in shape:
            known = math.prod(n for n in shape if n != -1)
            shape = tuple(tensor.spec.elements // known if n == -1 else n for n in shape)
        return tensor if tensor.shape == shape else self.op(Reshape, [tensor], shape=shape)

    def transpose(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """The axes in another order."""
        rank = len(tensor.shape)
        order = tuple(int(a) % rank for a in order) if rank else ()
        return tensor if order == tuple(range(rank)) else self.op(Transpose, [tensor], permutation=order)

    def swapped(self, tensor: Tensor, first: int = -2, second: int = -1) -> Tensor:
        """Two axes exchanged."""
        rank = len(tensor.shape)
        order = list(range(rank))
        if rank:
            order[first], order[second] = order[second], order[first]
        return self.transpose(tensor, order)

    def expand(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Broadcast to ``shape``."""
        shape = tuple(shape)
        return tensor if tensor.shape == shape else self.op(Expand, [tensor], shape=shape)

    def slice(self, tensor: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
        """Elements ``start:stop:step`` along ``axis``; bounds are not negative."""
        length = tensor.shape[axis]
        if start == 0 and stop >= length and step == 1:
            return tensor
        return self.op(Slice, [tensor], axis=axis, start=start, stop=stop, step=step)

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Joined along ``axis``."""
        return tensors[0] if len(tensors) == 1 else self.op(Concat, tensors, axis=axis)

    def detach(self, tensor: Tensor) -> Tensor:
        """A value through which no gradient flows."""
        return self.op(Detach, [tensor])


def _rank(value: Any) -> int:
    return value.dim() if isinstance(value, torch.Tensor) else 0


def axis_of(axis: int, rank: int) -> int:
    """``axis`` as a number that is not negative (an axis of a tensor without axes is 0)."""
    return axis % rank if rank else 0
