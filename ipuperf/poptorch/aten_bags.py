"""Sums, means and maxima of rows of a table: ``embedding_bag``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ipuperf.functions import make, reductions
from ipuperf.functions.arranging import broadcast, cut, joined, reshaped, row
from ipuperf.functions.selection import topk
from ipuperf.ir import INT32, Tensor
from ipuperf.ops import Gather

from .aten_lowering import Handler, Lowering, Value, each


def _largest(rows: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """Maxima along an axis, of which only the first of equals gets the gradient: a row may be in a bag twice."""
    found = topk(rows, 1, axis)[0]
    return found if keepdims else row(found, axis, 0)


#: By PyTorch's number of the mode.
_MODES: tuple[Callable[..., Tensor], ...] = (reductions.sum, reductions.mean, _largest)


def _bounds(low: Lowering, offsets: Value, count: int, include_last: bool) -> list[int]:
    """Where bags begin, and where the last one ends."""
    if not isinstance(offsets, torch.Tensor):
        raise low.unsupported("offsets that depend on data are unsupported: the length of a bag has to be known")
    starts = [int(at) for at in offsets]
    return starts if include_last else [*starts, count]


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
    """Rows of a table combined within bags, which begin at constant offsets; an empty bag gives zeros."""
    if scale_grad_by_freq or padding_idx not in (None, -1):
        raise low.unsupported("scale_grad_by_freq=True and padding_idx are unsupported")
    positions = low.tensor(indices, INT32)
    bounds = _bounds(low, offsets, positions.shape[0], include_last_offset)
    rows = make(Gather, low.tensor(weight), positions, axis=0)
    if per_sample_weights is not None:
        rows = rows * reshaped(low.tensor(per_sample_weights, rows.dtype), (-1, 1))
    lengths = [stop - start for start, stop in zip(bounds, bounds[1:], strict=False)]
    combine, width = _MODES[mode], rows.shape[1]
    if lengths and lengths[0] and bounds[0] == 0 and all(n == lengths[0] for n in lengths):
        used = cut(rows, 0, 0, bounds[-1])
        return [combine(reshaped(used, (len(lengths), lengths[0], width)), 1), None, None, None]
    nothing = broadcast(low.constant(0, rows.dtype), (1, width))
    bags = [combine(cut(rows, 0, start, start + n), 0, True) if n else nothing
            for start, n in zip(bounds, lengths, strict=False)]  # fmt: skip
    return [joined(bags, 0), None, None, None]


#: Handlers by aten name.
HANDLERS: Mapping[str, Handler] = {
    **each("_embedding_bag _embedding_bag_forward_only", embedding_bag),
}
