"""Factors of matrices for which no library of the IPU has an op: by iterations that are loops of a program.

Each gives float32 values of the last two axes, whatever axes come before. None has a gradient, as a loop has none:
``with_slope_of_...`` adds to the factors a term that is zero and has their derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ipuperf.ir import BOOL, CONTEXT, INT32, Builder, Tensor
from ipuperf.ops import Loop, TriangularSolve

from .arithmetic import cast, detach, equal, greater, less, less_equal, maximum, sqrt, where
from .arranging import broadcast, cut, joined, padded, picked, reshaped, swapped, triangle
from .making import constant, make, make_all
from .products import matmul
from .reductions import argmax
from .reductions import sum as total
from .selection import topk

#: Sweeps over all pairs. Convergence is quadratic: matrices of 64 rows take seven.
_SWEEPS = 10
#: Half of the last digit of float32 beside 1.
_DIGIT = 2.0**-24

Tensors = Sequence[Tensor]


def repeated(trips: int, body: Callable[..., Tensors], carried: Tensors) -> list[Tensor]:
    """What ``body`` of the tensors gives after ``trips`` trips, each with the results of the one before it."""
    around = CONTEXT.builder
    inner = Builder(around.graph.ir.create_graph("loop"))
    inner.location, inner.module, inner.naming = around.location, around.module, around.naming
    with CONTEXT.building(inner):
        for result in body(*(inner.graph.add_input(t.spec, t.name) for t in carried)):
            inner.graph.add_output(result)
    names = [t.name for t in inner.graph.outputs]
    return make_all(Loop, carried, names, callee=inner.graph, trip_count=trips)


# -- rotations ---------------------------------------------------------------------------------------------------------


def _rotation(first: Tensor, both: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the smaller angle that makes ``[[first, both], [both, second]]`` diagonal (Golub and Van
    Loan, Matrix Computations, 8.5.2)."""
    # Below half a digit a rotation would only add its rounding.
    still = less_equal(abs(both), _DIGIT * sqrt(abs(first)) * sqrt(abs(second)))
    slope = (second - first) / (2.0 * where(still, 1.0, both))
    steep = 1.0 / (abs(slope) + sqrt(1.0 + slope * slope))
    tangent = where(still, 0.0, where(less(slope, 0.0), -steep, steep))
    cosine = 1.0 / sqrt(1.0 + tangent * tangent)
    return cosine, tangent * cosine


def _turned(t: Tensor, axis: int, cosine: Tensor, sine: Tensor) -> Tensor:
    """Pairs of rows or columns, which stand half an axis apart, turned by angles.

    Then each meets another one (Brent and Luk's order): after all have met, each is back in its place.
    """
    half = t.shape[axis] // 2
    first, second = cut(t, axis, 0, half), cut(t, axis, half, 2 * half)
    first, second = cosine * first - sine * second, sine * first + cosine * second
    order = [(first, 0, 1), (second, 0, 1), (first, 1, half - 1), (second, 1, half), (first, half - 1, half)]
    return joined(
        [cut(part, axis, *bounds) for part, *bounds in order[: 5 if half > 1 else 2] if bounds[0] < bounds[1]], axis
    )


def _identity(t: Tensor, size: int) -> Tensor:
    return broadcast(constant(np.eye(size), t.dtype), (*t.shape[:-2], size, size))


def _diagonal(t: Tensor) -> Tensor:
    """Of a matrix that is not wider than high."""
    return total(where(constant(np.eye(*t.shape[-2:], dtype=bool), BOOL), t, 0.0), -2)


