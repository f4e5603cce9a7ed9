"""Crops of images at boxes, resized (``tf.image.crop_and_resize``), with TensorFlow's gradients of them.

The elements that a crop mixes are gathered; where they lie follows from the boxes on the device (TensorFlow:
``tensorflow/core/kernels/image/crop_and_resize_op.cc``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ipuperf.functions import arithmetic, constant, reductions
from ipuperf.functions.arranging import broadcast, cut, joined, reshaped
from ipuperf.functions.selection import gather
from ipuperf.ir import FLOAT32, INT32, Tensor

from ..node import Node
from ..table import Family
from ..values import Value
from .selection import summed

FAMILY = Family("Crops")
op = FAMILY.op


@dataclass(frozen=True)
class _Axis:
    """Where the elements of a crop lie along one axis of its image, all ``(boxes, crop)``.

    Attributes:
        size: of the image; length: of the crop.
        inside: whether a place is within the image.
        before, after: the elements around it (int32), and the share of the one after.
    """

    size: int
    length: int
    inside: Tensor
    before: Tensor
    after: Tensor
    share: Tensor

    def slopes(self) -> tuple[np.ndarray, np.ndarray]:
        """How places move with the begin and with the end of a box, of each element of the crop."""
        if self.length == 1:
            return np.full(1, 0.5 * (self.size - 1), np.float32), np.full(1, 0.5 * (self.size - 1), np.float32)
        steps = np.arange(self.length, dtype=np.float32) * ((self.size - 1) / (self.length - 1))
        return np.float32(self.size - 1) - steps, steps


def _axis(boxes: Tensor, begin: int, size: int, length: int, nearest: bool) -> _Axis:
    """Along the axis whose begins and ends are columns ``begin`` and ``begin + 2`` of the boxes."""
    low, high = (cut(boxes, 1, column, column + 1) for column in (begin, begin + 2))
    if length > 1:
        steps = constant(np.arange(length, dtype=np.float32)[None], FLOAT32)
        places = low * float(size - 1) + (high - low) * ((size - 1) / (length - 1)) * steps
    else:
        places = (low + high) * (0.5 * (size - 1))
    inside = (places >= 0.0) & (places <= float(size - 1))
    clipped = arithmetic.where(inside, places, 0.0)
    first = arithmetic.floor(clipped + 0.5 if nearest else clipped)
    last = first if nearest else arithmetic.ceil(clipped)
    before, after = (arithmetic.cast(place, INT32) for place in (first, last))
    return _Axis(size, length, inside, before, after, clipped - first)


@dataclass(frozen=True)
class _Crops:
    """Crops of images ``shape (batch, height, width, depth)``.

    Attributes:
        images: the number of the image of each box.
        rows, columns: where their elements lie.
    """

    shape: tuple[int, ...]
    images: Tensor
    rows: _Axis
    columns: _Axis

    @property
    def boxes(self) -> int:
        """Number of crops."""
        return self.images.shape[0]

    def places(self, row: Tensor, column: Tensor) -> Tensor:
        """Rows of the images as one table at these rows and columns, ``(boxes * height * width,)``."""
        height, width = self.shape[1:3]
        image = reshaped(self.images, (-1, 1, 1)) * height
        lines = (image + reshaped(row, (self.boxes, -1, 1))) * width
        return reshaped(lines + reshaped(column, (self.boxes, 1, -1)), (-1,))

    def corners(self) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """For each of the elements around a place: where it is, and its shares along rows and columns."""
        down, right = (self.spread(axis.share, along) for along, axis in enumerate((self.rows, self.columns)))
        for row, vertical in ((self.rows.before, 1.0 - down), (self.rows.after, down)):
            for column, horizontal in ((self.columns.before, 1.0 - right), (self.columns.after, right)):
                yield self.places(row, column), vertical, horizontal

    def spread(self, values: Tensor, along: int) -> Tensor:
        """Values of one axis ``(boxes, n)`` beside elements of crops ``(boxes, height, width, depth)``."""
        return reshaped(values, (self.boxes, *((-1, 1) if along == 0 else (1, -1)), 1))

    def inside(self) -> Tensor:
        """Whether elements of the crops lie within their images."""
        return self.spread(self.rows.inside, 0) & self.spread(self.columns.inside, 1)

    def elements(self, table: Tensor, places: Tensor) -> Tensor:
        """Rows of a table at places, as elements of crops."""
        return reshaped(gather(table, places, 0), (self.boxes, self.rows.length, self.columns.length, self.shape[3]))


def _crops(node: Node, shape: tuple[int, ...], boxes: Tensor, images: Value, size: tuple[int, ...]) -> _Crops:
    nearest = node.attr("method") == "nearest"
    rows, columns = (_axis(boxes, i, shape[1 + i], size[i], nearest) for i in (0, 1))
    return _Crops(shape, node.tensor(images, INT32), rows, columns)


@op("CropAndResize")
def crop_and_resize(node: Node, image: Tensor, boxes: Tensor, images: Value, size: Value) -> Tensor:
    """Crops at boxes, of one size; a number where they reach beyond their image."""
    crops = _crops(node, image.shape, boxes, images, node.integers(size, "the size of the crops"))
    table = reshaped(arithmetic.cast(image, FLOAT32), (-1, image.shape[3]))
    if node.attr("method") == "nearest":
        mixed = crops.elements(table, crops.places(crops.rows.before, crops.columns.before))
    else:
        parts = [crops.elements(table, places) * (down * right) for places, down, right in crops.corners()]
        mixed = sum(parts[1:], start=parts[0])
    return arithmetic.where(broadcast(crops.inside(), mixed.shape), mixed, float(node.attr("extrapolation_value")))


@op("CropAndResizeGradImage")
def gradient_of_images(node: Node, grads: Tensor, boxes: Tensor, images: Value, shape: Value) -> Tensor:
    """Every element that a crop mixed gets its share of the gradient."""
    dims = node.integers(shape, "the shape of the images")
    crops = _crops(node, dims, boxes, images, grads.shape[1:3])
    grads = arithmetic.where(broadcast(crops.inside(), grads.shape), grads, 0.0)
    if node.attr("method") == "nearest":
        parts = [(crops.places(crops.rows.before, crops.columns.before), grads)]
    else:
        parts = [(places, grads * (down * right)) for places, down, right in crops.corners()]
    updates = joined([reshaped(part, (-1, dims[3])) for _, part in parts], 0)
    total = summed(updates, joined([places for places, _ in parts], 0), math.prod(dims[:3]))
    return arithmetic.cast(reshaped(total, dims), node.dtype())


@op("CropAndResizeGradBoxes")
def gradient_of_boxes(node: Node, grads: Tensor, image: Tensor, boxes: Tensor, images: Value) -> Tensor:
    """How the elements of the crops change where a box moves."""
    crops = _crops(node, image.shape, boxes, images, grads.shape[1:3])
    table = reshaped(arithmetic.cast(image, FLOAT32), (-1, image.shape[3]))
    grads = arithmetic.where(broadcast(crops.inside(), grads.shape), grads, 0.0)
    signs = ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0))
    down = right = grads * 0.0
    for (vertical, horizontal), (places, rows, columns) in zip(signs, crops.corners()):
        element = crops.elements(table, places)
        down, right = down + element * columns * vertical, right + element * rows * horizontal
    moved = [reductions.sum(grads * slope, (3,)) for slope in (down, right)]  # of rows, of columns
    parts = []
    for end in (0, 1):
        for along, (axis, change) in enumerate(zip((crops.rows, crops.columns), moved)):
            weights = axis.slopes()[end].reshape((1, -1, 1) if along == 0 else (1, 1, -1))
            parts.append(reductions.sum(change * constant(weights, FLOAT32), (1, 2)))
    return joined([reshaped(part, (-1, 1)) for part in parts], 1)
