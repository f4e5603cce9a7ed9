"""The running mean of a weight: an op in C++ that DINO of graphcore/examples brings along.

Source: its ``ema/exp_avg_custom_op.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipuperf.ir import TensorSpec

from ..custom import CustomOp
from ..work import Vertices, Work
from .update_vertices import fused_cycles, type_names


class ExpMovAvg(CustomOp):
    """``(weight, mean, factor) -> factor * mean + (1 - factor) * weight``, in the type of the mean.

    Upstream's op is replaced by an ``Accumulate`` after the loop of gradient accumulation, which updates the mean.
    """

    def infer(self) -> list[TensorSpec]:
        """The spec of the mean; raises for another shape of the weight and for a factor of several elements."""
        weight, mean, factor = self.inputs
        self.floating(weight, mean, factor)
        self.require(weight.shape == mean.shape, f"weight {weight.shape} and mean {mean.shape} must have equal shapes")
        self.require(factor.spec.elements == 1, f"the factor has shape {factor.shape}; one element is needed")
        return [mean.spec]

    def value(self, *operands: np.ndarray) -> np.ndarray:
        """The weighted sum."""
        weight, mean, factor = operands
        share = factor.reshape(())
        average: np.ndarray = share * mean + (1 - share) * weight
        return average

    def work(self) -> Sequence[Work]:
        """One generated expression."""
        weight, mean, _ = (tensor.spec for tensor in self.inputs)
        name = f"popops::map::Accumulate_moving_average<{type_names(mean.dtype, weight.dtype)}>"
        return [Vertices(name, mean.elements, fused_cycles(mean.dtype, 2, 1, 4), flops=4 * mean.elements)]
