"""Interpolation to another size, and its gradient.

Upstream: PopART ``willow/src/op/resize.cpp`` (ONNX ``Resize``) and ``willow/src/popx/op/resizex.cpp``. As there,
places and lengths are computed in float32 from the given scale, not from the ratio of the lengths.

Axes are resized one after the other, each by a few *taps*. For every element of the result, a tap says which element
of the operand it uses and with what weight. Taps beyond the ends use the elements at the ends. The gradient is that of
the taps; PopART's assumes nearest neighbours rounded down, whatever the mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import INTEGERS, NUMBER, Attribute, choice, many, optional

from .. import half, shape, vertices
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import working_dtype
from ..work import Work

MODES = ("nearest", "linear", "cubic")

NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}

#: Where an element of the result lies in the operand. Arguments: its position, a function that divides by the scale,
#: the scaled length before it is cut to a whole number, the length of the operand.
COORDINATES: dict[str, Callable[[np.ndarray, Callable[[np.ndarray], np.ndarray], float, int], np.ndarray]] = {
    "half_pixel": lambda x, unscaled, new, old: unscaled(x + 0.5) - 0.5,
    "pytorch_half_pixel": lambda x, unscaled, new, old: unscaled(x + 0.5) - 0.5 if new > 1 else 0 * x,
    "align_corners": lambda x, unscaled, new, old: x * (old - 1) / (new - 1) if new != 1 else 0 * x,
    "asymmetric": lambda x, unscaled, new, old: unscaled(x),
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
def taps(
    new: int, old: int, scale: float | None, mode: str, nearest: str, coordinates: str
) -> tuple[np.ndarray, np.ndarray]:
    """(positions, weights), each ``(taps, new)``, for one axis. Without a scale the ratio of the lengths is used."""
    if scale is None:
        places = COORDINATES[coordinates](np.arange(new, dtype=np.float64), lambda x: x * old / new, new, old)
    else:
        # PopART computes places in float32; in float64 some neighbours would be others.
        factor = np.float32(scale)
        places = COORDINATES[coordinates](np.arange(new, dtype=np.float32), lambda x: x / factor, old * factor, old)
        places = places.astype(np.float64)
    if mode == "nearest":
        positions, weights = NEAREST[nearest](places)[np.newaxis], np.ones((1, new))
    else:
        reach = 1 if mode == "linear" else 2
        # Linear interpolation has two taps around the place, cubic interpolation four.
        positions = np.floor(places) + np.arange(1 - reach, 1 + reach)[:, np.newaxis]
        weights = 1 - np.abs(places - positions) if mode == "linear" else _cubic(places - positions)
    return np.clip(positions, 0, old - 1).astype(np.intp), weights


def _one_each(op: Op, scales: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """A scale for each axis, all above 0; None stands for the ratio of the lengths."""
    rank = len(op.inputs[0].shape)
    op.require(
        scales is None or (len(scales) == rank and all(scale > 0 for scale in scales)),
        f"scales {scales}; {rank} numbers above 0 are needed, one per axis of {op.inputs[0].shape}",
    )
    return scales


class _Resized(Op):
    """Base: the interpolation of axes."""

    scales = Attribute(optional(many(NUMBER)), None, settle=_one_each)
    mode = Attribute(choice(*MODES), "nearest")
    nearest_mode = Attribute(choice(*NEAREST), "round_prefer_floor")
    coordinate_transformation_mode = Attribute(choice(*COORDINATES), "half_pixel")

    def shapes(self) -> tuple[Sequence[int], Sequence[int]]:
        """Shapes of the operand and of the result of the :class:`Resize`."""
        return self.inputs[0].shape, self.outputs[0].shape

    def axis_taps(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Number and :func:`taps` of each axis that changes. A scale may change the values of an axis that keeps
        its length."""
        named = (self.mode, self.nearest_mode, self.coordinate_transformation_mode)
        source, result = self.shapes()
        return [
            (axis, *taps(new, old, scale, *named))
            for axis, (old, new, scale) in enumerate(
                zip(source, result, self.scales or [None] * len(source), strict=True)
            )
            if (new != old if scale is None else scale != 1)
        ]

    def work(self) -> list[Work]:
        """A copy, and with several taps a product and a sum for each tap and each axis that changes.

        PopART builds this from slices and element-wise maps whose number is not published, hence low confidence. The
        gradient consists of the same operations.
        """
        source, result = self.inputs[0], self.outputs[0]
        spec = max(source.spec, result.spec, key=lambda spec: spec.elements)
        # The nearest neighbour is only moved, not computed with.
        if self.mode == "nearest" or not spec.elements:
            return shape.copy_work(result)
        count = {"linear": 2, "cubic": 4}[self.mode]
        passes = [
            vertices.binary("MULTIPLY", spec.dtype, spec.elements),
            vertices.binary("ADD", spec.dtype, spec.elements, in_place=True),
        ] * (count * len(self.axis_taps()))
        return [*shape.copy_work(result), *(replace(vertex, low_confidence=True) for vertex in passes)]


