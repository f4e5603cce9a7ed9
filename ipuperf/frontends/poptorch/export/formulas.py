"""Functions of PyTorch without an op on the IPU, as sums of ops that have one.

Iterations begin with numbers that no gradient flows through; their last step, Newton's, has the function's derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

from ..errors import UnsupportedError

#: Rows of the largest matrix that is inverted: each is a step of the program.
_LARGEST = 64
#: Giles' approximation of the inverse error function in float32, in ``w = -log(1 - x**2)``: below 5 by ``w - 2.5``,
#: else by ``sqrt(w) - 3`` ("Approximating the erfinv function", GPU Computing Gems, 2011, table 5).
_CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
           -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
         0.00943887047, 1.00167406, 2.83297682)  # fmt: skip
#: Terms of the exponential function of a matrix, and how often it is halved at most.
_DEGREE, _HALVINGS = 9, 8


def _polynomial(x: torch.Tensor, coefficients: tuple[float, ...]) -> torch.Tensor:
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def erfinv(x: torch.Tensor) -> torch.Tensor:
    """``torch.erfinv``."""
    fixed = x.detach().float()
    w = -torch.log((1 - fixed) * (1 + fixed))
    start = torch.where(w < 5, _polynomial(w - 2.5, _CENTRE), _polynomial(torch.sqrt(w) - 3, _TAIL)) * fixed
    ends = fixed.abs() == 1
    start = torch.where(ends, 0.0, start)
    # Near the ends float32 has no digits left for a difference of error functions, and the start is as good.
    difference = torch.where(fixed.abs() < 0.9, torch.erf(start) - fixed, 0.0)
    slope = torch.exp(start * start) * (math.sqrt(math.pi) / 2)
    found = start - difference * slope + (x - x.detach()) * slope
    return torch.where(ends, fixed * math.inf, found).to(x.dtype)


def _rows(name: str, a: torch.Tensor) -> int:
    """How many rows a matrix has."""
    if a.shape[-1] > _LARGEST:
        raise UnsupportedError(f"torch.linalg.{name}: {a.shape[-1]} rows are unsupported; allowed: up to {_LARGEST}")
    return a.shape[-1]


def inverse(a: torch.Tensor) -> torch.Tensor:
    """``torch.linalg.inv``, by Gauss-Jordan elimination with the largest pivot of each column.

    Raises:
        UnsupportedError: more than 64 rows.
    """
    size = _rows("inv and solve", a)
    one, rows = torch.eye(size, dtype=a.dtype), torch.arange(size)
    table = torch.cat([a.detach(), one.expand(a.shape)], -1)
    for step in range(size):
        heights = torch.where(rows < step, -1.0, table[..., step].abs())
        pivot = (heights.argmax(-1, keepdim=True) == rows).unsqueeze(-1)
        line = torch.where(pivot, table, 0.0).sum(-2, keepdim=True)
        line = line / line[..., step : step + 1]
        table = torch.where(pivot, table[..., step : step + 1, :], table)
        table = torch.where((rows == step)[:, None], line, table - table[..., step : step + 1] * line)
    start = table[..., size:]
    return start @ (2 * one - a @ start)


def solve(a: torch.Tensor, b: torch.Tensor, *, left: bool = True) -> torch.Tensor:
    """``torch.linalg.solve`` by :func:`inverse`."""
    if b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1]):
        return (inverse(a) @ b.unsqueeze(-1)).squeeze(-1)
    return inverse(a) @ b if left else b @ inverse(a)


def cholesky(a: torch.Tensor, *, upper: bool = False) -> torch.Tensor:
    """``torch.linalg.cholesky`` without its check; NaN where the matrix is not positive definite."""
    factor: torch.Tensor = torch.linalg.cholesky_ex(a.mT if upper else a)[0]
    return factor.mT if upper else factor


def _pivots(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The pivots of an elimination with the largest one of each column, and the sign of the exchanges of rows."""
    size = _rows("det", a)
    rows, table, pivots = torch.arange(size), a, []
    sign = torch.ones(a.shape[:-2], dtype=a.dtype)
    for step in range(size):
        place = torch.where(rows < step, -1.0, table[..., step].detach().abs()).argmax(-1, keepdim=True)
        chosen, first = (place == rows).unsqueeze(-1), (rows == step).unsqueeze(-1)
        line = torch.where(chosen, table, 0.0).sum(-2, keepdim=True)
        table = torch.where(first, line, torch.where(chosen, table[..., step : step + 1, :], table))
        sign = torch.where(place.squeeze(-1) == step, sign, -sign)
        pivots.append(line[..., 0, step])
        table = (
            table
            - torch.where((rows > step).unsqueeze(-1), table[..., step : step + 1] / line[..., step : step + 1], 0.0)
            * line
        )
    return torch.stack(pivots, -1), sign


