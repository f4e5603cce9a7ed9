"""The median over axes.

Upstream: PopART ``willow/src/op/reducemedian.cpp`` and ``popx/op/reducemedianx.cpp``, which finds it by a sort. Of an
even number of elements it is the lower of the two in the middle, as in ``torch.median``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ipuperf.ir import BOOL, INT32, DTypeError, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, INTEGERS, Attribute, one_or_many, optional

from .. import shape, vertices
from ..axes import axes_of
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..work import Work
from .gather import multi_update_add
from .topk import bitonic_network


def lines(array: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """``array (R, *shape)`` with ``axes`` of the shape as one last axis."""
    reduced = [axis + 1 for axis in axes]
    other_axes = [i for i in range(array.ndim) if i not in reduced]
    count = math.prod(array.shape[i] for i in reduced)
    rows: np.ndarray = array.transpose((*other_axes, *reduced)).reshape((*(array.shape[i] for i in other_axes), count))
    return rows


class ReduceMedian(Op):
    """Median over ``axes`` (None: all), and its int32 position in the reduced axes taken as one. Of an even number
    of elements it is the lower of the two in the middle, of equal elements the first."""

    axes = Attribute(optional(one_or_many(INTEGER)), None, settle=axes_of)
    keepdims = Attribute(FLAG, False)

    @property
    def count(self) -> int:
        """How many elements go into one result."""
        return math.prod(self.inputs[0].shape[axis] for axis in self.axes)

    def infer(self) -> list[TensorSpec]:
        """The reduced shape, twice."""
        tensor, axes = self.inputs[0], self.axes
        if tensor.dtype == BOOL:
            raise DTypeError(f"{self.where()}: {tensor.id!r} is bool; a number type is needed")
        self.require(self.count > 0, f"axes {axes} of {tensor.shape} have no elements, so there is no median")
        sizes = [1 if i in axes else n for i, n in enumerate(tensor.shape) if self.keepdims or i not in axes]
        return [TensorSpec(tuple(sizes), tensor.dtype), TensorSpec(tuple(sizes), INT32)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """A stable sort of positions."""
        source, (values, positions) = inputs[0], outputs
        # Rounding down takes the lower of the two in the middle.
        axes, middle = self.axes, (self.count - 1) // 2

        def run() -> None:
            flat = lines(source, axes)
            # A stable sort keeps equal elements in order, so the first of them is found.
            chosen = flat.argsort(-1, kind="stable")[..., middle : middle + 1]
            np.copyto(positions, chosen.reshape(positions.shape), casting="same_kind")
            np.copyto(values, np.take_along_axis(flat, chosen, -1).reshape(values.shape))

        return run

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient at the median's position, 0 elsewhere."""
        inputs = [grad, builder.forward(self.outputs[1])]
        return [builder.op(ReduceMedianGrad, inputs, axes=self.axes, shape=self.inputs[0].shape)]

    def work(self) -> list[Work]:
        """Bring the reduced axes behind each other, then sort the first half of them by a bitonic network."""
        source = self.inputs[0].spec
        if not source.elements:
            return []
        # Half of the elements have to be in order to find the one in the middle.
        rows = source.elements // self.count
        network = bitonic_network(source.dtype, rows, self.count, (self.count - 1) // 2 + 1, True)
        return [*shape.copy_work(self.inputs[0]), *network]


class ReduceMedianGrad(Op):
    """``(gradient, positions) -> zeros of shape with the gradient at the positions`` in ``axes`` taken as one."""

    axes = Attribute(INTEGERS)
    shape = Attribute(INTEGERS)

    def infer(self) -> list[TensorSpec]:
        """The given shape."""
        self.floating(self.inputs[0])
        return [TensorSpec(self.shape, self.inputs[0].dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Write to lines of a copy, then bring the copy into the order of the result."""
        (grad, positions), out, axes = inputs, outputs[0], self.axes
        # The first axis is that of the replicas, hence i - 1.
        order = [i for i in range(out.ndim) if i - 1 not in axes] + [axis + 1 for axis in axes]
        target = out.transpose(order)
        other_lengths = target.shape[: out.ndim - len(axes)]

        def run() -> None:
            flat = np.zeros((*other_lengths, math.prod(target.shape[len(other_lengths) :])), out.dtype)
            np.put_along_axis(
                flat, positions.reshape(*other_lengths, 1).astype(np.intp), grad.reshape(*other_lengths, 1), -1
            )
            np.copyto(target, flat.reshape(target.shape))

        return run

    def work(self) -> list[Work]:
        """Zeros, then an update of single elements (PopART popx/op/reducemedianx.cpp); for its cycles see
        :func:`ipuperf.ops.selection.gather.multi_update_add`."""
        grad, out = self.inputs[0].spec, self.outputs[0].spec
        if not out.elements:
            return []
        return [vertices.fill(out.dtype, out.elements), multi_update_add(out.dtype, grad.elements, out.elements, 1)]