class Resize(_Resized):
    """The operand interpolated by ``mode`` (``nearest``, ``linear``, ``cubic``). Each axis becomes ``floor(length *
    scale)`` long, or as long as ``sizes`` says."""

    sizes = Attribute(optional(INTEGERS), None)

    def infer(self) -> list[TensorSpec]:
        """The scaled shape."""
        tensor = self.inputs[0]
        self.floating(tensor)
        self.require((self.sizes is None) != (self.scales is None), "either scales or sizes are needed")
        sizes = self.sizes
        if sizes is None:
            scaled = zip(tensor.shape, self.scales or (), strict=True)
            # In float32, as PopART has it: the product may be just below a whole number.
            sizes = tuple(math.floor(n * np.float32(scale)) for n, scale in scaled)
        self.require(len(sizes) == len(tensor.shape), f"sizes {sizes}; one per axis of {tensor.shape} is needed")
        return [TensorSpec(sizes, tensor.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """For each axis that changes, add up the taps' elements times their weights; fp16 is computed in float32."""
        source, out = inputs[0], outputs[0]
        dtype = working_dtype(out.dtype)
        chosen = self.axis_taps()
        shaped = [w.astype(dtype).reshape(*w.shape, *[1] * (out.ndim - axis - 2)) for axis, _, w in chosen]

        def run() -> None:
            result = source.astype(dtype)
            for (axis, positions, _), weights in zip(chosen, shaped, strict=True):
                result = sum(result.take(p, axis + 1) * w for p, w in zip(positions, weights, strict=True))
            half.copy(out, result)()

        return run

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Every tap gets its share of the gradient."""
        named = {name: value for name, value in self.attributes.items() if name != "sizes"}
        return [builder.op(ResizeGrad, [grad], shape=self.inputs[0].shape, **named)]


class ResizeGrad(_Resized):
    """The gradient of the operand (of ``shape``) of a :class:`Resize`: the gradients of all taps, added up."""

    shape = Attribute(INTEGERS)

    def infer(self) -> list[TensorSpec]:
        """The given shape."""
        self.floating(self.inputs[0])
        return [TensorSpec(self.shape, self.inputs[0].dtype)]

    def shapes(self) -> tuple[Sequence[int], Sequence[int]]:
        """Shapes of the forward op: its operand is the result here."""
        return self.outputs[0].shape, self.inputs[0].shape

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """For each axis that changed, a product with the matrix of its weights; fp16 is computed in float32."""
        source, out = inputs[0], outputs[0]
        dtype = working_dtype(out.dtype)
        changed = [
            (axis + 1, _matrix(positions, weights, out.shape[axis + 1]).astype(dtype))
            for axis, positions, weights in self.axis_taps()
        ]

        def run() -> None:
            result = source.astype(dtype)
            for axis, matrix in changed:
                result = np.moveaxis(np.moveaxis(result, axis, -1) @ matrix, -1, axis)
            half.copy(out, np.ascontiguousarray(result))()

        return run


def _matrix(positions: np.ndarray, weights: np.ndarray, old: int) -> np.ndarray:
    """The weights of taps as a matrix ``(new, old)``."""
    new = positions.shape[1]
    matrix = np.zeros((new, old))
    # Taps at the ends may use one element twice, so their weights are added.
    np.add.at(matrix, (np.broadcast_to(np.arange(new), positions.shape), positions), weights)
    return matrix
