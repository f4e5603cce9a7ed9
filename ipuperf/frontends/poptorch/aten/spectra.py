"""Eigenvalues, singular values, orthogonal factors and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipuperf.functions import spectra
from ipuperf.functions.arranging import cut, joined, reshaped, swapped, triangle
from ipuperf.ir import FLOAT32, INT32, Tensor

from .lowering import Handler, Lowering, Value
from .products import product

_LARGEST = 128
"""Columns of the largest matrix: the trips of the loops grow with them, and the tensors with their square."""


def _matrix(low: Lowering, value: Value) -> Tensor:
    x = low.tensor(value)
    if x.dtype != FLOAT32 or min(x.shape[-2:]) > _LARGEST or not x.spec.elements:
        raise low.unsupported(
            f"{x.spec}; allowed: float32 with elements, the smaller of the last two axes up to {_LARGEST}"
        )
    return x


def eigh(low: Lowering, value: Value, UPLO: str = "L", compute_v: bool = True) -> list[Tensor]:
    """Eigenvalues and vectors of the symmetric matrix of which one triangle is read."""
    x = _matrix(low, value)
    values, vectors = spectra.eigh(_symmetric(x, lower=UPLO.upper() == "L"))
    if low.training:
        values, vectors = spectra.with_slope_of_eigh(x, values, vectors)
    return [values, vectors if compute_v else low.constant(np.zeros(0), FLOAT32)]


def svd(
    low: Lowering, value: Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> list[Tensor]:
    """Singular values and vectors; a driver of CUDA has no say."""
    x = _matrix(low, value)
    if not (compute_uv or low.training):
        values = spectra.singular(x if x.shape[-2] >= x.shape[-1] else swapped(x))[0]
        return [low.constant(np.zeros(0), FLOAT32), values, low.constant(np.zeros(0), FLOAT32)]
    u, values, v = spectra.svd(x, full_matrices)
    if low.training:
        u, values, v = spectra.with_slope_of_svd(x, u, values, v)
    if not compute_uv:
        return [low.constant(np.zeros(0), FLOAT32), values, low.constant(np.zeros(0), FLOAT32)]
    return [u, values, swapped(v)]


def qr(low: Lowering, value: Value, mode: str = "reduced") -> list[Tensor]:
    """Orthogonal and triangular factor."""
    x = _matrix(low, value)
    rows, columns = x.shape[-2:]
    rank = len(x.shape)
    if not low.training:
        q, r = spectra.qr(x, mode == "complete")
    elif rows >= columns:
        q, r = spectra.qr(x, False)
        q, r = spectra.with_slope_of_qr(x, q, r)
        if mode == "complete" and rows > columns:
            raise low.unsupported("mode='complete' of a matrix with more rows than columns has no gradient")
    else:
        first = cut(x, rank - 1, 0, rows)
        q, r = spectra.with_slope_of_qr(first, *spectra.qr(first, False))
        r = joined([r, product(low, swapped(q), cut(x, rank - 1, rows, columns))], rank - 1)
    return [low.constant(np.zeros(0), FLOAT32) if mode == "r" else q, r]


def pinv(
    low: Lowering, value: Value, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> Tensor:
    """The pseudoinverse by singular values; of a symmetric matrix the lower triangle is read."""
    x = _matrix(low, value)
    least, share = (_number(low, limit) for limit in (atol, rcond if rtol is None else rtol))
    if share is None:
        share = 0.0 if least else max(x.shape[-2:]) * float(np.finfo(np.float32).eps)
    read = _symmetric(x, lower=True) if hermitian else x
    inverse = spectra.pinv(read, least or 0.0, share)
    return spectra.with_slope_of_pinv(x, read, inverse) if low.training else inverse


def _symmetric(x: Tensor, lower: bool) -> Tensor:
    """The symmetric matrix of one triangle."""
    return triangle(x, lower) + swapped(triangle(x, lower, -1 if lower else 1))


def _number(low: Lowering, limit: Any) -> float | None:
    if isinstance(limit, Tensor):
        raise low.unsupported("a tolerance that is a tensor of the model is unsupported; give a number")
    return None if limit is None else float(limit)


def inverse(low: Lowering, value: Value, *, check_errors: bool = False) -> list[Tensor]:
    """The inverse, and that all went well: a matrix that has none gives NaN or infinity."""
    x = _matrix(low, value)
    return [spectra.inverse(x), low.constant(np.zeros(x.shape[:-2]), INT32)]


def solve(
    low: Lowering, matrix: Value, right: Value, *, left: bool = True, check_errors: bool = False
) -> list[Tensor | None]:
    """Equations by the inverse; the factors are not given."""
    inverted, info = inverse(low, matrix)
    b = low.tensor(right)
    line = len(b.shape) == 1 or (len(b.shape) == len(inverted.shape) - 1 and b.shape == inverted.shape[:-1])
    sides = [inverted, reshaped(b, (*b.shape, 1)) if line else b]
    return [reshaped(product(low, *(sides if left or line else sides[::-1])), low.shape), None, None, info]


HANDLERS: Mapping[str, Handler] = {
    "_linalg_eigh": eigh,
    "_linalg_solve_ex": solve,
    "_linalg_svd": svd,
    "linalg_inv_ex": inverse,
    "linalg_pinv": pinv,
    "linalg_qr": qr,
}
