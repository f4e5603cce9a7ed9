"""A loss scale that follows the gradients: it is halved where some are near the end of their type's range, else
doubled.

In each micro-batch the elements of the gradients of all trained weights are counted below and above an edge, which is a
share of the largest number of their type. After each weight update the counts of all IPUs and replicas are summed.
Where the share of those above exceeds a threshold, the next update has half the loss scale, otherwise twice.

Source: popart: willow/include/popart/transforms/automaticlossscaling.hpp, willow/src/popx/op/lossscaleupdatex.cpp.
PopART counts gradients of activations as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.functions import make
from ipuperf.functions.arranging import cut, reshaped
from ipuperf.ir import FLOAT32, Tensor, TensorSpec, Variable
from ipuperf.ops import (
    Accumulate,
    AccumulatorScale,
    AccumulatorZero,
    Cast,
    Greater,
    Histogram,
    Identity,
    ReplicatedAllReduceInplace,
    Where,
)

from .clipping import moved
from .model import LOSS_SCALE, AutomaticLossScale

if TYPE_CHECKING:
    from .build import PipelineWriter
    from .routine import Routine
    from .scope import Scope


class LossScaling:
    """Counts gradients on each IPU and changes the loss scale.

    Args:
        builder: gives buffers.
        settings: edge and threshold.
    """

    def __init__(self, builder: PipelineWriter, settings: AutomaticLossScale) -> None:
        self._builder = builder
        self._settings = settings
        self._counts: dict[int, Tensor] = {}

    def count(self, routine: Routine, grads: Sequence[tuple[Variable, Tensor]], ipu: int) -> None:
        """Count the gradients of a micro-batch in a backward routine."""
        if ipu not in self._counts:
            self._counts[ipu] = self._builder.buffer(TensorSpec((2,), FLOAT32), ipu, f"loss_scale_ipu{ipu}", zero=True)
        for _, grad in grads:
            # Relative to the type's range, as float16 overflows where float32 does not.
            edge = self._settings.bin_edge * float(np.finfo(grad.dtype.numpy).max)
            counts = routine.create(Histogram, [grad], ["counts"], levels=(edge,), absolute_of_input=True).outputs[0]
            counts = routine.create(Cast, [counts], ["counts"], dtype=FLOAT32).outputs[0]
            routine.create(Accumulate, [routine.get(self._counts[ipu]), counts], ["t"])

    def update(self, scope: Scope, scalars: dict[tuple[str, int], Variable]) -> None:
        """After a weight update, change the scales (by name and IPU) for the next one."""
        home = next(ipu for name, ipu in scalars if name == LOSS_SCALE)
        local_counts = []
        for ipu, counts in self._counts.items():
            with scope.on(ipu):
                # A copy is sent, as the counts are cleared for the next update at once.
                local_counts.append((make(Identity, scope.get(counts), name="counts"), ipu))
                make(AccumulatorZero, scope.get(counts))
        arrived = [moved(scope, value, ipu, home) for value, ipu in local_counts]
        with scope.on(home):
            total = reduce(add, arrived)
            # All replicas have to change the scale alike, as their weights must stay equal.
            if self._builder.ir.replication_factor > 1:
                total = make(ReplicatedAllReduceInplace, total, op="add", group=self._builder.ir.grouping())
            below, above = (reshaped(cut(total, 0, index, index + 1), ()) for index in range(2))
            # above / (above + below) > threshold, written without a division.
            odds = self._settings.threshold / (1 - self._settings.threshold)
            too_many = make(Greater, above, below * odds, name="too_many_above")
            half, two = (
                scope.constant(np.array(factor_value, np.float32), FLOAT32, "scale") for factor_value in (0.5, 2.0)
            )
            factors = {LOSS_SCALE: make(Where, too_many, half, two, name="loss_scale_factor")}
            inverse = make(Where, too_many, two, half, name="inverse_loss_scale_factor")
        for (name, ipu), scalar in scalars.items():
            local_factor = moved(scope, factors.get(name, inverse), home, ipu)
            with scope.on(ipu):
                make(AccumulatorScale, scope.get(scalar), local_factor)
