"""Running sums.

Upstream: PopART ``willow/src/op/cumsum.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ipuperf.ir import FLOAT32, GradientBuilder, Tensor, TensorSpec

from . import shape
from .base import Environment, Kernel, Op
from .binding import Step, contiguous, given, result_buffer, sequence
from .gather import axis_of
from .work import MatMul, Work


class CumSum(Op):
    """Running sums along ``axis`` (attribute, default 0); ``exclusive`` leaves the element itself out, ``reverse`` sums
    from the end. In float32 for fp16."""

    type = "CumSum"

    def infer(self) -> list[TensorSpec]:
        """Like the operand."""
        tensor = self.inputs[0]
        self.floating(tensor)
        axis_of(self, len(tensor.shape))
        return [TensorSpec(tensor.shape, tensor.dtype)]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """One accumulation over the (turned) axis, shifted by one when exclusive."""
        axis = self.attributes["axis"] + 1
        source, before = contiguous(inputs[0], env, slot=0)
        out, after = result_buffer(outputs[0], env, slot=1)
        line, target = (np.moveaxis(a, axis, 0) for a in (source, out))
        if self.attributes.get("reverse", False):
            line, target = line[::-1], target[::-1]
        if not self.attributes.get("exclusive", False):
            return sequence([*before, partial(np.add.accumulate, line, 0, None, target), *after])
        steps: list[Step] = [*before, partial(target[:1].fill, 0)]
        if len(line) > 1:
            steps.append(partial(np.add.accumulate, line[:-1], 0, None, target[1:]))
        return sequence([*steps, *after])

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Running sums of the gradient from the other end."""
        attributes: dict[str, Any] = {
            "axis": self.attributes["axis"],
            "exclusive": bool(self.attributes.get("exclusive", False)),
            "reverse": not self.attributes.get("reverse", False),
        }
        return [builder.op(CumSum, [given(grads)], **attributes)]

    def work(self) -> list[Work]:
        """A product with a triangular matrix of ones (PopART popx/op/cumsumx.cpp; its constant is not counted as
        memory), and copies when the axis is not the last."""
        spec, axis = self.outputs[0].spec, self.attributes["axis"]
        if not spec.elements:
            return []
        length = spec.shape[axis]
        product = MatMul(1, spec.elements // length, length, length, spec.dtype, spec.dtype, FLOAT32)
        turn = [] if axis == len(spec.shape) - 1 else shape.copy_work(self.outputs[0])
        return [*turn, product, *turn]
