"""Logarithm of softmax, and its gradient."""

from __future__ import annotations

from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel
from ..binding import Step, WorkingArrays
from ..work import Work
from .softmax import AlongAxis


class LogSoftmax(AlongAxis):
    """``x - log(sum(exp(x)))`` along ``axis`` (attribute, default last), computed without overflow."""

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        tensor = self.inputs[0]
        self.floating(tensor)
        return [TensorSpec(tensor.shape, tensor.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Subtract the maximum, sum the exponentials, subtract the sum's logarithm; fp16 is computed in float32."""
        axis, arrays = self.axis + 1, WorkingArrays(inputs, outputs, env)
        (x,), (out,) = arrays.operands, arrays.results
        line = env.scratch((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype, slot=2)
        # The differences stay in `out`, as the result is made from them.
        powers = env.scratch(x.shape, x.dtype, slot=3)
        return arrays.kernel(
            partial(np.maximum.reduce, x, axis, None, line, True),
            partial(np.subtract, x, line, out),
            partial(np.exp, out, powers),
            partial(np.add.reduce, powers, axis, None, line, True),
            partial(np.log, line, line),
            partial(np.subtract, out, line, out),
        )

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """From the operand: ``g - softmax(x) sum(g)``."""
        inputs = [grad, builder.forward(self.inputs[0])]
        return [builder.op(LogSoftmaxGrad, inputs, axis=self.axis)]

    def work(self) -> list[Work]:
        """popnn ``logSoftmax``: maximum, subtract, exponential, sum, logarithm, subtract (the softmax passes of
        PopLibs lib/popnn/NonLinearity.cpp with a logarithm and a subtraction at the end)."""
        dtype, count, rows, *_ = self.lines()
        return [
            self.reduced("MAX"),
            self.spread("SUBTRACT"),
            vertices.unary("EXPONENT", dtype, count),
            self.reduced("ADD"),
            vertices.unary("LOGARITHM", dtype, rows, in_place=True),
            self.spread("SUBTRACT", in_place=True),
        ]


class LogSoftmaxGrad(AlongAxis):
    """``(grad, x) -> grad - softmax(x) sum(grad)`` along ``axis`` (attribute); softmax is computed again."""

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        grad, x = self.inputs
        self.same_dtype(grad, x)
        self.require(grad.shape == x.shape, f"gradient {grad.shape} and operand {x.shape} differ in shape")
        return [TensorSpec(x.shape, x.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Softmax, then the scaled difference."""
        axis, arrays = self.axis + 1, WorkingArrays(inputs, outputs, env)
        (grad, x), (out,) = arrays.operands, arrays.results
        line = env.scratch((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype, slot=3)
        steps: list[Step] = [
            partial(np.maximum.reduce, x, axis, None, line, True),
            partial(np.subtract, x, line, out),
            partial(np.exp, out, out),
            partial(np.add.reduce, out, axis, None, line, True),
            partial(np.divide, out, line, out),
            # `line` held the sums of the exponentials, which are no longer needed.
            partial(np.add.reduce, grad, axis, None, line, True),
            partial(np.multiply, out, line, out),
            partial(np.subtract, grad, out, out),
        ]
        return arrays.kernel(*steps)

    def work(self) -> list[Work]:
        """PopART popx/op/logsoftmaxx.cpp: softmax of the operand, sum of the gradient, fused subtract and multiply
        (priced as the two broadcast passes)."""
        dtype, count, rows, *_ = self.lines()
        return [
            self.reduced("MAX", operand=1),
            self.spread("SUBTRACT"),
            vertices.unary("EXPONENT", dtype, count, in_place=True),
            self.reduced("ADD", operand=1),
            vertices.unary("INVERSE", dtype, rows, in_place=True),
            self.spread("MULTIPLY", in_place=True),
            self.reduced("ADD"),
            self.spread("MULTIPLY", in_place=True),
            vertices.binary("SUBTRACT", dtype, count),
        ]
