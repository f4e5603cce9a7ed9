"""Ops of PopART's own domain that PopTorch programs reach through ``poptorch.custom_op``.

Source: PopART ``willow/src/op/ctc.cpp``, ``popx/op/ctcx.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ipuperf.functions import arithmetic, make, reductions
from ipuperf.ir import FLOAT16, FLOAT32, INT32, Tensor
from ipuperf.ops import CtcLoss, CtcLossGrad

from ..errors import require
from .lowering import Lowering, Value

#: ONNX's numbers of the types that ``outDataType`` may say; anything else leaves the type of the logarithms.
_TYPES = {1: FLOAT32, 10: FLOAT16}
_REDUCTIONS = ("Sum", "Mean", "NoReduction")


def ctc(low: Lowering, inputs: Sequence[Value], given: Mapping[str, Any]) -> list[Tensor]:
    """The loss, reduced over the sequences, and the gradient of each sequence's loss.

    ``Mean`` divides each loss by the length of its labels first. ``enableReducedClassesInLabel`` changes how PopLibs
    computes, not what.
    """
    reduction = given.get("reduction", "Mean")
    require(reduction in _REDUCTIONS, f"Ctc: reduction is {reduction!r}; allowed: {', '.join(_REDUCTIONS)}")
    logs, lengths = low.tensor(inputs[0]), low.tensor(inputs[3], INT32)
    operands = [logs, *low.tensors(inputs[1:3], INT32), lengths]
    blank, dtype = int(given.get("blank", 0)), _TYPES.get(given.get("outDataType", 0), logs.dtype)
    losses = make(CtcLoss, *operands, blank=blank)
    slopes = make(CtcLossGrad, low.constant(np.ones(losses.shape), FLOAT32), *operands, blank=blank)
    if reduction == "Mean":
        counts = arithmetic.cast(lengths, losses.dtype)
        losses = reductions.mean(losses / arithmetic.maximum(counts, low.constant(1.0, losses.dtype)))
    elif reduction == "Sum":
        losses = reductions.sum(losses)
    return [arithmetic.cast(losses, dtype), arithmetic.cast(slopes, dtype)]


NATIVE: Mapping[tuple[str, str, int], Callable[[Lowering, Sequence[Value], Mapping[str, Any]], list[Tensor]]] = {
    ("Ctc", "ai.graphcore", 1): ctc,
}
"""By name, domain and version: what makes the op's results."""
