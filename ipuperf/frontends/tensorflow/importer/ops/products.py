"""Matrix products."""

from __future__ import annotations

import numpy as np

from ipuperf.functions import make, reductions, spectra
from ipuperf.functions.arranging import broadcast, swapped
from ipuperf.functions.products import matmul
from ipuperf.ir import Tensor
from ipuperf.ops import AddBias, Cholesky, TriangularSolve

from ..arranged import Arranged
from ..node import Node
from ..table import Family
from ..values import Value

FAMILY = Family("Matrix products")
op = FAMILY.op


@op("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def mat_mul(node: Node, left: Value, right: Value) -> Tensor:
    """Products of matrices, either of them transposed."""
    turns = ("transpose_a", "transpose_b") if node.op.type == "MatMul" else ("adj_x", "adj_y")
    matrices = ((node.tensor(value), node.attr(turn)) for value, turn in zip((left, right), turns))
    lhs, rhs = (swapped(matrix) if turned else matrix for matrix, turned in matrices)
    return matmul(lhs, rhs)


FAMILY.formula("Cholesky", "The lower triangular factors of symmetric matrices.", lambda x: make(Cholesky, x))


@op("MatrixTriangularSolve", "BatchMatrixTriangularSolve")
def triangular_solve(node: Node, matrices: Tensor, right: Tensor) -> Tensor:
    """What triangular matrices times it give the right sides."""
    lead = np.broadcast_shapes(matrices.shape[:-2], right.shape[:-2])
    matrices, right = (broadcast(t, (*lead, *t.shape[-2:])) for t in (matrices, right))
    return make(TriangularSolve, matrices, right, lower=node.attr("lower"), adjoint=node.attr("adjoint"))


@op("MatrixInverse", "BatchMatrixInverse")
def matrix_inverse(node: Node, matrices: Tensor) -> Tensor:
    """Inverses by elimination; a matrix that has none gives NaN or infinity."""
    return spectra.inverse(swapped(matrices) if node.attr("adjoint") else matrices)


@op("MatrixSolve", "BatchMatrixSolve")
def matrix_solve(node: Node, matrices: Tensor, right: Tensor) -> Tensor:
    """What matrices times it give the right sides, by their inverses."""
    return matmul(matrix_inverse(node, matrices), right)


@op("BiasAdd", "BiasAddV1", arranged=True)
def bias_add(node: Node, value: Value, bias: Value) -> Value:
    """A bias for each channel: the last axis, or the second one (NCHW)."""
    numbers = node.tensor(bias)
    if isinstance(value, Arranged) and value.order[1] == len(value.order) - 1:
        return Arranged(make(AddBias, value.inner, numbers), value.order)
    x = node.tensor(value)
    first = node.op.type == "BiasAdd" and node.attr("data_format") == "NCHW" and len(x.shape) > 2
    return make(AddBias, x, numbers) if first else x + numbers


@op("BiasAddGrad", arranged=True)
def bias_add_grad(node: Node, grad: Value) -> Tensor:
    """The sum over everything but the channels."""
    rank = len(grad.shape)
    channels = 1 if node.attr("data_format") == "NCHW" and rank > 2 else rank - 1
    if isinstance(grad, Arranged):
        grad, channels = grad.inner, grad.order.index(channels)
    return reductions.sum(node.tensor(grad), [axis for axis in range(rank) if axis != channels])
