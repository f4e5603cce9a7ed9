"""Clipping of gradients by the norm of all of them together.

This follows ``popart:willow/src/transforms/clipweightgradientsbynorm.cpp``. The squares of each gradient are summed on
its IPU. Each of these sums is copied by itself to the IPU with the most gradients, and they are added there: when
PopART clips it has merged copies between IPUs already (``willow/src/ir.cpp``, ``MergeCopies``). The factor
``limit / max(limit, norm)`` goes back to each of the others once (``MergeDuplicateOps``), and each IPU scales its
gradients in place. Gradients are those of the weight update: reduced over micro-batches and replicas, without the loss
scaling. Where replicas hold parts of a gradient, its sum is all-reduced, for each gradient by itself
(``willow/src/op/reducesumsquare.cpp``, ``configureForReplicatedTensorSharding``).

Simplification: squares are summed in float32 (upstream: in the gradient's type).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from ipuperf.functions import make
from ipuperf.functions.arithmetic import add
from ipuperf.ir import CONTEXT, FLOAT32, ReplicaGrouping, Tensor
from ipuperf.ops import (
    AccumulatorScale,
    Cast,
    Div,
    IpuCopy,
    Maximum,
    ReduceSumSquare,
    ReplicatedAllReduceInplace,
    Sqrt,
)

from .model import PipelineError
from .scope import Scope


@dataclass(frozen=True)
class Reduced:
    """A gradient of the weight update on its IPU. With ``shards``, each replica of a group holds its part of the
    gradient."""

    tensor: Tensor
    ipu: int
    shards: ReplicaGrouping | None


def check_limit(limit: float) -> None:
    """Raise :class:`PipelineError` unless ``limit`` is a positive number."""
    if math.isnan(limit) or limit <= 0:
        raise PipelineError(f"max_grad_norm is {limit}; a number above 0 is needed (infinity for no clipping)")


def clip(scope: Scope, gradients: Sequence[Reduced], limit: float) -> None:
    """Scale ``gradients`` in place so that their common norm is at most ``limit``."""
    by_ipu: dict[int, list[Reduced]] = {}
    for gradient in gradients:
        by_ipu.setdefault(gradient.ipu, []).append(gradient)
    home = meeting_place(gradients)
    sums = [moved(scope, _sum_of_squares(scope, gradient), gradient.ipu, home) for gradient in gradients]
    with scope.on(home):
        # max(norm, limit) as divisor leaves gradients below the limit unchanged.
        norm = make(Sqrt, _total(sums), name="gradient_norm")
        allowed = scope.constant(np.array(limit, np.float32), FLOAT32, "max_grad_norm")
        factor = make(Div, allowed, make(Maximum, norm, allowed, name="norm_or_limit"), name="clip_factor")
    for ipu, own_gradients in by_ipu.items():
        local_factor = moved(scope, factor, home, ipu)
        with scope.on(ipu):
            for gradient in own_gradients:
                make(AccumulatorScale, gradient.tensor, local_factor)


def meeting_place(gradients: Sequence[Reduced]) -> int:
    """The IPU with the most gradients, the first where several have equally many."""
    counts = Counter(gradient.ipu for gradient in gradients)
    # The negated number makes the choice independent of the order of the gradients.
    return max(counts, key=lambda ipu: (counts[ipu], -ipu))


def _sum_of_squares(scope: Scope, gradient: Reduced) -> Tensor:
    """Of a whole gradient, or of one of which the replicas hold parts."""
    with scope.on(gradient.ipu):
        squares, shards = _squares(gradient.tensor), gradient.shards
        return make(ReplicatedAllReduceInplace, squares, op="add", group=shards) if shards else squares


def _squares(value: Tensor) -> Tensor:
    if value.dtype is not FLOAT32:
        value = make(Cast, value, name="wide_gradient", dtype=FLOAT32)
    return make(ReduceSumSquare, value, name="squares", axes=tuple(range(len(value.shape))), keepdims=False)


def _total(values: Sequence[Tensor]) -> Tensor:
    with CONTEXT.builder.named("sum_of_squares"):
        return reduce(add, values)


def moved(scope: Scope, value: Tensor, source: int, destination: int) -> Tensor:
    """``value`` of IPU ``source`` on IPU ``destination``."""
    if source == destination:
        return value
    with scope.on(destination):
        return make(IpuCopy, value, name=value.name, source=source, destination=destination)
