"""What the handlers of aten ops work with: ops, constants and casts in the graph of one stage.

A value is a tensor of the stage's graph, a ``torch.Tensor`` (a compile-time constant, folded on the host), or a plain
Python value. Types that the IPU lacks are narrowed: int64 to int32 and float64 to float32, as PopTorch does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ipuperf.functions.arranging import reshaped
from ipuperf.functions.updates import repeated
from ipuperf.ir import (
    BOOL,
    FLOAT16,
    FLOAT32,
    INT8,
    INT16,
    INT32,
    UINT8,
    Builder,
    Constant,
    DType,
    Graph,
    Op,
    Tensor,
    dtype_of,
)
from ipuperf.ir.builder import OpT
from ipuperf.ops import Cast

from ..errors import Error, UnsupportedError

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
#: What lowers an op: ``handler(lowering, *args, **kwargs)`` with the arguments of the aten op; by position, those that
#: it takes as a ``Tensor`` are tensors, the others as they are (:func:`ipuperf.frontends.catalogue.taking_tensors`).
Handler = Callable[..., Any]


def each(names: str, handler: Handler) -> dict[str, Handler]:
    """A table in which all of ``names`` (separated by spaces) have the same handler."""
    return dict.fromkeys(names.split(), handler)


class ExportError(Error):
    """A module that cannot be turned into stage graphs; the message says why and where."""


def ir_dtype(dtype: torch.dtype, what: str) -> DType:
    """The IPU's type for a PyTorch type; :class:`ExportError` names ``what`` when there is none."""
    if dtype not in DTYPES:
        allowed = ", ".join(sorted(str(d).removeprefix("torch.") for d in DTYPES))
        raise ExportError(f"{what} is {dtype}, which the IPU does not have; allowed: {allowed}")
    return DTYPES[dtype]


def narrowed(dtype: torch.dtype) -> torch.dtype:
    """PyTorch's name of the IPU's type for a PyTorch type (int32 for int64, float32 for float64)."""
    return TORCH_DTYPES[DTYPES[dtype]] if dtype in DTYPES else dtype


