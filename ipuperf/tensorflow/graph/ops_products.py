"""Matrix products."""

from __future__ import annotations

from ipuperf.functions import make, reductions
from ipuperf.functions.arranging import swapped
from ipuperf.functions.products import matmul
from ipuperf.ir import Tensor
from ipuperf.ops import AddBias

from .node import Node
from .table import Family
from .values import Value

FAMILY = Family("Matrix products")
op = FAMILY.op


def _turned(tensor: Tensor, turn: bool) -> Tensor:
    return swapped(tensor) if turn else tensor


@op("MatMul")
def mat_mul(node: Node, left: Value, right: Value) -> Tensor:
    """A product of matrices, either of them transposed."""
    lhs = _turned(node.tensor(left), node.attr("transpose_a"))
    return matmul(lhs, _turned(node.tensor(right), node.attr("transpose_b")))


@op("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_mat_mul(node: Node, left: Value, right: Value) -> Tensor:
    """Products of the matrices of a batch."""
    lhs = _turned(node.tensor(left), node.attr("adj_x"))
    return matmul(lhs, _turned(node.tensor(right), node.attr("adj_y")))


@op("BiasAdd", "BiasAddV1")
def bias_add(node: Node, value: Value, bias: Value) -> Tensor:
    """A bias for each channel: the last axis, or the second one (NCHW)."""
    x, b = node.tensor(value), node.tensor(bias)
    first = node.op.type == "BiasAdd" and node.attr("data_format") == "NCHW" and len(x.shape) > 2
    return make(AddBias, x, b) if first else x + b


@op("BiasAddGrad")
def bias_add_grad(node: Node, grad: Value) -> Tensor:
    """The sum over everything but the channels."""
    dy = node.tensor(grad)
    channels = 1 if node.attr("data_format") == "NCHW" and len(dy.shape) > 2 else len(dy.shape) - 1
    return reductions.sum(dy, [a for a in range(len(dy.shape)) if a != channels])
