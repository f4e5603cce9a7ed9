"""Accumulators: sums, running means and moving averages, in place on ``t``. dtypes of ``t`` and ``X`` may differ."""

from __future__ import annotations

from ipuperf import ops as _k
from ipuperf.frontends.options import POPXL as EFFECTS
from ipuperf.functions import arithmetic

from ...arguments import checked_arguments
from ...handle import Tensor
from ..lifting import lifted
from ..operands import emit

_cast = lifted(arithmetic.cast)


def _accumulate(t: Tensor, x: Tensor, kind: str, factor: float | Tensor | None) -> Tensor:
    name = f"{t.name}_accumulated"
    if x.dtype != t.dtype and not (x.dtype.is_floating_point and t.dtype.is_floating_point):
        x = _cast(x, t.dtype)  # popops casts what its vertices do not mix, PopART's expressions cast everything
    if isinstance(factor, Tensor):
        return emit(_k.Accumulate, [t, x, factor], name, kind=kind)
    return emit(_k.Accumulate, [t, x], name, kind=kind, factor=None if factor is None else float(factor))


@checked_arguments
def accumulate_(t: Tensor, X: Tensor, f: float | Tensor | None = None) -> Tensor:
    """``t += f * X`` (``f`` 1 by default)."""
    return _accumulate(t, X, "add", f)


@checked_arguments
def accumulate_square_(t: Tensor, X: Tensor, f: float | Tensor = 1.0) -> Tensor:
    """``t += f * X * X``."""
    return _accumulate(t, X, "square", f)


@checked_arguments
def accumulate_mean_(t: Tensor, X: Tensor, step: float | Tensor) -> Tensor:
    """``t = step / (step + 1) * t + X / (step + 1)``: the running mean after ``step`` earlier values."""
    return _accumulate(t, X, "mean", step)


@checked_arguments
def accumulate_moving_average_(t: Tensor, X: Tensor, f: float | Tensor) -> Tensor:
    """``t = f * t + (1 - f) * X``."""
    return _accumulate(t, X, "moving_average", f)


@checked_arguments
def accumulate_moving_average_square_(t: Tensor, X: Tensor, f: float | Tensor) -> Tensor:
    """``t = f * t + (1 - f) * X * X``."""
    return _accumulate(t, X, "moving_average_square", f)


@checked_arguments
def accumulator_scale_(t: Tensor, f: float | Tensor) -> Tensor:
    """``t *= f``; the constant 0 fills, so that NaN does not stay."""
    name = f"{t.name}_scaled"
    if isinstance(f, Tensor):
        return emit(_k.AccumulatorScale, [t, f], name)
    return emit(_k.AccumulatorScale, [t], name, factor=float(f))


@checked_arguments
def accumulator_zero_(t: Tensor) -> Tensor:
    """``t = 0``."""
    return emit(_k.AccumulatorZero, [t], f"{t.name}_zeroed")


@checked_arguments
def copy_var_update_(t: Tensor, X: Tensor) -> Tensor:
    """``t[...] = X``."""
    return emit(_k.CopyVarUpdate, [t, X], f"{t.name}_updated")


@checked_arguments
def sparse_accumulate_(
    t: Tensor, X: Tensor, indices: Tensor, axis: int = 0, f: float | Tensor | None = None, W: Tensor | None = None
) -> Tensor:
    """``t[indices[k]] += f * X[k]`` along ``axis``: the gradient of a gather, accumulated without a tensor of the
    table's size.

    Args:
        W: upstream, the variable whose layout ``t`` gets.

    Raises:
        ShapeError: ``X`` has not the shape that a gather from ``t`` gives.
    """
    EFFECTS.given("ops.var_updates.sparse_accumulate_(W)", W)
    name = f"{t.name}_accumulated"
    if isinstance(f, Tensor):
        return emit(_k.SparseAccumulate, [t, X, indices, f], name, axis=axis)
    return emit(_k.SparseAccumulate, [t, X, indices], name, axis=axis, factor=None if f is None else float(f))
