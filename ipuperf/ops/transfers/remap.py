"""Copies of a tensor into another tile mapping: ops in C++ that public applications bring along.

Sources: graphcore/examples, ``remap_tensor_ce.cpp`` (masked autoencoder, Swin, Conformer, GPT-2) and
``copy_custom_op.cpp`` (YOLO v4).
"""

from __future__ import annotations

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import ANYTHING, INTEGER, Attribute

from ..base import Gradients
from ..elementwise.unary import Identity
from ..work import Copy, Work


class CopyTensor(Identity):
    """The operand in a linear mapping."""


class Remap(Identity):
    """The operand in a mapping by grains.

    ipuperf maps results itself, so the grains and the name do not matter. A layout that is cloned is copied, too.

    Attributes:
        fwd_after_matmul: the operand is first copied into another order of its elements, as products leave theirs.
        bwd_after_matmul: the same for the gradient.
    """

    type = "RemapCE"

    grain_size = Attribute(INTEGER, 0)
    fwd_grain_size = Attribute(INTEGER, 0)
    bwd_grain_size = Attribute(INTEGER, 0)
    fwd_clone_layout = Attribute(INTEGER, 0)
    bwd_clone_layout = Attribute(INTEGER, 0)
    fwd_after_matmul = Attribute(INTEGER, 0)
    bwd_after_matmul = Attribute(INTEGER, 0)
    debug_str = Attribute(ANYTHING, "remap")

    def infer(self) -> list[TensorSpec]:
        """The operand's shape and type; only floating point, as upstream."""
        self.floating(self.inputs[0])
        return super().infer()

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient, remapped with the attributes of the backward pass."""
        return [
            builder.op(
                RemapGrad, [grad], fwd_clone_layout=self.bwd_clone_layout, fwd_after_matmul=self.bwd_after_matmul
            )
        ]

    def work(self) -> list[Work]:
        """One copy, two after a product."""
        copies = 2 if self.fwd_after_matmul and not self.fwd_clone_layout else 1
        return [Copy(self.outputs[0].spec.bytes)] * copies


class RemapGrad(Remap):
    """The gradient of :class:`Remap`."""

    type = "RemapCEGrad"
