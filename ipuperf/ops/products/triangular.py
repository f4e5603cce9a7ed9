"""Triangular matrices: the Cholesky factor, and equations whose matrix is triangular.

Upstream: poplin's ``cholesky`` and ``triangularSolve`` (poplibs: ``lib/poplin/Cholesky.cpp``,
``TriangularSolve.cpp``), in blocks of ``block_size`` rows (poplin's option ``blockSize``, default 64). The steps
between the products of blocks are charged row by row, as popops' element-wise vertices, because poplin's own vertices
have no published cycles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ipuperf.ir import FLOAT32, DType, DTypeError, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, Attribute

from .. import shape, vertices
from .. import work as works
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..elementwise import arithmetic as elementwise
from ..work import Vertices, Work
from . import matmul


def _blocks(size: int, block_size: int) -> Iterator[tuple[int, int]]:
    """The rows of each block, and the number of rows behind it."""
    for start in range(0, size, block_size):
        rows = min(block_size, size - start)
        yield rows, size - start - rows


def _rows(name: str, dtype: DType, elements: int) -> Vertices:
    """An element-wise operation on rows of a block, charged in place of poplin's own vertex."""
    make_vertices = vertices.unary if name == "RSQRT" else vertices.binary
    return replace(make_vertices(name, dtype, elements), low_confidence=True)


def _solved(dtype: DType, count: int, rows: int, columns: int) -> list[Work]:
    """Solve a block of equations: divide each row by the diagonal, then subtract its multiples from the rows behind
    it."""
    steps: list[Work] = []
    # Each row is finished before the rows behind it can be.
    for behind in range(rows - 1, -1, -1):
        steps.append(_rows("DIVIDE", dtype, count * columns))
        if behind:
            steps.append(_rows("MULTIPLY", dtype, count * behind * columns))
            steps.append(_rows("SUBTRACT", dtype, count * behind * columns))
    return steps


def _subtracted_product(dtype: DType, count: int, rows: int, depth: int, columns: int) -> list[Work]:
    """Subtract a product of blocks from the rest of a matrix."""
    return [
        works.MatMul(count, rows, depth, columns, dtype, dtype, FLOAT32),
        vertices.binary("SUBTRACT", dtype, count * rows * columns),
    ]


def _square(op: Op, tensor: Tensor) -> tuple[int, int]:
    """The number of matrices, and their size."""
    op.floating(tensor)
    square = len(tensor.shape) >= 2 and tensor.shape[-1] == tensor.shape[-2]
    op.require(square, f"{tensor.id!r} has shape {tensor.shape}; square matrices (..., n, n) are needed")
    return math.prod(tensor.shape[:-2]), tensor.shape[-1]


