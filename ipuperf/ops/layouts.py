"""Copies that only change the tiles on which a tensor lies (custom op of popxl-addons:
``popxl_addons/ops/linear_layout``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, IrError, TensorSpec
from ipuperf.ir.attributes import INTEGER, Attribute

from .base import Arrays, Environment, Gradients, Kernel, Op
from .work import Copy, Work


class LinearLayout(Op):
    """The operand, spread over the tiles in order, each with a multiple of ``grain`` elements (attribute). The copy
    is charged. Its result has the linear layout of every copy here, whatever the grain. No gradient, as
    upstream."""

    grain = Attribute(INTEGER, 1)

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        if self.grain < 1:
            raise IrError(f"{self.where()}: the grain is {self.grain}; a number of at least 1 is needed")
        return [self.like(self.inputs[0])]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """A copy."""
        return partial(np.copyto, outputs[0], inputs[0])

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """Raise IrError: there is none."""
        raise IrError(f"{self.where()}: a change of layout has no gradient")

    def work(self) -> Sequence[Work]:
        """A copy of the operand; nothing for an empty one."""
        size = self.inputs[0].spec.bytes
        return [Copy(size)] if size else []
