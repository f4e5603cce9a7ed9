"""Functions of PyTorch without an op on the IPU, as sums of ops that have one.

Iterations begin with numbers that no gradient flows through; their last step, Newton's, has the function's derivative.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.utils._pytree as pytree

from ..errors import UnsupportedError

#: Rows of the largest matrix with a determinant: each is a step of the program.
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
    chord = start - difference * slope + (x - x.detach()) * slope
    return torch.where(ends, fixed * math.inf, chord).to(x.dtype)


def cholesky(a: torch.Tensor, *, upper: bool = False) -> torch.Tensor:
    """``torch.linalg.cholesky`` without its check; NaN where the matrix is not positive definite."""
    factor: torch.Tensor = torch.linalg.cholesky_ex(a.mT if upper else a)[0]
    return factor.mT if upper else factor


def _pivots(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The pivots of an elimination with the largest one of each column, and the sign of the exchanges of rows."""
    size = a.shape[-1]
    if size > _LARGEST:
        raise UnsupportedError(f"torch.linalg.det: {size} rows are unsupported; allowed: up to {_LARGEST}")
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
    power = one + small / _DEGREE
    for step in range(_DEGREE - 1, 0, -1):
        power = one + small @ power / step
    for step in range(_HALVINGS):
        power = torch.where(step < halvings, power @ power, power)
    return power


def logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """``torch.logcumsumexp``: the sum of each place over all up to it, so the cost grows with the square of the
    length."""
    if not x.dim():
        return x.clone()
    lines = x.movedim(dim, -1)
    before = torch.ones(lines.shape[-1], lines.shape[-1], dtype=torch.bool).tril()
    totals = torch.where(before, lines.unsqueeze(-2), -math.inf).logsumexp(-1)
    return totals.movedim(-1, dim)


