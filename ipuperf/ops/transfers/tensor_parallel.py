"""Collectives of tensor parallelism: all-reduces whose operands or gradients are known to be identical, and the
collectives of replicas that are a stride apart.

They are custom ops of popxl-addons (``popxl_addons/ops/replicated_all_reduce_TP``,
``replicated_strided_collectives``). A layer whose weights are split over a group of replicas has identical inputs on
all of them: nothing happens forwards, an all-reduce backwards. The layer after it gives partial sums: an all-reduce
forwards, nothing backwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipuperf.ir import GradientBuilder, IrError, Tensor
from ipuperf.ir.attributes import FLAG, Attribute, choice

from ..base import Arrays, Environment, Gradients, Kernel
from ..work import Copy, Work
from .collectives import ReplicatedAllGather, ReplicatedAllReduce, ReplicatedReduceScatter


class ReplicatedAllReduceTP(ReplicatedAllReduce):
    """An all-reduce (sum) whose gradient is the same op with the two attributes exchanged.

    Attributes:
        identical_inputs: all members of a group have the same operand and need no sum; the value is the operand.
        identical_grad_inputs: all members will have the same gradient, so it is passed on as it arrives.

    Upstream turns an op with ``identical_inputs`` into an identity by a pattern that programs have to ask for
    (``OpToIdentityPattern``); here it is an identity from the start.
    """

    op = Attribute(choice("add"), "add")
    identical_inputs = Attribute(FLAG, False)
    identical_grad_inputs = Attribute(FLAG, False)

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """A copy, or the all-reduce."""
        if not self.identical_inputs:
            return super().kernel(inputs, outputs, env)
        value, out = inputs[0], outputs[0]
        return lambda: np.copyto(out, value)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The same op of the gradient, with the two attributes exchanged."""
        swapped = {"identical_inputs": self.identical_grad_inputs, "identical_grad_inputs": self.identical_inputs}
        return [builder.op(type(self), [grad], f"{grad.name}_all_reduce", **{**self.attributes, **swapped})]

    def work(self) -> Sequence[Work]:
        """A copy of the operand, or an all-reduce of it."""
        return [Copy(self.inputs[0].spec.bytes)] if self.identical_inputs else super().work()


class ReplicatedAllReduceStrided(ReplicatedAllReduceTP):
    """:class:`ReplicatedAllReduceTP` of popxl-addons' strided collectives; ``op`` may also be ``mean``."""

    op = Attribute(choice("add", "mean"), "add")


class ReplicatedReduceScatterStrided(ReplicatedReduceScatter):
    """A reduce-scatter (``add`` or ``mean``) of popxl-addons' strided collectives; it has no gradient, as upstream."""

    op = Attribute(choice("add", "mean"), "add")


class ReplicatedAllGatherStrided(ReplicatedAllGather):
    """An all-gather of popxl-addons' strided collectives; it has no gradient, as upstream."""

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """Raise IrError: there is none."""
        raise IrError(f"{self.where()}: a strided all-gather has no gradient; replicated_all_gather has one")