def slogdet(a: torch.Tensor) -> Any:
    """``torch.linalg.slogdet``."""
    pivots, sign = _pivots(a)
    kinds: Any = torch.return_types
    return kinds.linalg_slogdet((sign * pivots.detach().sign().prod(-1), pivots.abs().log().sum(-1)))


def det(a: torch.Tensor) -> torch.Tensor:
    """``torch.linalg.det``."""
    pivots, sign = _pivots(a)
    return pivots.prod(-1) * sign


def logdet(a: torch.Tensor) -> torch.Tensor:
    """``torch.logdet``: NaN where the determinant is negative."""
    sign, value = slogdet(a)
    return torch.where(sign < 0, math.nan, value)


def solve_triangular(
    a: torch.Tensor, b: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    """``torch.linalg.solve_triangular`` with its diagonal written and as many matrices as right sides."""
    if unitriangular:
        a = a - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1) - 1)
    several = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    sides = (a.expand(*several, *a.shape[-2:]), b.expand(*several, *b.shape[-2:]))
    solution: torch.Tensor = torch.linalg.solve_triangular(*sides, upper=upper, left=left)
    return solution


def cholesky_solve(b: torch.Tensor, factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """``torch.cholesky_solve``."""
    low = factor.mT if upper else factor
    return solve_triangular(low.mT, solve_triangular(low, b, upper=False), upper=True)


def matrix_exp(a: torch.Tensor) -> torch.Tensor:
    """``torch.linalg.matrix_exp``: a Taylor polynomial of the matrix, halved until its norm is below 1/2, and squares
    of that. Each of the squares is computed, whether the matrix was halved as often or not."""
    norm = a.detach().abs().sum(-1).amax(-1)[..., None, None]
    halvings = torch.log2(norm.clamp(min=2.0**-1)).ceil().clamp(max=_HALVINGS - 1) + 1
    small = a * torch.exp2(-halvings)
    one = torch.eye(a.shape[-1], dtype=a.dtype)
    found = one + small / _DEGREE
    for step in range(_DEGREE - 1, 0, -1):
        found = one + small @ found / step
    for step in range(_HALVINGS):
        found = torch.where(step < halvings, found @ found, found)
    return found


def logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """``torch.logcumsumexp``: the sum of each place over all up to it, so the cost grows with the square of the
    length."""
    if not x.dim():
        return x.clone()
    lines = x.movedim(dim, -1)
    before = torch.ones(lines.shape[-1], lines.shape[-1], dtype=torch.bool).tril()
    found = torch.where(before, lines.unsqueeze(-2), -math.inf).logsumexp(-1)
    return found.movedim(-1, dim)


def cond(
    predicate: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: tuple[Any, ...] = ()
) -> Any:
    """``torch.cond``: both branches are computed and the one that holds is chosen; poptorch.cond executes one."""
    if not isinstance(predicate, torch.Tensor):
        return true_fn(*operands) if predicate else false_fn(*operands)
    chosen = predicate.reshape(())
    return pytree.tree_map(lambda a, b: torch.where(chosen, a, b), true_fn(*operands), false_fn(*operands))


FORMULAS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.cholesky, torch.Tensor.cholesky), lambda a, upper=False: cholesky(a, upper=upper)),
    **dict.fromkeys((torch.cholesky_solve, torch.Tensor.cholesky_solve), cholesky_solve),
    **dict.fromkeys((torch.linalg.det, torch.det, torch.Tensor.det), det),
    **dict.fromkeys((torch.logdet, torch.Tensor.logdet), logdet),
    **dict.fromkeys((torch.linalg.slogdet, torch.slogdet, torch.Tensor.slogdet), slogdet),
    torch.Tensor.erfinv: erfinv,
    torch.Tensor.inverse: inverse,
    torch.Tensor.logcumsumexp: logcumsumexp,
    torch.erfinv: erfinv,
    torch.inverse: inverse,
    **dict.fromkeys((torch.linalg.matrix_exp, torch.matrix_exp, torch.Tensor.matrix_exp), matrix_exp),
    torch.linalg.cholesky: cholesky,
    torch.linalg.inv: inverse,
    torch.linalg.solve: solve,
    torch.linalg.solve_triangular: solve_triangular,
    torch.logcumsumexp: logcumsumexp,
    torch.special.erfinv: erfinv,
}
