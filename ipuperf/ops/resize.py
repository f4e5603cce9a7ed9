"""Interpolation to another size, and its gradient.

Upstream: PopART ``willow/src/op/resize.cpp`` (ONNX ``Resize``; ``popxl: python/popxl/ops/interpolate.py`` has the
coordinates). Axes are resized one after the other, each by a few *taps*: for every element of the result, which
elements of the operand it is made of and how much of each. Taps beyond the ends are those at the ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import INTEGERS, NUMBER, Attribute, choice, many

from . import half, shape, vertices
from .base import Arrays, Environment, Gradients, Kernel, Op
from .binding import working_dtype
from .work import Work

MODES = ("nearest", "linear", "cubic")

NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}

#: Where an element of the result lies in the operand: of (its position, length of the result, length of the operand).
COORDINATES: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "half_pixel": lambda x, new, old: (x + 0.5) * old / new - 0.5,
    "pytorch_half_pixel": lambda x, new, old: (x + 0.5) * old / new - 0.5 if new > 1 else 0 * x,
    "align_corners": lambda x, new, old: x * (old - 1) / (new - 1) if new > 1 else 0 * x,
    "asymmetric": lambda x, new, old: x * old / new,
    "tf_crop_and_resize": lambda x, new, old: x * (old - 1) / (new - 1) if new > 1 else 0 * x + 0.5 * (old - 1),
}

#: Sharpness of cubic interpolation (ONNX' ``cubic_coeff_a``, also PyTorch's).
SHARPNESS = -0.75


def _cubic(distance: np.ndarray) -> np.ndarray:
    """Weight of an element at this distance (Keys' kernel)."""
    a, x = SHARPNESS, np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


@cache
def taps(new: int, old: int, mode: str, nearest: str, coordinates: str) -> tuple[np.ndarray, np.ndarray]:
    """(positions, weights), each ``(taps, new)``, for one axis."""
    at = COORDINATES[coordinates](np.arange(new, dtype=np.float64), new, old)
    if mode == "nearest":
        positions, weights = NEAREST[nearest](at)[np.newaxis], np.ones((1, new))
    else:
        reach = 1 if mode == "linear" else 2
        positions = np.floor(at) + np.arange(1 - reach, 1 + reach)[:, np.newaxis]
        weights = 1 - np.abs(at - positions) if mode == "linear" else _cubic(at - positions)
    return np.clip(positions, 0, old - 1).astype(np.intp), weights


class _Resized(Op):
    """Base: how axes are interpolated."""

    mode = Attribute(choice(*MODES), "nearest")
    nearest_mode = Attribute(choice(*NEAREST), "round_prefer_floor")
    coordinate_transformation_mode = Attribute(choice(*COORDINATES), "half_pixel")

    def axis_taps(self, new: int, old: int) -> tuple[np.ndarray, np.ndarray]:
        """See :func:`taps`."""
        return taps(new, old, self.mode, self.nearest_mode, self.coordinate_transformation_mode)

    def interpolation_work(self, source: Tensor, result: Tensor) -> list[Work]:
        """Elements are put in place; of several taps each is multiplied and added, for each axis that changes. PopART
        builds this of slices and element-wise maps whose number is not published: low confidence."""
        spec = max(source.spec, result.spec, key=lambda spec: spec.elements)
        if self.mode == "nearest" or not spec.elements:
            return shape.copy_work(result)
        count = {"linear": 2, "cubic": 4}[self.mode]
        changed = sum(new != old for new, old in zip(result.shape, source.shape, strict=True))
        passes = [
            vertices.binary("MULTIPLY", spec.dtype, spec.elements),
            vertices.binary("ADD", spec.dtype, spec.elements, in_place=True),
        ]
        return [*shape.copy_work(result), *(replace(item, low_confidence=True) for item in passes * count * changed)]


def _one_each(op: Op, scales: tuple[float, ...]) -> tuple[float, ...]:
    """A scale for each axis, all above 0."""
    rank = len(op.inputs[0].shape)
    op.require(
        len(scales) == rank and all(scale > 0 for scale in scales),
        f"scales {scales}; {rank} numbers above 0 are needed, one per axis of {op.inputs[0].shape}",
    )
    return scales


class Resize(_Resized):
    """The operand with each axis ``floor(length * scale)`` long, interpolated by ``mode`` (``nearest``, ``linear``,
    ``cubic``)."""

    type = "Resize"

    scales = Attribute(many(NUMBER), settle=_one_each)

    def infer(self) -> list[TensorSpec]:
        """The scaled shape."""
        tensor = self.inputs[0]
        self.floating(tensor)
        sizes = tuple(math.floor(n * scale) for n, scale in zip(tensor.shape, self.scales, strict=True))
        return [TensorSpec(sizes, tensor.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Per axis that changes, the taps' elements times their weights, added up; in float32 for fp16."""
        source, out = inputs[0], outputs[0]
        dtype = working_dtype(out.dtype)
        chosen = [(i, *self.axis_taps(out.shape[i], n)) for i, n in enumerate(source.shape) if i and n != out.shape[i]]
        shaped = [w.astype(dtype).reshape(*w.shape, *[1] * (out.ndim - axis - 1)) for axis, _, w in chosen]

        def run() -> None:
            found = source.astype(dtype)
            for (axis, positions, _), weights in zip(chosen, shaped, strict=True):
                found = sum(found.take(p, axis) * w for p, w in zip(positions, weights, strict=True))
            half.copy(out, found)()

        return run

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Every tap gets its share of the gradient."""
        named = {name: value for name, value in self.attributes.items() if name != "scales"}
        return [builder.op(ResizeGrad, [grad], shape=self.inputs[0].shape, **named)]

    def work(self) -> list[Work]:
        """See :meth:`interpolation_work`."""
        return self.interpolation_work(self.inputs[0], self.outputs[0])


class ResizeGrad(_Resized):
    """The gradient of the operand of ``shape`` of a :class:`Resize`: what its taps gave, added up."""

    type = "ResizeGrad"

    shape = Attribute(INTEGERS)

    def infer(self) -> list[TensorSpec]:
        """The given shape."""
        self.floating(self.inputs[0])
        return [TensorSpec(self.shape, self.inputs[0].dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Per axis that changed, a product with the matrix of its weights; in float32 for fp16."""
        source, out = inputs[0], outputs[0]
        dtype = working_dtype(out.dtype)
        changed = [i for i, n in enumerate(source.shape) if n != out.shape[i]]
        matrices = [self._matrix(source.shape[i], out.shape[i]).astype(dtype) for i in changed]

        def run() -> None:
            found = source.astype(dtype)
            for axis, matrix in zip(changed, matrices, strict=True):
                found = np.moveaxis(np.moveaxis(found, axis, -1) @ matrix, -1, axis)
            half.copy(out, np.ascontiguousarray(found))()

        return run

    def _matrix(self, new: int, old: int) -> np.ndarray:
        """Weights ``(new, old)``."""
        positions, weights = self.axis_taps(new, old)
        matrix = np.zeros((new, old))
        np.add.at(matrix, (np.broadcast_to(np.arange(new), positions.shape), positions), weights)
        return matrix

    def work(self) -> list[Work]:
        """As forward (PopART builds it of the same operations)."""
        return self.interpolation_work(self.inputs[0], self.outputs[0])
