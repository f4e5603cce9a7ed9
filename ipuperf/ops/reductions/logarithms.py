"""Logarithms of sums.

Upstream: PopART ``willow/src/op`` (``reducelogsum.cpp``, ``reducelogsumexp.cpp``) and their ``popx/op`` counterparts.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel
from ..binding import Step, contiguous, result_buffer, sequence
from ..elementwise import unary
from ..work import Work
from .axes_reduced import Reduce, ReduceSum


class ReduceLogSum(Reduce):
    """Logarithm of the sum."""

    ufunc = np.add
    vertex = "ADD"
    needs_float = True

    def finish(self, target: np.ndarray) -> list[Step]:
        """Take the logarithm."""
        return [partial(np.log, target, target)]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient divided by the sum, which is computed again, broadcast."""
        total = builder.op(ReduceSum, [builder.forward(self.inputs[0])], axes=self.axes, keepdims=self.keepdims)
        return [self.spread(builder, grad / total)]

    def work(self) -> list[Work]:
        """A sum, then logarithms in place."""
        out = self.outputs[0].spec
        return [*super().work(), vertices.unary("LOGARITHM", out.dtype, out.elements, in_place=True)]


class ReduceLogSumExp(Reduce):
    """Logarithm of the sum of the exponentials. The largest operand is subtracted first, so that nothing overflows.
    For no elements it is minus infinity."""

    ufunc = np.add
    vertex = "ADD"
    needs_float = True

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Maxima (0 where they are infinite), exponentials of the differences, sums, logarithms."""
        source, steps = contiguous(inputs[0], env, slot=0)
        target, store_steps = result_buffer(outputs[0], env, slot=1)
        sums = target.reshape(len(source), *self.kept_shape())
        axes, dtype = tuple(a + 1 for a in self.axes), target.dtype
        powers = env.scratch(source.shape, dtype, slot=2)
        maxima, mask = env.scratch(sums.shape, dtype, slot=3), env.scratch(sums.shape, np.bool_, slot=4)
        steps += [
            partial(np.maximum.reduce, source, axes, None, maxima, True, -np.inf),
            partial(np.isinf, maxima, mask),
            # Infinity minus infinity would be NaN, so infinite maxima are not subtracted.
            partial(np.copyto, maxima, 0, where=mask),
            partial(np.subtract, source, maxima, powers),
            partial(np.exp, powers, powers),
            partial(np.add.reduce, powers, axes, None, sums, True),
            partial(np.log, sums, sums),
            partial(np.add, sums, maxima, sums),
        ]
        return sequence(*steps, *store_steps)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g exp(x - out)``."""
        difference = builder.forward(self.inputs[0]) - self.keep(builder, builder.forward(self.outputs[0]))
        return [builder.op(unary.Exp, [difference]) * self.keep(builder, grad)]

    def work(self) -> list[Work]:
        """Maxima, differences, exponentials, sums, logarithms, and the maxima again."""
        source, out = self.inputs[0].spec, self.outputs[0].spec
        if not source.elements:
            return [vertices.fill(out.dtype, out.elements)]
        run = self.run_length()
        maximum = vertices.reduction("MAX", source.dtype, source.elements, out.elements, run=run)
        total = vertices.reduction("ADD", source.dtype, source.elements, out.elements, run=run)
        reduced = source.elements > out.elements
        return [
            *([maximum] if reduced else []),
            vertices.binary("SUBTRACT", source.dtype, source.elements),
            vertices.unary("EXPONENT", source.dtype, source.elements, in_place=True),
            *([total] if reduced else []),
            vertices.unary("LOGARITHM", out.dtype, out.elements, in_place=True),
            vertices.binary("ADD", out.dtype, out.elements, in_place=True),
        ]
