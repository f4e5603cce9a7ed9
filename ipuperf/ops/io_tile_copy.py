"""Copy between the two tile sets of an IPU: compute tiles and I/O tiles.

Upstream: PopART ``IoTileCopyOp`` (``willow/src/op/iotilecopy.cpp``), ``popxl.ops.io_tile_copy(t)``. Both sets take
part, so it is where they meet; everything else that runs on one set does not disturb the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import Attribute, choice

from .base import Environment, Kernel, Op
from .binding import given
from .work import TileSetTransfer, Work

TILE_SETS = ("compute", "io")


class IoTileCopy(Op):
    """The operand, on the other tile set of its IPU.

    Inputs ``x[, buffer]``; attribute ``destination``: ``io`` or ``compute``. With ``buffer``, a tensor of x's shape and
    type on the destination, it is written in place and is the output.

    Raises:
        IrError: another destination.
        ShapeError, DTypeError: a buffer of another shape or type.
    """

    type: ClassVar[str] = "IoTileCopy"
    own_phase = "io"

    destination = Attribute(choice(*TILE_SETS))

    @property
    def source(self) -> str:
        """The tile set that sends."""
        return "io" if self.destination == "compute" else "compute"

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        self.require(len(self.inputs) in (1, 2), f"takes 1 or 2 operands, not {len(self.inputs)}")
        if len(self.inputs) == 2:
            self.same_dtype(*self.inputs)
            shapes = [tensor.shape for tensor in self.inputs]
            self.require(shapes[0] == shapes[1], f"the buffer has shape {shapes[1]}, the operand {shapes[0]}")
        return [self.like(self.inputs[0])]

    def modified_inputs(self) -> tuple[int, ...]:
        """The buffer."""
        return (1,) if len(self.inputs) == 2 else ()

    def aliases(self) -> dict[int, int]:
        """The output is the buffer."""
        return {0: 1} if len(self.inputs) == 2 else {}

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """A copy."""
        return partial(np.copyto, outputs[0], inputs[0])

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradient, copied back; none for the buffer, which is overwritten."""
        back = builder.op(IoTileCopy, [given(grads)], destination=self.source)
        return [back, *[None] * (len(self.inputs) - 1)]

    def work(self) -> Sequence[Work]:
        """One exchange; nothing for an empty tensor."""
        size = self.inputs[0].spec.bytes
        return [TileSetTransfer(self.destination, size)] if size else []
