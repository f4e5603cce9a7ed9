"""Pooling of regions of interest by bilinear samples, and its gradient.

Upstream: PopART ``willow/src/op/roialign.cpp`` (ONNX ``RoiAlign`` of opset 10, average only).
"""

from __future__ import annotations

import math

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import INTEGER, INTEGERS, NUMBER, Attribute

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import working_dtype
from ..selection.dynamic import DynamicIndexError
from ..selection.gather import check_indices
from ..work import Vertices, Work


def _samples(start: float, stop: float, bins: int, ratio: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(positions, weights), each ``(2, bins * ratio)``, of the two neighbours of each sample on one axis. Samples
    more than one element outside have weight 0."""
    # A region is at least one element wide.
    width = max(stop - start, 1.0) / bins
    places = start + (np.arange(bins * ratio) + 0.5) * width / ratio
    inside = (places >= -1) & (places <= length)
    # A sample at most one element outside takes the value of the border.
    clipped = np.clip(places, 0, length - 1)
    low = np.floor(clipped).astype(np.intp)
    upper_weight = clipped - low
    return np.stack([low, np.minimum(low + 1, length - 1)]), np.stack([1 - upper_weight, upper_weight]) * inside


def axis_weights(start: float, stop: float, bins: int, ratio: int, length: int) -> np.ndarray:
    """The weight of each of ``length`` elements in each of ``bins`` averages of ``ratio`` samples: ``(bins,
    length)``."""
    positions, weights = _samples(start, stop, bins, ratio, length)
    matrix = np.zeros((bins * ratio, length))
    # At the border both neighbours may be the same element, so weights are added.
    np.add.at(matrix, (np.broadcast_to(np.arange(bins * ratio), positions.shape), positions), weights)
    means: np.ndarray = matrix.reshape(bins, ratio, length).mean(1)
    return means


class _RegionOp(Op):
    """Base of pooling and its gradient. A region's samples lie on a grid, so the weights of the image's elements
    are a product of a matrix for the rows and one for the columns."""

    output_size = Attribute(INTEGERS)
    spatial_scale = Attribute(NUMBER, 1.0)
    sampling_ratio = Attribute(INTEGER, 1)

    def check_regions(self, images: tuple[int, ...]) -> None:
        """Raise ShapeError unless regions ``(n, 4)``, images ``(n,)`` and the attributes fit."""
        rois, batch = self.inputs[1:]
        check_indices(self, batch)
        self.require(len(images) == 4, f"images have shape {images}; (batch, channels, rows, columns) is needed")
        self.require(
            rois.shape == (*batch.shape, 4) and len(batch.shape) == 1,
            f"regions {rois.shape} and their images {batch.shape}; (n, 4) and (n,) are needed",
        )
        sizes = (*self.output_size, self.sampling_ratio)
        self.require(
            len(sizes) == 3 and min(sizes) >= 1,
            f"output_size {self.output_size} and sampling_ratio {self.sampling_ratio}; two sizes and a ratio from 1 on "
            "are needed",
        )

    def matrices(self, region: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """Weights of rows and of columns for the region ``(x1, y1, x2, y2)``."""
        x1, y1, x2, y2 = (float(v) * self.spatial_scale for v in region)
        (height, width), ratio = self.output_size, self.sampling_ratio
        return axis_weights(y1, y2, height, ratio, rows), axis_weights(x1, x2, width, ratio, columns)

    def image(self, index: int, batch: int) -> int:
        """Check that ``index`` names an image, and return it."""
        if not 0 <= index < batch:
            raise DynamicIndexError(f"{self.where()}: image {index} is out of range; allowed: 0 to {batch - 1}")
        return index

    def sampling(self, pooled: TensorSpec) -> Vertices:
        """The four products and sums of each sample. PopART's own vertex has no published estimate. Assumed are 40
        cycles for a sample, with low confidence."""
        samples = self.sampling_ratio**2
        # Every result averages the square of the ratio in samples.
        cycles = vertices.tile_cycles(lambda m, chip: 60 + 40 * samples * m, 11)
        name = f"{self.type}<{vertices.poplar_type(pooled.dtype)}>"
        return Vertices(name, pooled.elements, cycles, 8 * samples * pooled.elements, low_confidence=True)


class RoiAlign(_RegionOp):
    """Averages of bilinear samples in regions of images.

    Inputs: images ``(batch, channels, rows, columns)``, regions ``(n, 4)`` as x1, y1, x2, y2, and the image of each
    region ``(n,)``. ``spatial_scale`` converts the units of regions to elements. A region is at least one element wide
    and high; it is cut into ``output_size`` bins of ``sampling_ratio`` squared samples. Regions have no gradient, as
    upstream.
    """

    def infer(self) -> list[TensorSpec]:
        """``(n, channels, *output_size)``."""
        self.require(len(self.inputs) == 3, f"needs images, regions and their images, got {len(self.inputs)} operands")
        images, rois, _ = self.inputs
        self.same_dtype(images, rois)
        self.floating(images)
        self.check_regions(images.shape)
        return [TensorSpec((rois.shape[0], images.shape[1], *self.output_size), images.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """For each region two small products."""
        (images, rois, batch), out = inputs, outputs[0]
        dtype = working_dtype(out.dtype)

        def run() -> None:
            for replica, region in np.ndindex(batch.shape):
                image = images[replica, self.image(int(batch[replica, region]), images.shape[1])].astype(dtype)
                rows, columns = self.matrices(rois[replica, region], *image.shape[1:])
                out[replica, region] = rows.astype(dtype) @ image @ columns.T.astype(dtype)

        return run

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient times the weight of each element; none for the regions."""
        inputs = [grad, builder.forward(self.inputs[1]), builder.forward(self.inputs[2])]
        return [builder.op(RoiAlignGrad, inputs, shape=self.inputs[0].shape, **self.attributes), None, None]

    def work(self) -> list[Work]:
        """One compute set."""
        out = self.outputs[0].spec
        return [self.sampling(out)] if out.elements else []


class RoiAlignGrad(_RegionOp):
    """``(gradient, regions, their images) -> gradient of the images`` of ``shape``."""

    shape = Attribute(INTEGERS)

    def infer(self) -> list[TensorSpec]:
        """The given shape."""
        self.check_regions(self.shape)
        return [TensorSpec(self.shape, self.inputs[0].dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """For each region two small products, added up in working type."""
        (grad, rois, batch), out = inputs, outputs[0]
        dtype = working_dtype(out.dtype)

        def run() -> None:
            # Regions may overlap, so their gradients are
            # added in working type and rounded once.
            total = np.zeros(out.shape, dtype)
            for replica, region in np.ndindex(batch.shape):
                image = total[replica, self.image(int(batch[replica, region]), out.shape[1])]
                rows, columns = self.matrices(rois[replica, region], *image.shape[1:])
                image += rows.T.astype(dtype) @ grad[replica, region].astype(dtype) @ columns.astype(dtype)
            out[...] = total

        return run

    def work(self) -> list[Work]:
        """Zeros, then one compute set over the gradient."""
        grad, count = self.inputs[0].spec, math.prod(self.shape)
        works: list[Work] = [vertices.fill(grad.dtype, count)] if count else []
        return [*works, self.sampling(grad)] if grad.elements else works