def _with_inverse(power: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``matrix_power`` without the check of its inverse."""
    return lambda a, n: power(inverse(a), -n) if n < 0 else power(a, n)


def inverse(a: torch.Tensor) -> torch.Tensor:
    """``torch.linalg.inv`` without its check."""
    inverse: torch.Tensor = torch.linalg.inv_ex(a)[0]
    return inverse


def tensorinv(a: torch.Tensor, ind: int = 2) -> torch.Tensor:
    """``torch.linalg.tensorinv``."""
    first, last = a.shape[:ind], a.shape[ind:]
    return inverse(a.reshape(math.prod(first), -1)).reshape(*last, *first)


def tensorsolve(a: torch.Tensor, b: torch.Tensor, dims: Sequence[int] | None = None) -> torch.Tensor:
    """``torch.linalg.tensorsolve``."""
    if dims is not None:
        a = a.movedim(tuple(dims), tuple(range(-len(dims), 0)))
    solution: torch.Tensor = torch.linalg.solve_ex(a.reshape(b.numel(), -1), b.reshape(-1))[0]
    return solution.reshape(a.shape[b.dim() :])


def lstsq(a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """``torch.linalg.lstsq`` by the pseudoinverse; where a driver gives residuals, matrices count as of full rank."""
    line = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    right, nothing = b.unsqueeze(-1) if line else b, torch.zeros(0, dtype=a.dtype)
    rtol = torch.finfo(a.dtype).eps * max(a.shape[-2:]) if rcond is None else rcond
    solution = torch.linalg.pinv(a, rtol=rtol) @ right
    residuals = rank = values = nothing
    if driver in ("gels", "gelsd", "gelss") and a.shape[-2] > a.shape[-1]:
        residuals = (a @ solution - right).square().sum(-2)
    if driver in ("gelsd", "gelss"):
        values = torch.linalg.svdvals(a.detach())
    rank = rank.long() if driver == "gels" else torch.linalg.matrix_rank(a, rtol=rtol)
    kinds: Any = torch.return_types
    return kinds.linalg_lstsq((solution.squeeze(-1) if line else solution, residuals, rank, values))


def cholesky_inverse(factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """``torch.cholesky_inverse``."""
    one = torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape)
    return cholesky_solve(one, factor, upper)


def masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """``masked_scatter``: the elements of ``source`` one after the other where the mask holds."""
    x, mask = torch.broadcast_tensors(x, mask.bool())
    places = (mask.reshape(-1).cumsum(0) - 1).clamp(0, source.numel() - 1)
    return torch.where(mask, source.reshape(-1)[places].reshape(x.shape), x)


def take(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """``torch.take``; negative positions count from the end."""
    places = torch.where(index < 0, index + x.numel(), index).reshape(-1)
    return x.reshape(-1).index_select(0, places).reshape(index.shape)


def put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """``torch.put``; negative positions count from the end."""
    index = torch.where(index < 0, index + x.numel(), index)
    return x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate).reshape(x.shape)


def pdist(x: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """``torch.nn.functional.pdist``: the distances of all pairs that :func:`torch.cdist` gives, once each."""
    first, second = torch.triu_indices(len(x), len(x), 1)
    return torch.cdist(x, x, p)[first, second]


def ndtri(x: torch.Tensor) -> torch.Tensor:
    """``torch.special.ndtri``."""
    return math.sqrt(2) * erfinv(2 * x - 1)


def istft(
    x: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """``torch.istft`` without its check that windows leave no gap: there the result is not finite."""
    if return_complex or onesided is False:
        raise UnsupportedError("istft: return_complex=True and onesided=False are unsupported")
    hop, wide = hop_length or n_fft // 4, win_length or n_fft
    left = (n_fft - wide) // 2
    shape = torch.nn.functional.pad(torch.ones(wide) if window is None else window, (left, n_fft - wide - left))
    spectra = x if x.dim() == 3 else x.unsqueeze(0)
    waves = torch.fft.irfft(spectra, n_fft, 1, "ortho" if normalized else "backward") * shape.unsqueeze(-1)
    total = n_fft + hop * (x.shape[-1] - 1)

    def joined(parts: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.fold(parts, (1, total), (1, n_fft), stride=(1, hop)).reshape(len(parts), total)

    envelope = joined(shape.square().reshape(1, -1, 1).expand(1, n_fft, x.shape[-1]))
    start = n_fft // 2 if center else 0
    end = total - start if length is None else min(start + length, total)
    wave = joined(waves)[:, start:end] / envelope[:, start:end]
    wave = torch.nn.functional.pad(wave, (0, 0 if length is None else length - (end - start)))
    return wave if x.dim() == 3 else wave[0]


def grid_sample(
    x: torch.Tensor,
    grid: torch.Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.grid_sample``; that of volumes by the elements at the eight corners around each place."""
    if x.dim() != 5 or mode == "bicubic":
        return torch.nn.functional.grid_sample(x, grid, mode, padding_mode, align_corners)
    axes: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
    for axis, size in enumerate(x.shape[2:]):
        at = (grid[..., 2 - axis] + 1) / 2 * (size - 1) if align_corners else ((grid[..., 2 - axis] + 1) * size - 1) / 2
        if padding_mode == "reflection":
            at = _reflected(at, 0.0 if align_corners else -0.5, size - (1.0 if align_corners else 0.0))
        at = at if padding_mode == "zeros" else at.clamp(0, size - 1)
        low = at.detach().round() if mode == "nearest" else at.detach().floor()
        corners = [(low, 1 - (at - low)), (low + 1, at - low)]
        axes.append([(low, torch.ones_like(at))] if mode == "nearest" else corners)
    total: Any = 0.0
    for corner in itertools.product(*axes):
        place, weight = torch.zeros_like(grid[..., 0], dtype=torch.long), torch.ones_like(grid[..., 0])
        for (at, share), size in zip(corner, x.shape[2:], strict=True):
            place = place * size + at.clamp(0, size - 1).long()
            weight = weight * torch.where((at >= 0) & (at < size), share, 0.0)
        lines = place.reshape(len(x), 1, -1).expand(-1, x.shape[1], -1)
        total = total + x.flatten(2).gather(2, lines).unflatten(2, grid.shape[1:4]) * weight.unsqueeze(1)
    return cast(torch.Tensor, total)


def _reflected(at: torch.Tensor, low: float, span: float) -> torch.Tensor:
    """Places mirrored at ``low`` and ``low + span`` until they lie between them."""
    if not span:
        return torch.zeros_like(at)
    apart = (at - low).abs()
    times = (apart / span).detach().floor()
    rest = apart - times * span
    return torch.where(times % 2 == 0, rest, span - rest) + low


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.grouped_mm``: products of groups, whose ends ``offs`` ``(groups,)`` are data.

    The shapes of an IPU's program are fixed, so each group is computed as if it held all rows, and others count as
    zeros. What no group holds is 0.
    """
    if bias is not None:
        raise UnsupportedError("grouped_mm: bias is unsupported, as it is in PyTorch; add it to the result")
    if offs is None:
        result = a @ b
    else:
        places = torch.arange(a.shape[-1] if a.dim() == b.dim() else a.shape[0] if b.dim() == 3 else b.shape[1])
        begins = torch.nn.functional.pad(offs[:-1], (1, 0)).unsqueeze(-1)
        member = ((places >= begins) & (places < offs.unsqueeze(-1))).to(a.dtype)
        if a.dim() == b.dim() == 2:
            result = (a.unsqueeze(0) * member.unsqueeze(1)) @ b
        elif b.dim() == 3:
            result = ((a.unsqueeze(0) * member.unsqueeze(-1)) @ b).sum(0)
        else:
            result = ((a @ b) * member.unsqueeze(1)).sum(0)
    return result if out_dtype is None else result.to(out_dtype)


def cond(
    predicate: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: tuple[Any, ...] = ()
) -> Any:
    """``torch.cond``: both branches are computed and the one that holds is chosen; poptorch.cond executes one."""
    if not isinstance(predicate, torch.Tensor):
        return true_fn(*operands) if predicate else false_fn(*operands)
    chosen = predicate.reshape(())
    return pytree.tree_map(lambda a, b: torch.where(chosen, a, b), true_fn(*operands), false_fn(*operands))


def _everywhere(name: str) -> tuple[Any, ...]:
    """The function of a name in ``torch`` and that of tensors."""
    return tuple(getattr(place, name) for place in (torch, torch.Tensor))


FORMULAS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.cholesky, torch.Tensor.cholesky), lambda a, upper=False: cholesky(a, upper=upper)),
    **dict.fromkeys(_everywhere("cholesky_inverse"), cholesky_inverse),
    **dict.fromkeys(_everywhere("cholesky_solve"), cholesky_solve),
    **dict.fromkeys((torch.linalg.det, *_everywhere("det")), det),
    **dict.fromkeys((torch.special.erfinv, *_everywhere("erfinv")), erfinv),
    **dict.fromkeys((torch.linalg.inv, *_everywhere("inverse")), inverse),
    **dict.fromkeys(_everywhere("istft"), istft),
    **dict.fromkeys(_everywhere("logcumsumexp"), logcumsumexp),
    **dict.fromkeys(_everywhere("logdet"), logdet),
    **dict.fromkeys(_everywhere("masked_scatter"), masked_scatter),
    **dict.fromkeys((torch.linalg.matrix_exp, *_everywhere("matrix_exp")), matrix_exp),
    **dict.fromkeys((torch.pdist, torch.nn.functional.pdist), pdist),
    **dict.fromkeys(_everywhere("put"), put),
    **dict.fromkeys((torch.linalg.slogdet, *_everywhere("slogdet")), slogdet),
    **dict.fromkeys(_everywhere("take"), take),
    **{power: _with_inverse(power) for power in (torch.linalg.matrix_power, *_everywhere("matrix_power"))},
    torch.Tensor.masked_scatter_: lambda x, mask, source: x.copy_(masked_scatter(x, mask, source)),
    torch.Tensor.put_: lambda x, *args, **named: x.copy_(put(x, *args, **named)),
    torch.complex: lambda real, imag: torch.complex(*torch.broadcast_tensors(real, imag)),
    **{
        getattr(place, name): grouped_mm
        for place, name in ((torch, "_grouped_mm"), (torch.nn.functional, "grouped_mm"))
        if hasattr(place, name)
    },
    torch.linalg.cholesky: cholesky,
    torch.linalg.lstsq: lstsq,
    torch.linalg.solve: lambda a, b, *, left=True: torch.linalg.solve_ex(a, b, left=left)[0],
    torch.linalg.solve_triangular: solve_triangular,
    torch.linalg.tensorinv: tensorinv,
    torch.linalg.tensorsolve: tensorsolve,
    torch.nn.functional.grid_sample: grid_sample,
    torch.special.ndtri: ndtri,
}
