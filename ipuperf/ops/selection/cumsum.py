"""Running sums.

Upstream: PopART ``willow/src/op/cumsum.cpp``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ipuperf.ir import FLOAT32, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, Attribute

from .. import shape
from ..axes import axis_of
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import Step, WorkingArrays
from ..work import MatMul, Work


class CumSum(Op):
    """Running sums along ``axis`` (attribute, default 0). ``exclusive`` omits the element itself, ``reverse`` sums
    from the end. fp16 is summed in float32."""

    axis = Attribute(INTEGER, 0, settle=axis_of)
    exclusive = Attribute(FLAG, False)
    reverse = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """Like the operand."""
        tensor = self.inputs[0]
        self.floating(tensor)
        return [TensorSpec(tensor.shape, tensor.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One accumulation over the (turned) axis, shifted by one when exclusive."""
        arrays = WorkingArrays(inputs, outputs, env)
        line, target = (np.moveaxis(a, self.axis + 1, 0) for a in (*arrays.operands, *arrays.results))
        if self.reverse:
            line, target = line[::-1], target[::-1]
        if not self.exclusive:
            return arrays.kernel(partial(np.add.accumulate, line, 0, None, target))
        steps: list[Step] = [partial(target[:1].fill, 0)]
        if len(line) > 1:
            steps.append(partial(np.add.accumulate, line[:-1], 0, None, target[1:]))
        return arrays.kernel(*steps)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Running sums of the gradient from the other end."""
        reverse = not self.reverse
        return [builder.op(CumSum, [grad], axis=self.axis, exclusive=self.exclusive, reverse=reverse)]

    def work(self) -> list[Work]:
        """A product with a triangular matrix of ones, and copies when the axis is not the last (PopART
        popx/op/cumsumx.cpp). The constant matrix is not counted as memory."""
        spec, axis = self.outputs[0].spec, self.axis
        if not spec.elements:
            return []
        length = spec.shape[axis]
        product = MatMul(1, spec.elements // length, length, length, spec.dtype, spec.dtype, FLOAT32)
        # The product needs its axis last; other axes are brought there and back.
        turn = [] if axis == len(spec.shape) - 1 else shape.copy_work(self.outputs[0])
        return [*turn, product, *turn]
