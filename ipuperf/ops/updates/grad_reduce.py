"""The sum of squares of a scaled gradient (custom op of popxl-addons: ``popxl_addons/ops/grad_reduce_square_add``)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ipuperf.ir import FLOAT32, DTypeError, TensorSpec

from .. import vertices
from ..base import Arrays, Environment, Kernel, Op
from ..binding import contiguous, sequence
from ..work import Reduction, Work


class GradReduceSquareAdd(Op):
    """``(t, scale) -> scale * sum(t**2)``, a float32 number, as is ``scale``. No gradient, as upstream."""

    def infer(self) -> list[TensorSpec]:
        """A float32 number, whatever the type of ``t``."""
        t, scale = self.inputs
        self.floating(t)
        if scale.dtype != FLOAT32:
            raise DTypeError(f"{self.where()}: scale {scale.id!r} is {scale.dtype.name}; float32 is needed")
        self.require(scale.spec.elements == 1, f"scale has shape {scale.shape}; one element is needed")
        return [TensorSpec((), FLOAT32)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Sum the squares in float32, then multiply by the scale."""
        t, fill = contiguous(inputs[0], env, slot=0)
        rows, out, scale = t.reshape(len(t), -1), outputs[0], inputs[1].reshape(len(t))
        squares = env.scratch(rows.shape, rows.dtype, slot=1)
        total = env.scratch(out.shape, rows.dtype, slot=2)
        return sequence(
            *fill,
            partial(np.multiply, rows, rows, squares),
            partial(np.add.reduce, squares, 1, None, total),
            # The scale is applied to the sum, as the vertex does.
            partial(np.multiply, total, scale, out, casting="same_kind"),
        )

    def work(self) -> Sequence[Work]:
        """One reduction SQUARE_ADD with a scale to float32 (``popops::reduce``)."""
        t = self.inputs[0].spec
        if not t.elements:
            return [vertices.fill(FLOAT32, 1)]
        reduction = vertices.reduction("SQUARE_ADD", t.dtype, t.elements, 1, run=t.elements)
        vertex = f"popops::Reduce<SQUARE_ADD,{vertices.poplar_type(t.dtype)},float>"
        return [Reduction(vertex, t.elements, 1, t.dtype, reduction.cycles, reduction.flops + 1, 0, t.elements)]
