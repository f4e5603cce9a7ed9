"""Sums, means and maxima of rows of a table: ``embedding_bag``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ipuperf.functions import make, reductions
from ipuperf.functions.arithmetic import cast, not_equal, where
from ipuperf.functions.arranging import broadcast, cut, joined, reshaped, row
from ipuperf.functions.selection import topk
from ipuperf.ir import INT32, Tensor
from ipuperf.ops import Gather

from .lowering import Handler, Lowering, Value, each


def _largest(rows: Tensor, axis: int) -> Tensor:
    """Maxima along an axis, of which only the first of equals gets the gradient: a row may be in a bag twice."""
    return row(topk(rows, 1, axis)[0], axis, 0)


_SUM, _LARGEST = 0, 2
#: By PyTorch's number of the mode.
_MODES: tuple[Callable[..., Tensor], ...] = (reductions.sum, reductions.mean, _largest)


def _bounds(low: Lowering, offsets: Value, count: int, include_last: bool) -> list[int]:
    """Where bags begin, and where the last one ends."""
    if not isinstance(offsets, torch.Tensor):
        raise low.unsupported("offsets that depend on data are unsupported: the length of a bag has to be known")
    starts = [int(at) for at in offsets]
    return starts if include_last else [*starts, count]


@dataclass(frozen=True)
class _Rows:
    """Rows of a table in the order of their positions, and which of them count.

    Attributes:
        rows: ``(positions, width)``.
        counted: whether a row is no padding, ``(positions, 1)``; None where there is no padding.
        mode: PyTorch's number of the mode.
    """

    rows: Tensor
    counted: Tensor | None
    mode: int

    def part(self, start: int, stop: int) -> _Rows:
        """Those of one or several bags."""
        counted = None if self.counted is None else cut(self.counted, 0, start, stop)
        return _Rows(cut(self.rows, 0, start, stop), counted, self.mode)

    def combined(self, shape: tuple[int, ...], axis: int) -> Tensor:
        """The rows as ``shape (..., width)``, combined along ``axis``; zeros where only padding stands."""
        rows = reshaped(self.rows, shape)
        if self.counted is None:
            return _MODES[self.mode](rows, axis)
        counted = reshaped(self.counted, (*shape[:-1], 1))
        numbers = reductions.sum(cast(counted, rows.dtype), axis)
        if self.mode == _LARGEST:
            return where(numbers > 0.0, _largest(where(counted, rows, float("-inf")), axis), 0.0)
        total = reductions.sum(where(counted, rows, 0.0), axis)
        return total if self.mode == _SUM else total / where(numbers > 0.0, numbers, 1.0)


def embedding_bag(
    low: Lowering,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Value = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> list[Tensor | None]:
    """Rows of a table combined within bags, which begin at constant offsets; an empty bag, or one of padding alone,
    gives zeros. Padding (positions that are ``padding_idx``) is left out of its bag and has no gradient."""
    if scale_grad_by_freq:
        raise low.unsupported(
            "scale_grad_by_freq=True is unsupported: gradients are not divided by how often a row is used"
        )
    positions = low.tensor(indices, INT32)
    bounds = _bounds(low, offsets, positions.shape[0], include_last_offset)
    rows = make(Gather, low.tensor(weight), positions, axis=0)
    if per_sample_weights is not None:
        rows = rows * reshaped(low.tensor(per_sample_weights, rows.dtype), (-1, 1))
    counted = None
    if padding_idx is not None and padding_idx >= 0:
        counted = reshaped(not_equal(positions, padding_idx), (-1, 1))
    found, width = _Rows(rows, counted, mode), rows.shape[1]
    lengths = [stop - start for start, stop in zip(bounds, bounds[1:], strict=False)]
    if lengths and lengths[0] and bounds[0] == 0 and all(n == lengths[0] for n in lengths):
        return [found.part(0, bounds[-1]).combined((len(lengths), lengths[0], width), 1), None, None, None]
    nothing = broadcast(low.constant(0, rows.dtype), (1, width))
    bags = [
        found.part(start, start + n).combined((1, n, width), 1) if n else nothing
        for start, n in zip(bounds, lengths, strict=False)
    ]
    return [joined(bags, 0), None, None, None]


#: Handlers by aten name.
HANDLERS: Mapping[str, Handler] = {
    **each("_embedding_bag _embedding_bag_forward_only", embedding_bag),
}
