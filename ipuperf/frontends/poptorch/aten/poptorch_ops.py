"""PopTorch's own ops in an exported program (:data:`ipuperf.poptorch.ops.MARKS`)."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from ipuperf.functions import arithmetic, make, make_all
from ipuperf.functions.arithmetic import identity
from ipuperf.functions.arranging import cut, joined
from ipuperf.ir import FLOAT32, INT32, Op, Tensor
from ipuperf.ops import CtcBeamSearchDecoder, MatMul

from ..custom_ops import lower_custom_op
from ..enums import MatMulSerializationMode
from ..executor.host_calls import host_call
from .losses import MEAN, NONE, SUM, reduce_loss
from .lowering import Handler, Lowering, Value

#: Ops through which ``set_available_memory`` looks for the planned op (PopTorch FixupSetAvailableMemory).
_TRANSPARENT = ("Add", "AddBias", "Reshape", "Transpose", "Identity")
_SHARE = "available_memory_proportion"


def identity_loss(_low: Lowering, x: Tensor, reduction: str) -> Tensor:
    """``poptorch.identity_loss``: the value marked as the loss, reduced."""
    kind = {"none": NONE, "mean": MEAN, "sum": SUM}[reduction]
    return identity(x) if kind == NONE or not x.shape else reduce_loss(x, kind)


def checkpoint(_low: Lowering, x: Tensor) -> Tensor:
    """``poptorch.recomputationCheckpoint``: the value itself; the exporter notes it."""
    return x


def nop(_low: Lowering, x: Tensor) -> Tensor:
    """An identity that stays in the program."""
    return identity(x)


def print_tensor(_low: Lowering, x: Tensor, title: str, print_gradient: bool, *layout: Any) -> Tensor:
    """The value itself, which is printed, as its gradient may be."""
    return arithmetic.print_tensor(x, title or x.name, True, print_gradient, *layout)


def set_available_memory(low: Lowering, tensor: Tensor, proportion: float) -> Tensor:
    """The proportion as an attribute of the planned op that made the value, or of each part of a serialised product."""
    planned = _planned(low, tensor)
    if not planned:
        raise low.unsupported("only results of matrix products, convolutions and lookups have a memory proportion")
    if proportion <= 0:
        raise low.unsupported(f"proportion={proportion} is unsupported; allowed: above 0, up to 1")
    for op in planned:
        op.attributes[_SHARE] = float(proportion)
    return tensor


def _planned(low: Lowering, tensor: Tensor) -> Sequence[Op]:
    if tensor in low.serialised:
        return low.serialised[tensor]
    op = tensor.producer
    if op is None:
        return []
    if op.type in _TRANSPARENT:
        before = [t for t in op.inputs if t.producer is not None]
        return _planned(low, before[0]) if before else []
    return [op] if _SHARE in op.declared else []


def serialize(low: Lowering, tensor: Tensor, mode: str, factor: int, keep_precision: bool) -> Tensor:
    """The matrix product in ``factor`` parts along one of its dimensions; the whole product is dropped. With
    ``keep_precision`` parts in float16 are added in float32, forward and backward."""
    op = tensor.producer
    if op is None or op.type != MatMul.type:
        raise low.unsupported("only a matrix product can be serialised")
    kind = MatMulSerializationMode(mode)
    if kind is MatMulSerializationMode.Disabled or factor <= 1:
        return tensor
    lhs, rhs = op.inputs
    wide = keep_precision and tensor.dtype != FLOAT32 and tensor.dtype.is_floating_point
    columns, rows, inner = len(rhs.shape) - 1, len(lhs.shape) - 2, len(lhs.shape) - 1
    # by way of float32, so that the gradients of the parts are added in float32
    sources = low.tensors([lhs, rhs], FLOAT32) if wide else [lhs, rhs]
    parts: list[Tensor] = []
    for index in range(factor):
        a, b = (low.tensor(t, tensor.dtype) for t in sources)
        if kind is MatMulSerializationMode.OutputChannels:
            b = _part(b, columns, index, factor)
        elif kind is MatMulSerializationMode.InputChannels:
            a = _part(a, rows, index, factor)
        else:
            a, b = _part(a, inner, index, factor), _part(b, columns - 1, index, factor)
        parts.append(make(MatMul, a, b, **op.attributes))
    products = [part.producer for part in parts if part.producer is not None]
    if kind is MatMulSerializationMode.ReducingDim:
        total = reduce(operator.add, (low.tensor(t, FLOAT32) for t in parts) if wide else parts)
        found = low.tensor(total, tensor.dtype)
    else:
        found = joined(parts, len(tensor.shape) - (1 if kind is MatMulSerializationMode.OutputChannels else 2))
    low.serialised[found] = products
    return found


def _part(tensor: Tensor, axis: int, index: int, parts: int) -> Tensor:
    size = tensor.shape[axis] // parts
    return cut(tensor, axis, index * size, (index + 1) * size)


def beam_search(
    low: Lowering, logs: Value, lengths: Value, blank: int, beam_width: int, top_paths: int
) -> list[Tensor]:
    """The likeliest labels of sequences."""
    settings = {"blank": blank, "beam_width": beam_width, "top_paths": top_paths}
    operands = [low.tensor(logs), low.tensor(lengths, INT32)]
    return make_all(CtcBeamSearchDecoder, operands, ["chances", "lengths", "labels"], **settings)


#: Handlers by name.
HANDLERS: Mapping[str, Handler] = {
    "ipuperf::ctc_beam_search_decoder": beam_search,
    "ipuperf::custom_op": lower_custom_op,
    "ipuperf::host_call": host_call,
    "ipuperf::identity_loss": identity_loss,
    "ipuperf::ipu_print_tensor": print_tensor,
    "ipuperf::nop": nop,
    "ipuperf::recomputation_checkpoint": checkpoint,
    "ipuperf::set_available_memory": set_available_memory,
    "ipuperf::set_matmul_serialization": serialize,
}
