"""Copy between the two tile sets of an IPU: compute tiles and I/O tiles.

Upstream: PopART ``IoTileCopyOp`` (``willow/src/op/iotilecopy.cpp``), ``popxl.ops.io_tile_copy(t)``. Both sets take
part, so they meet at the copy. Everything else that runs on one set does not disturb the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.ir import GradientBuilder, Tensor
from ipuperf.ir.attributes import Attribute, choice

from ..base import Gradients
from ..work import TileSetTransfer, Work
from .ipu_copy import _PlacedCopy

TILE_SETS = ("compute", "io")


class IoTileCopy(_PlacedCopy):
    """The operand, on the other tile set of its IPU.

    Inputs ``x[, buffer]``; attribute ``destination``: ``io`` or ``compute``. A ``buffer``, a tensor of x's shape and
    type on the destination, is written in place and is the output.

    Raises:
        IrError: another destination.
        ShapeError, DTypeError: a buffer of another shape or type.
    """

    own_phase = "io"

    destination = Attribute(choice(*TILE_SETS))

    @property
    def source(self) -> str:
        """The tile set that sends."""
        return "io" if self.destination == "compute" else "compute"

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient, copied back. The buffer has none, as it is overwritten."""
        back = builder.op(IoTileCopy, [grad], destination=self.source)
        return [back, *[None] * (len(self.inputs) - 1)]

    def work(self) -> Sequence[Work]:
        """One exchange, or nothing for an empty tensor."""
        size = self.inputs[0].spec.bytes
        return [TileSetTransfer(self.destination, size)] if size else []
