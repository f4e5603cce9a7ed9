"""Scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ipuperf.ir import BOOL, Tensor
from ipuperf.ops import Add, Mul, Softmax, Where

from .aten_lowering import Lowering, Value
from .aten_norms import dropout
from .aten_products import product


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
    """``dropout(softmax(scale q k^T + mask)) v``. The scale is applied to the query, which is smaller than the
    scores."""
    q, k, v = low.tensors([query, key, value], low.dtype)
    if enable_gqa:
        k, v = (_repeated(low, t, q.shape[-3]) for t in (k, v))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if factor != 1:
        q = low.op(Mul, [q, low.constant(factor, q.dtype)])
    scores = _masked(low, product(low, q, low.swapped(k)), attn_mask, is_causal)
    weights = dropout(low, low.op(Softmax, [scores], axis=len(scores.shape) - 1), dropout_p, True)
    return product(low, weights, v)


def _repeated(low: Lowering, tensor: Tensor, heads: int) -> Tensor:
    """Every head of the third last axis as often as the query needs it."""
    *lead, own, length, depth = tensor.shape
    if own == heads:
        return tensor
    wide = low.expand(low.reshape(tensor, (*lead, own, 1, length, depth)), (*lead, own, heads // own, length, depth))
    return low.reshape(wide, (*lead, heads, length, depth))


def _masked(low: Lowering, scores: Tensor, mask: Value, is_causal: bool) -> Tensor:
    """Scores with -infinity where a bool mask is False, or plus a floating-point mask."""
    lowest = low.constant(-math.inf, scores.dtype)
    if is_causal:
        allowed = low.constant(np.tril(np.ones(scores.shape[-2:], bool)), BOOL)
        scores = low.op(Where, [allowed, scores, lowest])
    if mask is None:
        return scores
    given = low.tensor(mask)
    if given.dtype == BOOL:
        return low.op(Where, [given, scores, lowest])
    return low.op(Add, [scores, low.tensor(given, scores.dtype)])


#: Handlers by aten name.
HANDLERS: Mapping[str, Callable[..., Any]] = {"scaled_dot_product_attention": attention}
