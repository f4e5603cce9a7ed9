"""Pooling, resizing, and norms over neighbouring channels, with their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ipuperf.functions import arithmetic, constant, make
from ipuperf.functions.arranging import cut, joined, padded
from ipuperf.ir import FLOAT32, Op, Tensor
from ipuperf.ops import AveragePool, AveragePoolGrad, MaxPool, MaxPoolGrad, Resize, ResizeGrad

from ..layouts import ImageLayout, layout_of, options_of
from ..node import Node
from ..table import Family
from ..values import Value

FAMILY = Family("Pooling and resizing")
op = FAMILY.op


def _attributes(node: Node, layout: ImageLayout, size: Sequence[int], ksize: Sequence[int]) -> dict[str, Any]:
    """Attributes of a pooling op over images of a spatial size."""
    if layout.others(ksize) != (1, 1):
        raise node.error(f"ksize={list(ksize)}; batch and channels allow only 1")
    kernel = layout.spatial(ksize)
    return {"kernel_size": kernel, **asdict(options_of(node, layout, size, kernel))}


@op("MaxPool", "MaxPool3D", "AvgPool", "AvgPool3D", arranged=True)
def pool(node: Node, value: Value) -> Value:
    """The largest element, or the mean, of each window."""
    layout = layout_of(node)
    x = layout.inner(node, 0, value)
    op_class: type[Op] = MaxPool if node.op.type.startswith("Max") else AveragePool
    return layout.outer(make(op_class, x, **_attributes(node, layout, x.shape[2:], node.attr("ksize"))))


@op("MaxPoolGrad", "MaxPool3DGrad", arranged=True)
def max_pool_grad(node: Node, value: Value, pooled: Value, grad: Value) -> Value:
    """The gradient of each window goes to its first largest element."""
    layout = layout_of(node)
    x, y, dy = (layout.inner(node, i, v) for i, v in enumerate((value, pooled, grad)))
    return layout.outer(make(MaxPoolGrad, dy, y, x, **_attributes(node, layout, x.shape[2:], node.attr("ksize"))))


@op("AvgPoolGrad", "AvgPool3DGrad", arranged=True)
def average_pool_grad(node: Node, shape: Value, grad: Value) -> Value:
    """The gradient of each window goes to its elements in equal shares."""
    layout = layout_of(node)
    size = layout.spatial(node.integers(shape, "the shape"))
    attributes = _attributes(node, layout, size, node.attr("ksize"))
    return layout.outer(make(AveragePoolGrad, layout.inner(node, 1, grad), input_size=size, **attributes))


# -- resizing ----------------------------------------------------------------------------------------------------------


def _interpolation(node: Node) -> dict[str, str]:
    """Attributes of the IR's ops for an op's ways of placing and choosing elements."""
    centers, corners = node.attr("half_pixel_centers"), node.attr("align_corners")
    placed = "half_pixel" if centers else "align_corners" if corners else "asymmetric"
    nearest = "NearestNeighbor" in node.op.type
    rounding = "floor" if placed == "asymmetric" else "round_prefer_ceil"
    return {
        "mode": "nearest" if nearest else "linear",
        "nearest_mode": rounding,
        "coordinate_transformation_mode": placed,
    }


@op("ResizeBilinear", "ResizeNearestNeighbor")
def resize(node: Node, tensor: Tensor, size: Value) -> Tensor:
    """Images of another size."""
    wanted = node.integers(size, "the size")
    tensor = arithmetic.cast(tensor, FLOAT32) if not tensor.dtype.is_floating_point else tensor
    sizes = (tensor.shape[0], *wanted, tensor.shape[3])
    found, dtype = make(Resize, tensor, sizes=sizes, **_interpolation(node)), node.dtype()
    return found if found.dtype == dtype else arithmetic.cast(found, dtype)


@op("ResizeBilinearGrad", "ResizeNearestNeighborGrad")
def resize_grad(node: Node, grad: Tensor, _original: Value) -> Tensor:
    """Every element that was read gets its share of the gradient."""
    return make(ResizeGrad, grad, shape=node.shape(), **_interpolation(node))


# -- local response normalisation --------------------------------------------------------------------------------------


def _neighbours(tensor: Tensor, radius: int) -> Tensor:
    """Sums over the channels at most ``radius`` apart: a product with a band of ones."""
    places = np.arange(tensor.shape[-1])
    band = np.abs(places[:, None] - places) <= radius
    return tensor @ constant(band, tensor.dtype)


@op("LRN")
def lrn(node: Node, x: Tensor) -> Tensor:
    """``x / (bias + alpha * sum of neighbouring channels' squares) ** beta``."""
    norm = _neighbours(x * x, node.attr("depth_radius")) * node.attr("alpha") + node.attr("bias")
    return x * norm ** (-node.attr("beta"))


@op("LRNGrad")
def lrn_grad(node: Node, dy: Tensor, x: Tensor, _result: Value) -> Tensor:
    """The gradient of :func:`lrn`."""
    radius, alpha, beta = node.attr("depth_radius"), node.attr("alpha"), node.attr("beta")
    norm = _neighbours(x * x, radius) * alpha + node.attr("bias")
    shared = _neighbours(dy * x * norm ** (-beta - 1), radius)
    return dy * norm ** (-beta) - x * shared * (2 * alpha * beta)


@op("ExtractImagePatches")
def extract_image_patches(node: Node, x: Tensor) -> Tensor:
    """The windows of images, each as one vector: rows, columns, then channels."""
    out = node.shape()
    if node.attr("padding") not in ("VALID", "SAME"):
        raise node.error(f"padding={node.attr('padding')!r}; allowed: SAME, VALID")
    (high, wide), strides, rates = (node.attr(name)[1:3] for name in ("ksizes", "strides", "rates"))
    amounts = {}
    for axis, kernel in enumerate((high, wide)):
        reach = (out[axis + 1] - 1) * strides[axis] + rates[axis] * (kernel - 1) + 1
        missing = max(0, reach - x.shape[axis + 1]) if node.attr("padding") == "SAME" else 0
        amounts[axis + 1] = (missing // 2, missing - missing // 2)
    x = padded(x, amounts) if any(map(sum, amounts.values())) else x
    parts = []
    for row, column in itertools.product(range(high), range(wide)):
        part = x
        for axis, first in ((1, row * rates[0]), (2, column * rates[1])):
            stop = first + (out[axis] - 1) * strides[axis - 1] + 1
            part = cut(part, axis, first, stop, strides[axis - 1])
        parts.append(part)
    return joined(parts, 3)