class Cholesky(Op):
    """The lower triangular ``L`` for which ``L @ L^T`` is the operand ``(..., n, n)``. Only the lower triangle of
    the operand is read. As with XLA, a matrix that is not positive definite gives NaN."""

    block_size = Attribute(INTEGER, 64)

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        _square(self, self.inputs[0])
        self.require(self.block_size > 0, f"block_size={self.block_size}; at least 1 is needed")
        return [TensorSpec(self.inputs[0].shape, self.inputs[0].dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Compute matrix by matrix, in float64."""
        (source,), (out,) = inputs, outputs

        def run() -> None:
            for place in np.ndindex(*source.shape[:-2]):
                try:  # NumPy reads the lower triangle alone, so the upper one may hold anything
                    out[place] = np.linalg.cholesky(source[place].astype(np.float64))
                except np.linalg.LinAlgError:
                    out[place] = np.nan

        return run

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``L^-T P L^-1`` made symmetric, where ``P`` is the lower triangle of ``L^T @ grad`` with half its
        diagonal (I. Murray, Differentiation of the Cholesky decomposition, 2016)."""
        factor = builder.forward(self.outputs[0])
        # Exchanges the last two axes.
        order = (*range(len(factor.shape) - 2), len(factor.shape) - 1, len(factor.shape) - 2)
        size = factor.shape[-1]
        triangle = np.tril(np.ones((size, size), factor.dtype.numpy)) - 0.5 * np.eye(size, dtype=factor.dtype.numpy)
        turned = builder.op(shape.Transpose, [factor], permutation=order)
        middle = builder.op(matmul.MatMul, [turned, grad])
        middle = builder.op(elementwise.Mul, [middle, builder.constant(triangle, factor.dtype)])
        solved = builder.op(TriangularSolve, [factor, middle], adjoint=True, block_size=self.block_size)
        solved = builder.op(shape.Transpose, [solved], permutation=order)
        solved = builder.op(TriangularSolve, [factor, solved], adjoint=True, block_size=self.block_size)
        transposed = builder.op(shape.Transpose, [solved], permutation=order)
        total = builder.op(elementwise.Add, [solved, transposed])
        return [builder.op(elementwise.Mul, [total, elementwise.number(builder, 0.5, factor.dtype)])]

    def work(self) -> list[Work]:
        """For each block: its columns one by one, the rows behind it, and the subtraction of their product from the
        rest."""
        dtype, (count, size) = self.inputs[0].dtype, _square(self, self.inputs[0])
        steps: list[Work] = [*shape.copy_work(self.inputs[0])]
        for rows, rows_below in _blocks(size if count else 0, self.block_size):
            # Each column is finished before the columns behind it can be.
            for behind in range(rows - 1, -1, -1):
                steps.append(_rows("RSQRT", dtype, count))
                steps.append(_rows("MULTIPLY", dtype, count * (behind + 1)))
                if behind:
                    steps.append(_rows("MULTIPLY", dtype, count * behind * behind))
                    steps.append(_rows("SUBTRACT", dtype, count * behind * behind))
            if rows_below:
                steps += [
                    *_solved(dtype, count, rows, rows_below),
                    *_subtracted_product(dtype, count, rows_below, rows, rows_below),
                ]
        return steps


class TriangularSolve(Op):
    """``x`` with ``a @ x == b`` (``adjoint``: ``a^T @ x == b``), ``a (..., n, n)`` triangular and ``b (..., n, m)``.

    ``lower`` says which triangle of ``a`` is read.
    """

    block_size = Attribute(INTEGER, 64)
    lower = Attribute(FLAG, True)
    adjoint = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """The spec of the right sides."""
        matrix, right = self.inputs
        _square(self, matrix)
        self.require(self.block_size > 0, f"block_size={self.block_size}; at least 1 is needed")
        if matrix.dtype != right.dtype:
            raise DTypeError(f"{self.where()}: operands are {matrix.dtype.name} and {right.dtype.name}; one is needed")
        fits = right.shape[:-1] == matrix.shape[:-1]
        self.require(fits, f"right sides of shape {right.shape} for matrices {matrix.shape}; (..., n, m) is needed")
        return [TensorSpec(right.shape, right.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Solve in float64; a zero on the diagonal gives NaN."""
        (matrix, right), (out,) = inputs, outputs
        triangle = np.tril if self.lower else np.triu

        def run() -> None:
            for place in np.ndindex(*matrix.shape[:-2]):
                factors = triangle(matrix[place]).astype(np.float64)
                try:
                    out[place] = np.linalg.solve(
                        factors.T if self.adjoint else factors, right[place].astype(np.float64)
                    )
                except np.linalg.LinAlgError:
                    # One singular matrix must not stop the others.
                    out[place] = np.nan

        return run

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``d_b`` solves the transposed equations; ``d_a`` is the triangle of ``-d_b @ x^T``, or of its transpose."""
        matrix, solution = builder.forward(self.inputs[0]), builder.forward(self.outputs[0])
        order = (*range(len(solution.shape) - 2), len(solution.shape) - 1, len(solution.shape) - 2)
        # The gradient of the right sides solves the transposed equations.
        attributes = {**self.attributes, "adjoint": not self.adjoint}
        of_right = builder.op(TriangularSolve, [matrix, grad], **attributes)
        left, right = (solution, of_right) if self.adjoint else (of_right, solution)
        product = builder.op(matmul.MatMul, [left, builder.op(shape.Transpose, [right], permutation=order)])
        # Elements outside of the triangle were not read, so they have no gradient.
        ones = np.ones(matrix.shape[-2:], matrix.dtype.numpy)
        triangle = builder.constant(-(np.tril(ones) if self.lower else np.triu(ones)), matrix.dtype)
        return [builder.op(elementwise.Mul, [product, triangle]), of_right]

    def work(self) -> list[Work]:
        """Block by block: solve the equations of its rows, and subtract the known part from the others."""
        dtype, (count, size) = self.inputs[0].dtype, _square(self, self.inputs[0])
        columns = self.inputs[1].shape[-1]
        steps: list[Work] = [*shape.copy_work(self.inputs[1])]
        for rows, rows_below in _blocks(size if count and columns else 0, self.block_size):
            steps += _solved(dtype, count, rows, columns)
            if rows_below:
                steps += _subtracted_product(dtype, count, rows_below, rows, columns)
        return steps
