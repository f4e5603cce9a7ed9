"""Eigenvalues, singular values, orthogonal factors and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipuperf.functions import spectra
from ipuperf.functions.arranging import cut, joined, swapped, triangle
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
    lower = UPLO.upper() == "L"
    symmetric = triangle(x, lower) + swapped(triangle(x, lower, -1 if lower else 1))
    values, vectors = spectra.eigh(symmetric)
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


def pinv(low: Lowering, value: Value, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Tensor:
    """The pseudoinverse by singular values, of symmetric matrices too."""
    x = _matrix(low, value)
    limits = [_number(low, limit) for limit in (atol, rtol)]
    if limits[1] is None:
        limits[1] = 0.0 if limits[0] else max(x.shape[-2:]) * float(np.finfo(np.float32).eps)
    inverse = spectra.pinv(x, limits[0] or 0.0, limits[1])
    return spectra.with_slope_of_pinv(x, inverse) if low.training else inverse


def _number(low: Lowering, limit: Any) -> float | None:
    if isinstance(limit, Tensor):
        raise low.unsupported("a tolerance that is a tensor of the model is unsupported; give a number")
    return None if limit is None else float(limit)


HANDLERS: Mapping[str, Handler] = {
    "_linalg_eigh": eigh,
    "_linalg_svd": svd,
    "linalg_pinv": pinv,
    "linalg_qr": qr,
}
