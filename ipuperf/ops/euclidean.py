"""The Euclidean norm along axes."""

from __future__ import annotations

from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor
from ipuperf.ir.attributes import FLAG, Attribute

from . import vertices
from .base import Gradients
from .binding import Step
from .elementwise import Equal, Where, zero
from .reduce import ReduceSumSquare
from .work import Work


class ReduceL2(ReduceSumSquare):
    """Euclidean norm. The gradient ``g x / norm`` is NaN where the norm is 0, as upstream, or 0 if ``flat_at_zero``."""

    type = "ReduceL2"
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
