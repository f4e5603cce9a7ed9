"""Copy between two IPUs of a replica.

Upstream: PopART ``IpuCopyOp`` (``willow/src/op/ipucopy.cpp``); ``popxl.ops.ipu_copy(t, destination, source)``. The
lowering decides which copies share an exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import INTEGER, Attribute, instance, optional

from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import shares_safely
from ..work import InterIpuTransfer, Work


class _PlacedCopy(Op):
    """Base of copies ``x[, buffer]`` to another place. A ``buffer`` there, a tensor of x's shape and type, is
    written in place and is the output."""

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        self.require(len(self.inputs) in (1, 2), f"takes 1 or 2 operands, not {len(self.inputs)}")
        self.check_source()
        if len(self.inputs) == 2:
            self.same_dtype(*self.inputs)
            shapes = [tensor.shape for tensor in self.inputs]
            self.require(shapes[0] == shapes[1], f"the buffer has shape {shapes[1]}, the operand {shapes[0]}")
        return [self.like(self.inputs[0])]

    def check_source(self) -> None:
        """Check the source and the destination of the copy."""

    def modified_inputs(self) -> tuple[int, ...]:
        """The buffer."""
        return (1,) if len(self.inputs) == 2 else ()

    def aliases(self) -> dict[int, int]:
        """The output is the buffer."""
        return {0: 1} if len(self.inputs) == 2 else {}

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """A copy."""
        return partial(np.copyto, outputs[0], inputs[0])


class IpuCopy(_PlacedCopy):
    """The operand, on another IPU of the replica.

    Inputs ``x[, buffer]``; attributes ``source`` and ``destination`` (different IPUs of the replica). The output is on
    the destination. A ``buffer``, a tensor of x's shape and type that lives there, is written in place and is the
    output. There are no vertices: tile i of the source sends to tile i of the destination. Copies that follow each
    other are one exchange, unless they differ in the attribute ``exchange`` (default None).

    Raises:
        IrError: IPU numbers that are not two different whole numbers of 0 or more, an operand on another IPU than the
            source.
        ShapeError, DTypeError: a buffer of another shape or type.
    """

    source = Attribute(INTEGER)
    destination = Attribute(INTEGER)
    exchange = Attribute(optional(instance(str)), None)

    def infer(self) -> list[TensorSpec]:
        """The operand's spec; the buffer lies at the destination."""
        specs = super().infer()
        if len(self.inputs) == 2:
            self._check_place(self.inputs[1], self.destination, "destination")
        return specs

    def check_source(self) -> None:
        """Check that there are two IPUs, and that the operand lies on the first."""
        if min(self.source, self.destination) < 0 or self.source == self.destination:
            raise IrError(
                f"{self.where()}: source={self.source}, destination={self.destination}; allowed are two different IPU "
                "numbers of 0 or more"
            )
        self._check_place(self.inputs[0], self.source, "source")

    def _check_place(self, tensor: Tensor, ipu: int, end: str) -> None:
        # Tensors without an IPU may be anywhere.
        if tensor.ipu is not None and tensor.ipu != ipu:
            raise IrError(f"{self.where()}: {tensor.id!r} is on IPU {tensor.ipu}, the {end} is IPU {ipu}")

    def fixed_ipu(self) -> int:
        """The destination, where the output lives."""
        return self.destination

    def view(self, inputs: Arrays, env: Environment) -> list[np.ndarray] | None:
        """The operand itself where no program can tell that it is no copy."""
        # With a buffer the copy is visible there.
        return [inputs[0]] if len(inputs) == 1 and shares_safely(self) else None

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient, copied back. The buffer has none, as it is overwritten."""
        back = builder.op(IpuCopy, [grad], source=self.destination, destination=self.source)
        return [back, *[None] * (len(self.inputs) - 1)]

    def work(self) -> Sequence[Work]:
        """One transfer, or nothing for an empty tensor."""
        size = self.inputs[0].spec.bytes
        return [InterIpuTransfer(self.source, self.destination, size)] if size else []
