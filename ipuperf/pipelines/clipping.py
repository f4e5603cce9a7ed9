"""Clipping of gradients by the norm of all of them together.

As ``popart:willow/src/transforms/clipweightgradientsbynorm.cpp``: each IPU sums the squares of its gradients, the sums
meet on one IPU (that of the most gradients), and the factor ``limit / max(limit, norm)`` goes back to the others, whose
gradients it scales in place. Gradients are those of the weight update: reduced over micro-batches and replicas, without
the loss scaling.

Simplification: squares are summed in float32 (upstream: in the gradient's type).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipuperf.ir import FLOAT32, Tensor
from ipuperf.ops import (
    AccumulatorScale,
    Add,
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
    """A gradient of the weight update on its IPU; of a sharded one each replica has its part."""

    tensor: Tensor
    ipu: int
    sharded: bool


def check_limit(limit: float) -> None:
    """Raise :class:`PipelineError` unless ``limit`` is a positive number."""
    if math.isnan(limit) or limit <= 0:
        raise PipelineError(f"max_grad_norm is {limit}; a number above 0 is needed (infinity for no clipping)")


def clip(scope: Scope, gradients: Sequence[Reduced], limit: float) -> None:
    """Scale ``gradients`` in place so that their common norm is ``limit`` at the most."""
    by_ipu: dict[int, list[Reduced]] = {}
    for gradient in gradients:
        by_ipu.setdefault(gradient.ipu, []).append(gradient)
    home = max(by_ipu, key=lambda ipu: (len(by_ipu[ipu]), -ipu))
    sums = [_moved(scope, _sum_of_squares(scope, found, ipu), ipu, home) for ipu, found in by_ipu.items()]
    norm = scope.op(Sqrt, [_total(scope, sums, home)], "gradient_norm", ipu=home).outputs[0]
    allowed = scope.graph.constant(np.array(limit, np.float32), FLOAT32, "max_grad_norm")
    larger = scope.op(Maximum, [norm, allowed], "norm_or_limit", ipu=home).outputs[0]
    factor = scope.op(Div, [allowed, larger], "clip_factor", ipu=home).outputs[0]
    for ipu, found in by_ipu.items():
        here = _moved(scope, factor, home, ipu)
        for gradient in found:
            scope.op(AccumulatorScale, [gradient.tensor, here], ipu=ipu)


def _sum_of_squares(scope: Scope, gradients: Sequence[Reduced], ipu: int) -> Tensor:
    """Of one IPU's gradients, whole ones and those of which the replicas have parts."""
    whole = [_squares(scope, g) for g in gradients if not g.sharded]
    parts = [_squares(scope, g) for g in gradients if g.sharded]
    if parts:
        total, group = _total(scope, parts, ipu), scope.graph.ir.grouping()
        whole.append(scope.op(ReplicatedAllReduceInplace, [total], ipu=ipu, op="add", group=group).outputs[0])
    return _total(scope, whole, ipu)


def _squares(scope: Scope, gradient: Reduced) -> Tensor:
    value = gradient.tensor
    if value.dtype is not FLOAT32:
        value = scope.op(Cast, [value], "wide_gradient", ipu=gradient.ipu, dtype=FLOAT32).outputs[0]
    axes = tuple(range(len(value.shape)))
    return scope.op(ReduceSumSquare, [value], "squares", ipu=gradient.ipu, axes=axes, keepdims=False).outputs[0]


def _total(scope: Scope, values: Sequence[Tensor], ipu: int) -> Tensor:
    total = values[0]
    for value in values[1:]:
        total = scope.op(Add, [total, value], "sum_of_squares", ipu=ipu).outputs[0]
    return total


def _moved(scope: Scope, value: Tensor, source: int, destination: int) -> Tensor:
    if source == destination:
        return value
    return scope.op(
        IpuCopy, [value], value.name, ipu=destination, source=source, destination=destination
    ).outputs[0]  # fmt: skip
