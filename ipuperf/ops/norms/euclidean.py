"""Euclidean norms: along axes, of deviations, and of two sides of a triangle."""

from __future__ import annotations

from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, NUMBER, Attribute

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel
from ..binding import Step, sequence
from ..elementwise.arithmetic import Binary, Equal, Where, zero
from ..reductions.axes_reduced import ReduceSumSquare, sum_to
from ..work import Work


class ReduceL2(ReduceSumSquare):
    """Euclidean norm. The gradient ``g x / norm`` is NaN where the norm is 0, as upstream, or 0 if ``flat_at_zero``."""

    needs_float = True

    flat_at_zero = Attribute(FLAG, False)

    def finish(self, target: np.ndarray) -> list[Step]:
        """Square root."""
        return [partial(np.sqrt, target, target)]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g x / norm``."""
        norm = builder.forward(self.outputs[0])
        ratio = grad / norm
        if self.flat_at_zero:
            nothing = zero(builder, norm.dtype)
            ratio = builder.op(Where, [builder.op(Equal, [norm, nothing]), nothing, ratio])
        return [builder.forward(self.inputs[0]) * self.keep(builder, ratio)]

    def work(self) -> list[Work]:
        """Sum of squares, then roots in place."""
        out = self.outputs[0].spec
        return [*super().work(), vertices.unary("SQRT", out.dtype, out.elements, in_place=True)]


class RootMeanSquare(ReduceL2):
    """Root of the sum of squares divided by ``divisor``. It neither overflows nor vanishes where the squares do,
    like PyTorch's ``std``."""

    divisor = Attribute(NUMBER, 1.0)

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Compute in double precision, and round once."""
        (x,), (out,) = inputs, outputs
        squares, sums = env.scratch(x.shape, np.float64, slot=0), env.scratch(out.shape, np.float64, slot=1)
        return sequence(
            partial(np.square, x, squares, dtype=np.float64),
            partial(np.add.reduce, squares, tuple(a + 1 for a in self.axes), None, sums, self.keepdims),
            partial(np.divide, sums, self.divisor, sums),
            partial(np.sqrt, sums, sums),
            partial(np.copyto, out, sums, casting="same_kind"),
        )

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g x / (divisor * root)``."""
        return super().gradient_from(builder, grad * (1 / self.divisor))

    def work(self) -> list[Work]:
        """Sum of squares, a scaling and roots, both in place."""
        out = self.outputs[0].spec
        scaling = vertices.broadcast_scalar("MULTIPLY", out.dtype, out.elements, in_place=True)
        # The scaling stands between the sum and its root.
        *squares, roots = super().work()
        return [*squares, scaling, roots]


class Hypotenuse(Binary):
    """``sqrt(lhs^2 + rhs^2)``, finite even where the squares overflow."""

    ufunc = np.hypot
    vertex = "ADD"

    def infer(self) -> list[TensorSpec]:
        """Broadcast of the shapes; floating-point numbers."""
        self.floating(*self.inputs)
        return super().infer()

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g x / out`` for either operand. As in PyTorch it is NaN at the origin."""
        ratio = grad / builder.forward(self.outputs[0])
        return [sum_to(builder, builder.forward(t) * ratio, t.shape) for t in self.inputs]

    def work(self) -> list[Work]:
        """Two squares, their sum, its root in place."""
        out = self.outputs[0].spec
        squares = [vertices.unary("SQUARE", t.dtype, t.spec.elements) for t in self.inputs]
        return [*squares, *super().work(), vertices.unary("SQRT", out.dtype, out.elements, in_place=True)]
