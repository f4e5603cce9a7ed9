"""``tf.nn``: activations, losses, convolutions, pools, norms, embedding lookups, dropout.

Images may be NHWC (TensorFlow's default) or NCHW. Simplification: NHWC images and HWIO filters are rearranged by
Transpose ops, which the cost model charges as copies; upstream chooses a layout and has no such cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipuperf import ops as _k
from ipuperf.functions import arithmetic, make, networks, products, selection

from .array import Array, convert, lifted
from .functions import (
    gelu,
    log_softmax,
    reshape,
    softmax,
    softmax_cross_entropy_with_logits,
    sparse_softmax_cross_entropy_with_logits,
    transpose,
)
from .library import MATH, NN
from .tracing import current_frame

add, multiply, reduce_mean, reduce_sum = (MATH[name] for name in ("add", "multiply", "reduce_mean", "reduce_sum"))
sigmoid, square, tanh = (MATH[name] for name in ("sigmoid", "square", "tanh"))

Padding = str | Sequence[Sequence[int]]


def bias_add(value: Any, bias: Any, data_format: str = "NHWC") -> Array:
    """``value`` plus one number per channel (last axis; axis 1 for NCHW)."""
    array, numbers = convert(value), convert(bias)
    if _channels_first(data_format):
        numbers = reshape(numbers, [-1, *[1] * (array.ndim - 2)])
    return add(array, numbers)


def l2_loss(t: Any) -> Array:
    """Half the sum of squares."""
    return multiply(reduce_sum(square(t)), 0.5)


def _channels_first(data_format: str | None) -> bool:
    found = (data_format or "NHWC").upper()
    if found not in ("NHWC", "NCHW", "NWC", "NCW"):
        raise ValueError(f"data_format={data_format!r}; allowed are NHWC and NCHW")
    return found.startswith("NC")


def _spatial(value: Any, first: bool) -> tuple[int, int]:
    """The two spatial entries of strides, sizes or dilations given as a number, a pair, or one per axis."""
    if isinstance(value, int):
        return value, value
    entries = [int(v) for v in value]
    if len(entries) == 4:
        entries = entries[2:] if first else entries[1:3]
    if len(entries) == 1:
        entries *= 2
    if len(entries) != 2:
        raise ValueError(f"{value!r}: one number, one for each of 2 spatial axes, or one for each of 4 axes is needed")
    return entries[0], entries[1]


def _pads(padding: Padding, first: bool) -> tuple[str, list[int] | None]:
    """Kind and numbers of a padding for the function library.

    Raises:
        ValueError: another name.
    """
    if not isinstance(padding, str):
        pairs = [(int(a), int(b)) for a, b in padding]
        pairs = (pairs[2:] if first else pairs[1:3]) if len(pairs) == 4 else pairs
        return "not_set", [a for a, _ in pairs] + [b for _, b in pairs]
    if padding.upper() not in ("SAME", "VALID"):
        raise ValueError(f"padding={padding!r}; allowed are SAME, VALID and pairs of numbers")
    return {"SAME": "same_upper", "VALID": "valid"}[padding.upper()], None


def _to_nchw(array: Array, first: bool) -> Array:
    return array if first else transpose(array, [0, 3, 1, 2])


def _from_nchw(array: Array, first: bool) -> Array:
    return array if first else transpose(array, [0, 2, 3, 1])


def conv2d(
    input: Any,
    filters: Any = None,
    strides: Any = 1,
    padding: Padding = "VALID",
    data_format: str | None = "NHWC",
    dilations: Any = 1,
    name: str | None = None,
    filter: Any = None,
) -> Array:
    """Convolution with filters (height, width, in channels, out channels); groups follow from the channels."""
    first = _channels_first(data_format)
    x = _to_nchw(convert(input), first)
    w = transpose(convert(filters if filters is not None else filter), [3, 2, 0, 1])
    kind, pads = _pads(padding, first)
    groups = max(1, x.shape[1] // max(1, w.shape[1]))
    convolve = lifted(products.conv, called="conv2d")
    y = convolve(x, w, _spatial(strides, first), pads, _spatial(dilations, first), groups, pad_type=kind, name=name)
    return _from_nchw(y, first)


def _pool(
    function: Callable[..., Any],
    input: Any,
    ksize: Any,
    strides: Any,
    padding: Padding,
    data_format: str | None,
    name: str,
) -> Array:
    first = _channels_first(data_format)
    kind, pads = _pads(padding, first)
    x = _to_nchw(convert(input), first)
    y = lifted(function)(x, _spatial(ksize, first), _spatial(strides, first), pads, auto_pad=kind, name=name)
    return _from_nchw(y, first)


def max_pool(
    input: Any, ksize: Any, strides: Any, padding: Padding = "VALID", data_format: str | None = "NHWC", name: str = ""
) -> Array:
    """Largest element of each window."""
    return _pool(products.max_pool, input, ksize, strides, padding, data_format, name)


def avg_pool(
    input: Any, ksize: Any, strides: Any, padding: Padding = "VALID", data_format: str | None = "NHWC", name: str = ""
) -> Array:
    """Mean of each window, without padding."""
    return _pool(products.average_pool, input, ksize, strides, padding, data_format, name)


max_pool2d, avg_pool2d = max_pool, avg_pool


def layer_norm(x: Any, scale: Any = None, bias: Any = None, epsilon: float = 1e-5) -> Array:
    """Mean 0 and variance 1 over the last axis, then times ``scale`` plus ``bias`` (default 1 and 0)."""
    array = convert(x)
    width = array.shape[-1]
    dtype = array.dtype.numpy
    factor = convert(np.ones(width, dtype) if scale is None else scale)
    offset = convert(np.zeros(width, dtype) if bias is None else bias)
    flat = reshape(array, [-1, width])
    return reshape(lifted(networks.layer_norm)(flat, factor, offset, epsilon), array.shape)


def dropout(x: Any, rate: float = 0.5, noise_shape: Sequence[int] | None = None, seed: int | None = None) -> Array:
    """Each element is 0 with probability ``rate``, otherwise divided by ``1 - rate``.

    Other elements are dropped in each iteration, micro-batch, replica and run; a recomputed stage drops the same.
    ``seed`` tells apart dropouts that would otherwise be numbered in the order of the program.
    """
    array, frame = convert(x), current_frame()
    key = frame.program.random_key() if seed is None else int(seed)
    seeds = frame.seed()
    return Array(make(_k.Dropout, array.tensor, seeds, name="dropout", p=float(rate), mask_shape=noise_shape, key=key))


gather = lifted(selection.gather, "params indices")


def embedding_lookup(params: Any, ids: Any, name: str | None = None) -> Array:
    """Rows of ``params`` at ``ids``."""
    return gather(params, ids, name=name)


def moments(x: Any, axes: Sequence[int], keepdims: bool = False) -> tuple[Array, Array]:
    """Mean and variance over axes."""
    array = convert(x)
    mean = reduce_mean(array, axes, True)
    variance = reduce_mean(square(array - mean), axes, keepdims)
    return (mean if keepdims else reduce_mean(array, axes)), variance


leaky_relu = lifted(arithmetic.leaky_relu, "features", alpha=0.2)
globals().update(NN)

__all__ = [
    "avg_pool",
    "avg_pool2d",
    "bias_add",
    "conv2d",
    "dropout",
    "embedding_lookup",
    "gather",
    "gelu",
    "l2_loss",
    "layer_norm",
    "leaky_relu",
    "log_softmax",
    "max_pool",
    "max_pool2d",
    "moments",
    "sigmoid",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "sparse_softmax_cross_entropy_with_logits",
    "tanh",
    *NN,
]
