"""Scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ipuperf.functions.arithmetic import cast, greater, logical_not, logical_or, where
from ipuperf.functions.arranging import interleaved, swapped
from ipuperf.functions.elementary import scaled
from ipuperf.functions.networks import softmax
from ipuperf.functions.reductions import max
from ipuperf.ir import BOOL, Constant, Tensor

from .lowering import Lowering, Value
from .norms import dropout
from .products import product


def attention(
    low: Lowering,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``dropout(softmax(scale q k^T + mask)) v``, 0 for queries that see no key. The scale is applied to the query,
    which is smaller than the scores."""
    q, k, v = low.tensors([query, key, value], low.dtype)
    if enable_gqa:
        k, v = (_repeated(t, q.shape[-3]) for t in (k, v))
    q = scaled(q, 1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores, seeing = _masked(low, product(low, q, swapped(k)), attn_mask, is_causal)
    weights = dropout(low, softmax(scores, len(scores.shape) - 1), dropout_p, True)
    result = product(low, weights, v)
    return result if seeing is None else where(seeing, result, 0)


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    """Every head of the third last axis as often as the query needs it."""
    own = tensor.shape[-3]
    return tensor if own == heads else interleaved(tensor, {len(tensor.shape) - 3: heads // own})


def _masked(low: Lowering, scores: Tensor, mask: Value, is_causal: bool) -> tuple[Tensor, Tensor | None]:
    """Scores with -infinity where a bool mask is False, or plus a floating-point mask; and which queries see a key
    (None: all), as the mask says. Scores of those that see none stay finite."""
    if is_causal:
        scores = where(low.causal_mask(*scores.shape[-2:]), scores, -math.inf)
    if mask is None:
        return scores, None
    given = low.tensor(mask)
    allowed = given if given.dtype == BOOL else greater(given, -math.inf)
    seeing = None if _all_see(allowed) else greater(max(cast(allowed, scores.dtype), -1, True), 0)
    if given.dtype == BOOL:
        kept = allowed if seeing is None else logical_or(allowed, logical_not(seeing))
        return where(kept, scores, -math.inf), seeing
    added = low.tensor(given, scores.dtype)
    return scores + (added if seeing is None else where(seeing, added, 0)), seeing


def _all_see(allowed: Tensor) -> bool:
    """Whether every query sees a key, as far as the constant says it."""
    return isinstance(allowed, Constant) and bool(allowed.data.any(-1).all())


#: Handlers by aten name.
HANDLERS: Mapping[str, Callable[..., Any]] = {"scaled_dot_product_attention": attention}
