"""Layouts of images: TensorFlow's NHWC or NCHW against ``(N, C, *spatial)``, and its paddings.

Simplification: where NHWC images come in, go out or meet other ops, and HWIO filters, are rearranged by Transpose ops,
which the cost model charges as copies; upstream chooses a layout and has no such cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ipuperf.functions.products import window_padding
from ipuperf.ir import Tensor

from .arranged import Arranged, taken
from .node import Node
from .values import Value


@dataclass(frozen=True)
class ImageLayout:
    """Where batch, channels and spatial axes of an op's images are.

    Attributes:
        first: channels come before the spatial axes.
        axes: number of spatial axes.
    """

    first: bool
    axes: int

    @property
    def order(self) -> tuple[int, ...]:
        """Axes of TensorFlow's images in the order ``(N, C, *spatial)``."""
        channel_axis = self.axes + 1
        return tuple(range(channel_axis + 1)) if self.first else (0, channel_axis, *range(1, channel_axis))

    def inner(self, node: Node, index: int, value: Value) -> Tensor:
        """Operand ``index`` as ``(N, C, *spatial)``."""
        return taken(node, index, value, self.order)

    def outer(self, tensor: Tensor) -> Value:
        """``(N, C, *spatial)`` as a value of TensorFlow's order."""
        return tensor if self.first else Arranged(tensor, self.order)

    def spatial(self, entries: Sequence[Any]) -> tuple[Any, ...]:
        """The spatial ones of entries for each axis."""
        return tuple(entries[2:]) if self.first else tuple(entries[1:-1])

    def others(self, entries: Sequence[int]) -> tuple[int, int]:
        """Those for batch and channels."""
        return (entries[0], entries[1]) if self.first else (entries[0], entries[-1])


def layout_of(node: Node) -> ImageLayout:
    """The layout that an op's attribute ``data_format`` names."""
    data_format = node.attr("data_format")
    if not data_format.startswith("NC") and not data_format.endswith("C"):
        raise node.error(f"data_format={data_format!r}; allowed: channels second (NCHW) or last (NHWC)")
    return ImageLayout(data_format.startswith("NC"), 3 if "3D" in node.op.type else 2)


@dataclass(frozen=True)
class Options:
    """How windows lie on the spatial axes: as attributes of the IR's ops."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]


def options_of(node: Node, layout: ImageLayout, size: Sequence[int], kernel: Sequence[int]) -> Options:
    """Strides, padding and dilations of an op over images of a spatial size."""
    strides = _spatial_only(node, layout, "strides", node.attr("strides"))
    named = node.op.node_def.attr
    dilation = (
        _spatial_only(node, layout, "dilations", node.attr("dilations")) if "dilations" in named else (1,) * len(size)
    )
    kind = node.attr("padding")
    if kind == "EXPLICIT":
        flat = node.attr("explicit_paddings")
        pairs = layout.spatial(list(zip(flat[::2], flat[1::2])))
    else:
        pad_type = {"SAME": "same_upper", "VALID": "valid"}[kind]
        pairs = tuple(window_padding(node.op.type, pad_type, None, size, kernel, strides, dilation))
    return Options(strides, pairs, dilation)


def _spatial_only(node: Node, layout: ImageLayout, name: str, entries: Sequence[int]) -> tuple[int, ...]:
    """The spatial entries of an attribute; those of batch and channels have to be 1."""
    if not entries:
        return (1,) * layout.axes
    if layout.others(entries) != (1, 1):
        raise node.error(f"{name}={list(entries)}; batch and channels allow only 1")
    return layout.spatial(entries)
