"""Convolutions, depthwise and transposed ones, and the gradients that TensorFlow makes of them."""

from __future__ import annotations

from dataclasses import asdict

from ipuperf.functions import make
from ipuperf.functions.arranging import permuted, reshaped
from ipuperf.ir import Tensor
from ipuperf.ops import Conv, ConvInputGrad, ConvWeightGrad

from ..arranged import Arranged, taken
from ..layouts import layout_of, options_of
from ..node import Node
from ..table import Family
from ..values import Value

FAMILY = Family("Convolutions")
op = FAMILY.op


def _weights(node: Node, value: Value, axes: int) -> Tensor:
    """Operand 1, filters ``(*kernel, C / groups, O)`` or depthwise ones ``(*kernel, C, M)``, as ``(O, C / groups,
    *kernel)``."""
    if not _depthwise(node):
        return taken(node, 1, value, (axes + 1, axes, *range(axes)))
    filters = node.tensor(value)
    *kernel, channels, multiplier = filters.shape
    return reshaped(permuted(filters, (axes, axes + 1, *range(axes))), (channels * multiplier, 1, *kernel))


def _depthwise(node: Node) -> bool:
    return node.op.type.startswith("Depthwise")


@op("Conv2D", "Conv3D", "DepthwiseConv2dNative", arranged=True)
def conv(node: Node, value: Value, filters: Value) -> Value:
    """A convolution; groups follow from the channels."""
    layout = layout_of(node)
    x, w = layout.inner(node, 0, value), _weights(node, filters, layout.axes)
    options = options_of(node, layout, x.shape[2:], w.shape[2:])
    return layout.outer(make(Conv, x, w, groups=x.shape[1] // w.shape[1], **asdict(options)))


@op(
    "Conv2DBackpropInput",
    "Conv2DBackpropInputV2",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNativeBackpropInput",
    arranged=True,
)
def conv_input_grad(node: Node, sizes: Value, filters: Value, grad: Value) -> Value:
    """The gradient of a convolution's input, which is also the transposed convolution."""
    layout = layout_of(node)
    w, dy = _weights(node, filters, layout.axes), layout.inner(node, 2, grad)
    wanted = node.shape() if node.op.type.endswith("V2") and "2D" in node.op.type else node.integers(sizes, "the size")
    if len(wanted) == layout.axes:
        size, channels = wanted, filters.shape[-2]
    else:
        size, channels = layout.spatial(wanted), layout.others(wanted)[1]
    options = options_of(node, layout, size, w.shape[2:])
    groups = channels // w.shape[1]
    return layout.outer(make(ConvInputGrad, dy, w, input_size=size, groups=groups, **asdict(options)))


@op(
    "Conv2DBackpropFilter",
    "Conv2DBackpropFilterV2",
    "Conv3DBackpropFilterV2",
    "DepthwiseConv2dNativeBackpropFilter",
    arranged=True,
)
def conv_filter_grad(node: Node, value: Value, sizes: Value, grad: Value) -> Value:
    """The gradient of a convolution's filters."""
    layout = layout_of(node)
    axes = layout.axes
    x, dy = layout.inner(node, 0, value), layout.inner(node, 2, grad)
    wanted = node.shape() if node.op.type.endswith("FilterV2") and axes == 2 else node.integers(sizes, "the size")
    kernel, channels = wanted[:axes], wanted[-2]
    options = options_of(node, layout, x.shape[2:], kernel)
    groups = x.shape[1] if _depthwise(node) else x.shape[1] // channels
    dw = make(ConvWeightGrad, dy, x, kernel_size=kernel, groups=groups, **asdict(options))
    if _depthwise(node):
        split = reshaped(dw, (channels, wanted[-1], *kernel))
        return permuted(split, (*range(2, axes + 2), 0, 1))
    return Arranged(dw, (axes + 1, axes, *range(axes)))
