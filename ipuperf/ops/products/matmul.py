"""Matrix product.

NumPy shapes: 2-D, batched N-D with broadcast batch axes, 1-D operands. fp16 operands are widened to float32, so
products are accumulated in float32 whatever ``partials_dtype`` says (the device's fp16 partials lose a little more),
and the result is rounded once. BLAS takes transposed views as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import FLOAT32, GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import FLOATING, NUMBER, Attribute, choice, optional

from .. import shape
from .. import work as works
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import align, result_buffer, sequence, widened
from ..elementwise import unary
from ..reductions import axes_reduced as reduce

PASSES = ("nonemm", "fcinf", "fcfwd", "fcbwd", "fcwu")


class MatMul(Op):
    """``lhs @ rhs``.

    Attributes:
        partials_dtype: type of partial sums on the device (default float32).
        output_dtype: type of the result (default: that of the operands).
        available_memory_proportion: share of tile memory the plan may use for temporaries, in (0, 1].
        pass_: fully connected pass, one of :data:`PASSES`; ``fcfwd`` gives ``fcbwd`` and ``fcwu`` gradients.

    Class attributes:
        extra_operands: operands after the two of the product.
    """

    operator = "matmul"
    extra_operands: ClassVar[int] = 0

    partials_dtype = Attribute(optional(FLOATING), None)
    output_dtype = Attribute(optional(FLOATING), None)
    available_memory_proportion = Attribute(optional(NUMBER), None)
    pass_ = Attribute(choice(*PASSES), "nonemm")

    def infer(self) -> list[TensorSpec]:
        """The product's shape by NumPy's rules."""
        if len(self.inputs) != 2 + self.extra_operands:
            self.require(False, f"needs 2 operands, got {len(self.inputs)}")
        lhs, rhs = self.inputs[:2]
        dtype = self.same_dtype(lhs, rhs)
        self.floating(lhs)
        if not 0 < self._memory() <= 1:
            raise IrError(f"{self.where()}: available_memory_proportion={self._memory()}; allowed: above 0, up to 1")
        a, b = lhs.shape, rhs.shape
        self.require(len(a) > 0 and len(b) > 0, "operands of a matrix product need at least 1 axis")
        contracted = b[0] if len(b) == 1 else b[-2]
        if a[-1] != contracted:
            self.require(False, f"inner dimensions differ: {a} x {b} ({a[-1]} and {contracted})")
        batch = a[:-2]
        try:
            if batch != b[:-2]:
                batch = np.broadcast_shapes(batch, b[:-2])
        except ValueError:
            self.require(False, f"batch dimensions {a[:-2]} and {b[:-2]} cannot be broadcast together")
        rows, columns = a[-2:-1] if len(a) > 1 else (), b[-1:] if len(b) > 1 else ()
        return [TensorSpec((*batch, *rows, *columns), self.output_dtype or dtype)]

    def arranges(self, index: int) -> bool:
        """Both operands of a weight update, and the weights of a gradient of the input (PopLibs
        ``lib/poplin/Convolution.cpp`` weightRearrangementIsExpensive, ``lib/poplin/MatMul.cpp``
        fullyConnectedWeightTranspose)."""
        return self.pass_ == "fcwu" or (self.pass_ == "fcbwd" and index == 1)

    def _memory(self) -> float:
        stated = self.available_memory_proportion
        return 0.6 if stated is None else stated

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One call of BLAS per replica and batch. When all batches share ``rhs``, their rows form one product."""
        lhs, rhs = inputs
        # A vector on the left is one row, on the right one column.
        if lhs.ndim == 2:
            lhs = lhs[:, None, :]
        if rhs.ndim == 2:
            rhs = rhs[:, :, None]
        out, store_steps = result_buffer(outputs[0], env, slot=2)
        rank = max(lhs.ndim, rhs.ndim)
        lhs, rhs = align(lhs, rank), align(rhs, rank)
        batch = np.broadcast_shapes(lhs.shape[1:-2], rhs.shape[1:-2])
        out = out.reshape(out.shape[0], *batch, lhs.shape[-2], rhs.shape[-1])
        if rank > 3 and math.prod(rhs.shape[1:-2]) == 1 and lhs.flags.c_contiguous:
            while rhs.ndim > 3:
                rhs = rhs[:, 0]
            lhs = lhs.reshape(lhs.shape[0], -1, lhs.shape[-1])
            out = out.reshape(out.shape[0], -1, out.shape[-1])
        lhs, fill_lhs = widened(lhs, env, slot=0)
        rhs, fill_rhs = widened(rhs, env, slot=1)
        # One replica needs no batched product: without that axis NumPy calls BLAS directly.
        if out.shape[0] == 1:
            lhs, rhs, out = lhs[0], rhs[0], out[0]
        return sequence(*fill_lhs, *fill_rhs, partial(np.matmul, lhs, rhs, out), *store_steps)

    # -- gradient --------------------------------------------------------------------------------------------------

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g @ rhs^T`` and ``lhs^T @ g``, summed over broadcast batch axes; transposes are Transpose ops."""
        lhs_shape, rhs_shape = (t.shape for t in self.inputs)
        lhs, rhs = (builder.forward(t) for t in self.inputs)
        # `output_dtype` may differ from the operands',
        # whose type the products of the gradient need.
        if grad.dtype != lhs.dtype:
            grad = builder.op(unary.Cast, [grad], dtype=lhs.dtype)
        lhs_matrix = (1, *lhs_shape) if len(lhs_shape) == 1 else lhs_shape
        rhs_matrix = (*rhs_shape, 1) if len(rhs_shape) == 1 else rhs_shape
        rows, depth, columns = lhs_matrix[-2], lhs_matrix[-1], rhs_matrix[-1]
        # A shared right side: the rows of all batches
        # form one product, as in the forward pass.
        if len(rhs_matrix) == 2 and len(lhs_matrix) > 2:
            rows = math.prod(lhs_matrix[:-1])
            lhs_matrix, batch = (rows, depth), ()
        else:
            batch = tuple(np.broadcast_shapes(lhs_matrix[:-2], rhs_matrix[:-2]))
        grad = _shaped(builder, grad, (*batch, rows, columns))
        d_lhs = self._product(builder, grad, _swapped(builder, _shaped(builder, rhs, rhs_matrix)), "fcbwd")
        d_rhs = self._product(builder, _swapped(builder, _shaped(builder, lhs, lhs_matrix)), grad, "fcwu")
        # Operands that were broadcast over batches get the sum of the batches' gradients.
        d_lhs, d_rhs = reduce.sum_to(builder, d_lhs, lhs_matrix), reduce.sum_to(builder, d_rhs, rhs_matrix)
        return [_shaped(builder, d_lhs, lhs_shape), _shaped(builder, d_rhs, rhs_shape)]

    def _product(self, builder: GradientBuilder, lhs: Tensor, rhs: Tensor, pass_: str) -> Tensor:
        """A product of the gradient with this op's options."""
        return builder.op(
            MatMul,
            [lhs, rhs],
            partials_dtype=self.partials_dtype,
            output_dtype=None,
            available_memory_proportion=self._memory(),
            # Only a training forward pass has planned gradient passes.
            pass_=pass_ if self.pass_ == "fcfwd" else "nonemm",
        )

    # -- cost ------------------------------------------------------------------------------------------------------

    def work(self) -> list[works.Work]:
        """One planned product. Batch axes that both operands have are groups. Those that only ``lhs`` (``rhs``) has
        become rows (columns), as upstream combines them before planning."""
        lhs, rhs = self.inputs[:2]
        a = (1, *lhs.shape) if len(lhs.shape) == 1 else lhs.shape
        b = (*rhs.shape, 1) if len(rhs.shape) == 1 else rhs.shape
        rank = max(len(a), len(b)) - 2
        groups, rows, columns = 1, a[-2], b[-1]
        # Missing batch axes count as axes of length 1.
        for n, m in zip((1,) * (rank - len(a) + 2) + a[:-2], (1,) * (rank - len(b) + 2) + b[:-2], strict=True):
            if n > 1 and m > 1:
                groups *= n
            else:
                rows, columns = rows * n, columns * m
        return [
            works.MatMul(
                groups,
                rows,
                a[-1],
                columns,
                lhs.dtype,
                self.outputs[0].dtype,
                self.partials_dtype or FLOAT32,
                self.pass_,
                self._memory(),
            )
        ]


def _shaped(builder: GradientBuilder, tensor: Tensor, target: Sequence[int]) -> Tensor:
    """``tensor`` in another shape with as many elements."""
    return tensor if tensor.shape == tuple(target) else builder.op(shape.Reshape, [tensor], shape=tuple(target))


def _swapped(builder: GradientBuilder, tensor: Tensor) -> Tensor:
    """``tensor`` with its last two axes exchanged."""
    rank = len(tensor.shape)
    order = (*range(rank - 2), rank - 1, rank - 2)
    return builder.op(shape.Transpose, [tensor], permutation=order)
