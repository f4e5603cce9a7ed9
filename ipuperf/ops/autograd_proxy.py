"""An op that uses one tensor for its value and another one for its gradient.

Source: graphcore-research/poptorch-experimental-addons, ``_impl/core.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipuperf.ir import GradientBuilder, TensorSpec

from .base import Gradients
from .custom import CustomOp
from .work import Copy, Work


class AutogradProxy(CustomOp):
    """``(forward, proxy) -> forward``; the gradient goes to ``proxy``."""

    def infer(self) -> list[TensorSpec]:
        """The operands' shape and type; raises unless they are the same for both."""
        forward, proxy = self.inputs
        self.floating(forward, proxy)
        self.same_dtype(forward, proxy)
        self.require(forward.shape == proxy.shape, f"shapes {forward.shape} and {proxy.shape}; they must be the same")
        return [TensorSpec(forward.shape, forward.dtype)]

    def value(self, *operands: np.ndarray) -> np.ndarray:
        """The first operand."""
        return operands[0]

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """The gradient goes to the second operand alone."""
        return [None, grads[0]]

    def work(self) -> Sequence[Work]:
        """A copy of the value."""
        return [Copy(self.outputs[0].spec.bytes)]
