"""Rotary position embedding (custom op of popxl-addons: ``popxl_addons/ops/rotary_pos_embed``; RoFormer,
arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import INTEGER, Attribute

from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import Step, WorkingArrays
from ..elementwise.arithmetic import elementwise_work
from ..work import Copy, Work


class RotaryPosEmbed(Op):
    """Neighbouring elements ``(2 i, 2 i + 1)`` of the last axis, taken as complex numbers and turned by an angle.

    Operands: ``x [batch, sequence, heads, n]``; ``sin`` and ``cos`` ``[1 or batch, sequence, rotary_dim / 2]``.
    Attribute ``rotary_dim`` (even): how many elements are turned; the others stay. The gradient turns back; ``sin``
    and ``cos`` have none, as upstream.
    """

    direction: ClassVar[int] = 1

    rotary_dim = Attribute(INTEGER)

    def infer(self) -> list[TensorSpec]:
        """The spec of x; raises where ranks, sizes or types do not fit."""
        x, *tables = self.inputs
        self.floating(*self.inputs)
        self.same_dtype(*self.inputs)
        self.require(len(x.shape) == 4, f"x has shape {x.shape}; rank 4 (batch, sequence, heads, n) is needed")
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= x.shape[3]:
            raise IrError(
                f"{self.where()}: rotary_dim is {self.rotary_dim}; a multiple of 2 up to {x.shape[3]} is needed"
            )
        allowed = [(batch, x.shape[1], self.rotary_dim // 2) for batch in dict.fromkeys((1, x.shape[0]))]
        for name, table in zip(("sin", "cos"), tables, strict=True):
            self.require(
                table.shape in allowed, f"{name} has shape {table.shape}; {' or '.join(map(str, allowed))} is needed"
            )
        return [x.spec]

    def parts(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The real and the imaginary parts within the last axis."""
        return x[..., 0 : self.rotary_dim : 2], x[..., 1 : self.rotary_dim : 2]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """``a cos - b sin`` and ``b cos + a sin`` of each pair; fp16 is computed in float32."""
        arrays = WorkingArrays(inputs, outputs, env)
        (x, sin, cos), (y,) = arrays.operands, arrays.results
        # One angle for all heads.
        sin, cos = (table[:, :, :, np.newaxis] for table in (sin, cos))
        n = self.rotary_dim
        (a, b), (turned_a, turned_b) = self.parts(x), self.parts(y)
        part = env.scratch(a.shape, x.dtype, slot=4)
        # Turning back changes the sign of the sine.
        real_ufunc, imaginary_ufunc = (np.subtract, np.add) if self.direction > 0 else (np.add, np.subtract)
        steps: list[Step] = [
            partial(np.multiply, a, cos, turned_a),
            partial(np.multiply, b, sin, part),
            partial(real_ufunc, turned_a, part, turned_a),
            partial(np.multiply, b, cos, turned_b),
            partial(np.multiply, a, sin, part),
            partial(imaginary_ufunc, turned_b, part, turned_b),
        ]
        if n < x.shape[-1]:
            steps.append(partial(np.copyto, y[..., n:], x[..., n:]))
        return arrays.kernel(*steps)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient of x, turned the other way."""
        back = RotaryPosEmbedGrad if self.direction > 0 else RotaryPosEmbed
        tables = [builder.forward(t) for t in self.inputs[1:]]
        return [builder.op(back, [grad, *tables], **self.attributes), None, None]

    def work(self) -> Sequence[Work]:
        """Two expressions of three operations, then a copy into the layout of x (``rotary_pos_embedx.cpp``). The tables
        have one line for all heads, and popops generates no vertex for operands of several shapes
        (``lib/popops/ExpressionGenerator.cpp`` analyseExpr), so each operation is a compute set of its own."""
        x, table = self.outputs[0].spec, self.inputs[1].spec.shape
        if not x.elements:
            return []
        half = (*x.shape[:3], self.rotary_dim // 2)
        turned = elementwise_work("MULTIPLY", x.dtype, half, (*table[:2], 1, table[2]), half)
        works: list[Work] = []
        for name in ("SUBTRACT", "ADD"):
            works += [*turned, *turned, *elementwise_work(name, x.dtype, half, half, half)]
        return [*works, Copy(x.bytes)]


class RotaryPosEmbedGrad(RotaryPosEmbed):
    """``(gradient, sin, cos) -> x's gradient``: :class:`RotaryPosEmbed` in the other direction."""

    direction: ClassVar[int] = -1


class RotaryPosEmbedHalves(RotaryPosEmbed):
    """Real parts in the first half of the turned elements, imaginary parts in the second.

    Its gradient is the one of its C++ (``nlp/llama/popxl/modelling/rotary_pos_embed``, ``nlp/dolly/...`` of
    graphcore/examples), which turns neighbours back. That is not the derivative; both programs only infer.
    """

    def parts(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The two halves of the turned elements."""
        half = self.rotary_dim // 2
        return x[..., :half], x[..., half : self.rotary_dim]