def real_view(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as the pairs that it is on the IPU, with an axis of two more; any other as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def to_numpy(tensor: torch.Tensor, what: str) -> np.ndarray:
    """The values of ``tensor`` in the IPU's type; zeros for a tensor without data (``meta``).

    Raises:
        ExportError: the type does not exist, or an int64 value does not fit into int32.
    """
    dtype = ir_dtype(tensor.dtype, what)
    if tensor.device.type == "meta":
        return repeated(0, tensor.shape, dtype)
    array = tensor.detach().cpu().numpy()
    _check_fits(array, what)
    return np.array(array, dtype=dtype.numpy, order="C")


def _check_fits(array: np.ndarray, what: str) -> None:
    """Raises :class:`ExportError` where a whole number is beyond int32."""
    if array.dtype == np.int64 and array.size:
        low, high = int(array.min()), int(array.max())
        if low < INT32_LIMITS[0] or high > INT32_LIMITS[1]:
            value = low if low < INT32_LIMITS[0] else high
            raise ExportError(f"{what}: {value} does not fit into int32, the IPU's widest integer type")


@dataclass(frozen=True)
class Norms:
    """How the norms of a program are done.

    Attributes:
        replicas: neighbouring replicas that share the statistics of batch norms in training.
        strided_groups: a group of a group norm is of every ``num_groups``-th channel, not of consecutive ones.
        stable: variances are those of centred values, which costs a pass more.
    """

    replicas: int = 1
    strided_groups: bool = False
    stable: bool = False


_LARGE_MASK = 2**24
"""Elements from which a mask stays a view on the host."""

PLAIN_NORMS = Norms()


class Lowering(Builder):
    """The op maker of one stage: outputs are called after the traced module's nodes, ops lie where the user's code is,
    equal constants are made once.

    Args:
        graph: new ops go here.
        training: matrix products are those of a training program.
        seed: gives the graph's seed input, made on first use.
        next_key: gives a number for each random op of the program.
        norms: how norms are done.

    Attributes:
        location: ``file:line`` of the user's code that the current ops come from.
        target: name of the current node's op, for messages.
        naming: name of the current node.
        dtypes: types of the current node's outputs.
        shapes: shapes of the current node's outputs.
        layout: strides and offset that PyTorch has in memory for the current node's first operand.
        parameters: tensors of the graph that are trained parameters.
        averages: weight, running mean and factor of each mean that is kept with the weight update.
        serialised: the parts of matrix products that ``serializedMatMul`` has divided, by the result.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        training: bool,
        seed: Callable[[], Tensor],
        next_key: Callable[[], int],
        norms: Norms = PLAIN_NORMS,
    ) -> None:
        super().__init__(graph)
        self.training = training
        self.seed = seed
        self.next_key = next_key
        self.norms = norms
        self.location = ""
        self.naming = "t"
        self.dtypes: list[DType] = []
        self.shapes: list[tuple[int, ...]] = []
        self.layout: tuple[tuple[int, ...], int] = ((), 0)
        self.target = ""
        self.parameters: set[Tensor] = set()
        self.serialised: dict[Tensor, list[Op]] = {}
        self.averages: list[tuple[Tensor, Tensor, Tensor]] = []
        self._constants: dict[tuple[Any, ...], Constant] = {}

    # -- rules of the front end ------------------------------------------------------------------------------------

    def create_with(
        self, op_class: type[OpT], inputs: Sequence[Tensor], names: Sequence[str], attributes: Mapping[str, Any]
    ) -> OpT:
        """A new op, whose outputs have the current node's name."""
        return super().create_with(op_class, inputs, [self.naming] * len(names), attributes)

    def constant(self, value: Any, dtype: DType | None, name: str = "constant") -> Constant:
        """A constant of the graph, of ``dtype`` when given; equal ones are made once.

        Raises:
            ExportError: a whole number does not fit into int32.
        """
        array = np.asarray(value)
        dtype = dtype_of(array) if dtype is None else dtype
        if dtype is INT32:
            _check_fits(array, f"{self.location}: {self.target}")
        # ascontiguousarray gives a scalar an axis, hence the reshape.
        array = np.ascontiguousarray(array.astype(dtype.numpy)).reshape(array.shape)
        # Bytes tell more than ==: NaN is like itself, and 0.0 differs from -0.0.
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.graph.constant(array, dtype, name)
        return self._constants[key]

    def causal_mask(self, queries: int, keys: int) -> Constant:
        """True where a key stands no later than the query; masks of one size are made once."""
        # Each row is the one below it, moved by one place, so a view of one line has all rows.
        line = np.arange(queries + keys - 1) < queries
        mask = np.lib.stride_tricks.sliding_window_view(line, keys)[::-1]
        if mask.size < _LARGE_MASK:
            return self.constant(mask, BOOL)
        key = (BOOL, mask.shape, "causal")
        if key not in self._constants:
            self._constants[key] = self.graph.constant(mask)
        return self._constants[key]

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

    def tensor(self, value: Value, dtype: DType | None = None) -> Tensor:
        """``value`` as a tensor of the graph, of type ``dtype`` (default: its own type; the current result's type for
        a Python number)."""
        if isinstance(value, Tensor):
            return value if dtype is None or value.dtype == dtype else self.op(Cast, [value], dtype=dtype)
        if isinstance(value, torch.Tensor):
            own = ir_dtype(value.dtype, f"constant {self.naming!r}")
            if own.is_integer and dtype is None:
                return self.constant(to_numpy(value, f"constant {self.naming!r}"), own)
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
            # PyTorch asks whether an operand has axes, not how many.
            return torch.empty((1,) * min(len(value.shape), 1), dtype=TORCH_DTYPES[value.dtype])
        return value


def _rank(value: Any) -> int:
    return value.dim() if isinstance(value, torch.Tensor) else 0


# -- windows -----------------------------------------------------------------------------------------------------------


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    """One number for each axis, from a number, a list with one, or a list with all."""
    found = (value,) if isinstance(value, int) else tuple(value)
    return found * axes if len(found) == 1 else found


def both_sides(padding: Any, axes: int) -> tuple[tuple[int, int], ...]:
    """The same padding before and after each axis."""
    return tuple((p, p) for p in per_axis(padding, axes))


def with_batch(x: Tensor, axes: int) -> Tensor:
    """``(N, C, *spatial)``, with an axis for the batch added when there is none."""
    return reshaped(x, (1, *x.shape)) if len(x.shape) == axes + 1 else x
