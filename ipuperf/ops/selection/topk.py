"""The largest elements along the last axis.

Upstream: PopART ``willow/src/op/topk.cpp``, which sorts with a bitonic network.
"""

from __future__ import annotations

import numpy as np

from ipuperf.ir import INT32, DType, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, NUMBER, Attribute, optional

from .. import vertices
from ..axes import axis_of
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..work import Vertices, Work
from .gather import plan_share
from .scatter import ScatterReduce


def compare_and_swap(dtype: DType, elements: int) -> Vertices:
    """One pass of a bitonic network over pairs of keys with their indices (popops BitonicTopK).

    No estimate was found in public PopLibs. Assumed is a loop of 10 cycles for a pair (two loads of key and index
    each, comparison, selection, two stores of each) and the overhead of an in-place binary vertex, with low
    confidence.
    """
    cycles = vertices.tile_cycles(lambda m, chip: 58 + 10 * vertices.ceil_div(m, 2), 11)
    name = f"popops::CompareAndSwapAtDistance<{vertices.poplar_type(dtype)},unsigned int>"
    return Vertices(name, elements, cycles, elements // 2, low_confidence=True)


def bitonic_network(dtype: DType, lines: int, length: int, k: int, in_order: bool) -> list[Work]:
    """Passes that find the ``k`` best of each of ``lines`` lines of ``length`` keys.

    Sequences of K keys (k rounded up to a power of two) are sorted, then merged two by two; the better half of each
    pair goes on. With ``in_order`` the remaining keys are sorted at the end.
    """
    # Sorting 2^n keys takes n (n + 1) / 2 passes.
    steps, candidates = (k - 1).bit_length(), length
    works: list[Work] = [compare_and_swap(dtype, lines * candidates) for _ in range(steps * (steps + 1) // 2)]
    # Each round compares pairs of sorted sequences and keeps the better halves.
    while candidates > 1 << steps:
        works.append(compare_and_swap(dtype, lines * candidates))
        candidates = max(-(-candidates // 2), 1 << steps)
        if candidates > 1 << steps or in_order:
            works += [compare_and_swap(dtype, lines * candidates) for _ in range(steps)]
    return works


class TopK(Op):
    """Values and int32 positions of the ``k`` largest (``largest`` false: smallest) elements on ``axis`` (or the
    last).

    They are always in order: ``sorted`` false leaves the order open and only makes the device faster. Of equal
    elements the first comes first. ``available_memory_proportion`` is for the update with which the gradient is
    computed.
    """

    k = Attribute(INTEGER)
    axis = Attribute(INTEGER, -1, settle=axis_of)
    largest = Attribute(FLAG, True)
    sorted = Attribute(FLAG, True)
    available_memory_proportion = Attribute(optional(NUMBER), None, settle=plan_share)

    def infer(self) -> list[TensorSpec]:
        """The operand's shape with ``k`` on the axis, twice."""
        tensor, axis, k = self.inputs[0], self.axis, self.k
        length = tensor.shape[axis]
        self.require(1 <= k <= length, f"k={k}; allowed are 1 to {length}, the length of axis {axis}")
        shape_ = (*tensor.shape[:axis], k, *tensor.shape[axis + 1 :])
        return [TensorSpec(shape_, tensor.dtype), TensorSpec(shape_, INT32)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """A stable sort of positions. For the largest it runs from the end, so that the first of equal elements
        stays first."""
        source, (values, positions) = inputs[0], outputs
        axis, k = self.axis + 1, self.k
        leading = tuple([slice(None)] * axis + [slice(k)])
        length, largest = source.shape[axis], self.largest

        def run() -> None:
            if largest:
                order = length - 1 - np.flip(np.flip(source, axis).argsort(axis, kind="stable"), axis)
            else:
                order = source.argsort(axis, kind="stable")
            chosen = order[leading]
            np.copyto(positions, chosen, casting="same_kind")
            np.copyto(values, np.take_along_axis(source, chosen, axis))

        return run

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient of the values at their positions, 0 elsewhere."""
        index, axis = builder.forward(self.outputs[1]), self.axis
        # Each position occurs once, so the sum at it is the gradient itself.
        size, share = self.inputs[0].shape[axis], self.available_memory_proportion
        inputs = [grad, index]
        return [builder.op(ScatterReduce, inputs, axis=axis, axis_size=size, available_memory_proportion=share)]

    def work(self) -> list[Work]:
        """A bitonic network. For the smallest, keys are negated before and after it (PopART popx/op/topkx.cpp)."""
        source, out = self.inputs[0].spec, self.outputs[0].spec
        if not source.elements:
            return []
        length = source.shape[self.axis]
        works = bitonic_network(source.dtype, source.elements // length, length, self.k, self.sorted)
        if self.largest:
            return works
        negate_operand, negate_result = (
            vertices.unary("NEGATE", source.dtype, n) for n in (source.elements, out.elements)
        )
        return [negate_operand, *works, negate_result]