def _in_order(values: Tensor, columns: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    """Sorted values, and the columns of each."""
    count, rank = values.shape[-1], len(columns.shape)
    values, places = topk(values, count, rank - 2, largest, True)
    places = broadcast(reshaped(places, (*values.shape[:-1], 1, count)), columns.shape)
    return values, picked(columns, places, rank - 1)


def _inverse(t: Tensor) -> Tensor:
    """1 over each element, 0 for zeros."""
    zero = equal(t, 0.0)
    return where(zero, 0.0, 1.0 / where(zero, 1.0, t))


def _change(a: Tensor) -> Tensor:
    """Zero, with the gradient of ``a``."""
    return a - detach(a)


def _across(t: Tensor) -> Tensor:
    """A line of numbers, one for each column of a matrix."""
    return reshaped(t, (*t.shape[:-1], 1, t.shape[-1]))


def inverse(a: Tensor) -> Tensor:
    """By Gauss-Jordan elimination with the largest pivot of each column, and a step of Newton's, which has the
    derivative."""
    size, rank, fixed = a.shape[-1], len(a.shape), detach(a)

    def trip(table: Tensor, step: Tensor) -> Tensors:
        down, along = constant(np.arange(size)[:, None], INT32), constant(np.arange(2 * size), INT32)
        here, column = equal(down, step), equal(along, step)
        heights = where(less(down, step), -1.0, abs(total(where(column, table, 0.0), -1, True)))
        pivot = equal(down, argmax(heights, rank - 2, True))
        line, head = (total(where(rows, table, 0.0), -2, True) for rows in (pivot, here))
        line = line / total(where(column, line, 0.0), -1, True)
        table = where(pivot, head, table)
        reduced = table - total(where(column, table, 0.0), -1, True) * line
        return where(here, line, reduced), step + 1

    table = joined([fixed, _identity(a, size)], rank - 1)
    table, _ = repeated(size, trip, [table, constant(0, INT32)])
    start = detach(cut(table, rank - 1, size, 2 * size))
    return matmul(start, 2.0 * _identity(a, size) - matmul(a, start))


# -- symmetric matrices ------------------------------------------------------------------------------------------------


def eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    """Rising eigenvalues and the eigenvectors of a symmetric matrix by Jacobi's rotations, of half of the rows with the
    other half at once. Which of its two directions a vector has is not said."""
    size, rank = a.shape[-1], len(a.shape)
    half = (size + 1) // 2
    if size % 2:  # a row of zeros turns nothing
        a = padded(a, {rank - 2: (0, 1), rank - 1: (0, 1)})
    first, second = np.eye(half, 2 * half, dtype=bool), np.eye(half, 2 * half, half, dtype=bool)

    def trip(table: Tensor, vectors: Tensor) -> Tensors:
        upper, lower = cut(table, rank - 2, 0, half), cut(table, rank - 2, half, 2 * half)
        kept = [(upper, first), (upper, second), (lower, second)]
        turn = _rotation(*(total(where(constant(mask, BOOL), rows, 0.0), -1, True) for rows, mask in kept))
        columns = [swapped(t) for t in turn]
        table = _turned(_turned(table, rank - 2, *turn), rank - 1, *columns)
        return table, _turned(vectors, rank - 1, *columns)

    table, vectors = repeated(_SWEEPS * (2 * half - 1), trip, [a, _identity(a, 2 * half)])
    table, vectors = (cut(cut(t, rank - 2, 0, size), rank - 1, 0, size) for t in (table, vectors))
    return _in_order(_diagonal(table), vectors, False)


def with_slope_of_eigh(a: Tensor, values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Of equal eigenvalues, whose vectors have no derivative, it is taken for 0."""
    values, vectors = detach(values), detach(vectors)
    change = matmul(matmul(swapped(vectors), _change(a)), vectors)
    gaps = _across(values) - swapped(_across(values))
    return values + _diagonal(change), vectors + matmul(vectors, _inverse(gaps) * change)


# -- reflections -------------------------------------------------------------------------------------------------------


def qr(a: Tensor, complete: bool) -> tuple[Tensor, Tensor]:
    """Orthogonal and triangular factor by Householder's reflections, with LAPACK's signs."""
    rows, columns = a.shape[-2:]
    rank = len(a.shape)

    def trip(table: Tensor, left: Tensor, step: Tensor) -> Tensors:
        down, along = constant(np.arange(rows)[:, None], INT32), constant(np.arange(columns), INT32)
        line = total(where(equal(along, step), table, 0.0), -1, True)
        head, tail = (where(compared(down, step), line, 0.0) for compared in (equal, greater))
        first, rest = total(head, -2, True), total(tail * tail, -2, True)
        length = sqrt(first * first + rest)
        # The sign by which nothing cancels; a column that is zero below is left as it is.
        mirror = tail + where(equal(down, step), first + where(less(first, 0.0), -length, length), 0.0)
        mirror = where(greater(rest, 0.0), mirror, 0.0)
        across = swapped(mirror) * _inverse(length * (length + abs(first)))
        table = table - mirror * matmul(across, table)
        return table, left - matmul(left, mirror) * across, step + 1

    trips = min(rows - 1, columns)
    carried = [a, _identity(a, rows), constant(0, INT32)]
    table, left, _ = repeated(trips, trip, carried) if trips else carried
    kept = rows if complete else min(rows, columns)
    return cut(left, rank - 1, 0, kept), triangle(cut(table, rank - 2, 0, kept), False)


def with_slope_of_qr(a: Tensor, q: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Of a matrix that is not wider than high."""
    q, r = detach(q), detach(r)
    change = swapped(make(TriangularSolve, r, swapped(_change(a)), lower=False, adjoint=True))
    turned = matmul(swapped(q), change)
    upper = triangle(turned, False) + triangle(swapped(turned), False, 1)
    return q + change - matmul(q, upper), r + matmul(upper, r)


# -- any matrices ------------------------------------------------------------------------------------------------------


def singular(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Falling singular values, the vectors on the right and, times their values, those on the left of a matrix that is
    not wider than high, by rotations of its columns (one-sided Jacobi: Hestenes)."""
    rows, size = a.shape[-2:]
    rank, half = len(a.shape), (size + 1) // 2
    if size % 2:
        a = padded(a, {rank - 1: (0, 1)})

    def trip(table: Tensor) -> Tensors:
        upper = cut(table, rank - 2, 0, rows)
        first, second = cut(upper, rank - 1, 0, half), cut(upper, rank - 1, half, 2 * half)
        turn = _rotation(*(total(x * y, -2, True) for x, y in ((first, first), (first, second), (second, second))))
        return [_turned(table, rank - 1, *turn)]

    # The vectors on the right stand below the matrix, as they are turned alike.
    (table,) = repeated(_SWEEPS * (2 * half - 1), trip, [joined([a, _identity(a, 2 * half)], rank - 2)])
    table = cut(cut(table, rank - 2, 0, rows + size), rank - 1, 0, size)
    left = cut(table, rank - 2, 0, rows)
    values, table = _in_order(sqrt(total(left * left, -2)), table, True)
    return values, cut(table, rank - 2, rows, rows + size), cut(table, rank - 2, 0, rows)


def svd(a: Tensor, complete: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors on the left, falling singular values, vectors on the right as columns; ``complete`` adds vectors to a
    square on both sides. Which of its two directions a pair of vectors has is not said."""
    if a.shape[-2] < a.shape[-1]:
        right, values, left = svd(swapped(a), complete)
        return left, values, right
    values, right, scaled = singular(a)
    # Reflections give vectors for values of 0, too.
    left, triangular = qr(scaled, complete)
    sign = 1.0 - 2.0 * cast(less(_diagonal(triangular), 0.0), left.dtype)
    missing = left.shape[-1] - values.shape[-1]
    sign = padded(sign, {len(sign.shape) - 1: (0, missing)}, 1.0) if missing else sign
    return left * _across(sign), values, right


def with_slope_of_svd(a: Tensor, u: Tensor, values: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of equal singular values, whose vectors have no derivative, it is taken for 0. The vectors that make a square
    have none."""
    size, rank = values.shape[-1], len(a.shape)
    values, change = detach(values), _change(a)
    (u, more_u), (v, more_v) = (
        (cut(t, rank - 1, 0, size), [cut(t, rank - 1, size, t.shape[-1])] if t.shape[-1] > size else [])
        for t in (detach(u), detach(v))
    )
    line = _across(values)
    to_v, to_u = matmul(swapped(change), u), matmul(change, v)
    turned = matmul(swapped(u), to_u)
    gaps = _inverse((line - swapped(line)) * (line + swapped(line)))
    by_column, by_row = turned * line, turned * swapped(line)
    left = matmul(u, gaps * (by_column + swapped(by_column))) + (to_u - matmul(u, turned)) * _inverse(line)
    right = matmul(v, gaps * (by_row + swapped(by_row))) + (to_v - matmul(v, swapped(turned))) * _inverse(line)
    bases = joined([u + left, *more_u], rank - 1), joined([v + right, *more_v], rank - 1)
    return bases[0], values + _diagonal(turned), bases[1]


def pinv(a: Tensor, atol: float, rtol: float) -> Tensor:
    """The pseudoinverse; singular values that are not above ``atol`` and ``rtol`` times the largest one count as 0."""
    u, values, v = svd(a, False)
    limit = maximum(cut(values, -1, 0, 1) * rtol, atol)
    return matmul(v * _across(where(greater(values, limit), _inverse(values), 0.0)), swapped(u))


def with_slope_of_pinv(a: Tensor, read: Tensor, inverse: Tensor) -> Tensor:
    """As long as the rank stays (Golub and Pereyra, 1973); ``read`` is what of ``a`` was inverted."""
    fixed, inverse, change = detach(read), detach(inverse), _change(a)
    plain = matmul(matmul(inverse, change), inverse)
    rows = matmul(matmul(inverse, swapped(inverse)), swapped(change))
    columns = matmul(swapped(change), matmul(swapped(inverse), inverse))
    first = rows - matmul(matmul(rows, fixed), inverse)
    return inverse - plain + first + columns - matmul(inverse, matmul(fixed, columns))
