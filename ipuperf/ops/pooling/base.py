"""The base of ops that pool over windows of the spatial axes of ``(N, C, *spatial)``, and their cost.

Maximum: :mod:`.max_pooling`; average: :mod:`.average_pooling`. fp16 is widened to float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ipuperf.ir import Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, Attribute

from .. import vertices
from ..base import Environment, Kernel, Op
from ..binding import contiguous, result_buffer, scalar, sequence
from ..norms.shared import image_sums
from ..products.convolution import SPATIAL, per_axis, spatial, spatial_axes, spatial_padding
from ..work import TileCycles, Vertices, Work
from .windows import AxisPass, Windows, flat, regular_windows, temporaries


class Pooling(Op, abstract=True):
    """Base of the ops over windows.

    Class attributes:
        vertex: PopLibs' vertex.
        kind: which of the formulas of :func:`pooling_cycles` it has.
        reduction: PopLibs' reduction that does the same where one window covers everything; empty: there is none.
        visit_flops, element_flops: operations for each element of a window, and for each result.
        backward: the result has the shape of the input of the windows.
    """

    vertex: ClassVar[str] = "SumPooling"
    kind: ClassVar[str] = "sum"
    reduction: ClassVar[str] = "ADD"
    visit_flops: ClassVar[int] = 1
    element_flops: ClassVar[int] = 0
    backward: ClassVar[bool] = False

    def infer(self) -> list[TensorSpec]:
        """``(N, C, *windows)``."""
        tensor = self.operand()
        return [TensorSpec(self.pooled(tensor), tensor.dtype)]

    def operand(self) -> Tensor:
        """Check the first operand."""
        tensor = self.inputs[0]
        self.floating(tensor)
        self.require(len(tensor.shape) >= 3, f"{tensor.shape} needs at least 3 axes: (N, C, *spatial)")
        return tensor

    def windows_of(self, size: Sequence[int]) -> list[Windows]:
        """Windows over an input of spatial shape ``size``."""
        raise NotImplementedError

    def windows(self) -> list[Windows]:
        """Windows of this op, one for each spatial axis."""
        return self.windows_of(self.inputs[0].shape[2:])

    def pooled(self, tensor: Tensor) -> tuple[int, ...]:
        """Shape of the result over ``tensor``."""
        return (*tensor.shape[:2], *(w.outputs for w in self.windows_of(tensor.shape[2:])))

    def stages(self) -> list[AxisPass]:
        """The stages that change something, in order of the axes."""
        return [AxisPass(axis + 1, w) for axis, w in enumerate(self.windows()) if not w.identity]

    def whole(self) -> bool:
        """Whether there is one window that covers the whole field without padding."""
        return all(w.outputs == 1 and w.full and w.visits == w.size for w in self.windows())

    def work(self) -> list[Work]:
        """One compute set of pooling vertices, or a reduction where one window covers everything
        (``lib/popnn/Pooling.cpp`` substPoolingWithReduction)."""
        spec = self.outputs[0].spec
        if self.reduction and self.whole():
            return [image_sums(self.reduction, self.inputs[0].spec)]
        vertex = f"popnn::{self.vertex}<{vertices.poplar_type(spec.dtype)}>"
        cycles = pooling_cycles(self.kind, self.windows(), spec, backward=self.backward)
        flops = self.visit_flops * self.visits(spec) + self.element_flops * spec.elements
        return [Vertices(vertex, spec.elements, cycles, flops, low_confidence=True, operands=self.reads())]

    def reads(self) -> tuple[int, ...]:
        """Elements of each input that the vertices read (:attr:`Vertices.operands`).

        A tile holds rows along the last axis, as in :func:`pooling_cycles`: neighbours in a row share what they read,
        rows do not. (The third input is the ``x`` of :class:`MaxPoolGrad`, which lies like the result.)
        """
        windows = self.windows()
        # Rows do not share what they read, so each position
        # of the window in another axis counts again.
        rows = math.prod(self.inputs[0].shape[:2]) * math.prod(w.visits for w in windows[:-1])
        read = rows * (windows[-1].outputs if self.backward else windows[-1].covered)
        return tuple(self.outputs[0].spec.elements if index == 2 else read for index in range(len(self.inputs)))

    def visits(self, spec: TensorSpec) -> int:
        """Pairs of a window and an element of it, over all channels and samples of ``spec``."""
        return spec.shape[0] * spec.shape[1] * math.prod(w.visits for w in self.windows())


def _strides(op: RegularPooling, value: Any) -> tuple[int, ...]:
    """Distances between windows; where none are given, the windows' sizes."""
    return per_axis(op, "strides", op.kernel_size if value is None else value, spatial_axes(op))


class RegularPooling(Pooling, abstract=True):
    """Base of the ops over windows of one size.

    Attributes:
        kernel_size: elements of a window along each spatial axis (one integer stands for all axes).
        strides: between windows (default: ``kernel_size``).
        padding: (before, after) per spatial axis (default none); at most half of what the window spans.
        dilation: distance of the elements of a window (maximum only; default 1).
        ceil_mode: also windows that reach past the end, if they begin before it (default False).
        count_include_pad: averages count padding as zeros (average only; default False as in ONNX, PyTorch has True).
    """

    dilated: ClassVar[bool] = False

    kernel_size = spatial("kernel_size")
    strides = Attribute(SPATIAL, None, settle=_strides)
    padding = spatial_padding()
    dilation = spatial("dilation", 1)
    ceil_mode = Attribute(FLAG, False)
    count_include_pad = Attribute(FLAG, False)

    def operand(self) -> Tensor:
        """Check the first operand and the geometry of the windows."""
        tensor = super().operand()
        self.require(self.dilated or set(self.dilation) == {1}, f"dilation={self.dilation}; an average has no dilation")
        for pads, k, d in zip(self.padding, self.kernel_size, self.dilation, strict=True):
            # More padding could leave a window without any element of the input.
            half = (d * (k - 1) + 1) // 2
            self.require(max(pads) <= half, f"padding={pads}; at most {half}, half of what a window of {k} spans")
        return tensor

    def windows_of(self, size: Sequence[int]) -> list[Windows]:
        """Windows over an input of spatial shape ``size``."""
        return [self._windows_on(axis, n) for axis, n in enumerate(size)]

    def _windows_on(self, axis: int, n: int) -> Windows:
        kernel, stride, dilation = self.kernel_size[axis], self.strides[axis], self.dilation[axis]
        pad_before, pad_after = self.padding[axis]
        spread = dilation * (kernel - 1) + 1
        self.require(
            spread <= n + pad_before + pad_after,
            f"a window of {kernel} with dilation {dilation} spans {spread} elements, more than the padded input's "
            f"{n} + {pad_before} + {pad_after} along spatial axis {axis}",
        )
        room = n + pad_before + pad_after - spread
        outputs = room // stride + 1
        if self.ceil_mode:
            outputs = -(-room // stride) + 1
            # A window must begin before the end of the input, as in PyTorch.
            outputs -= (outputs - 1) * stride >= n + pad_before
        return regular_windows(n, outputs, kernel, stride, (pad_before, pad_after), dilation, self.count_include_pad)

    def options(self) -> dict[str, Any]:
        """The attributes, for a gradient op."""
        return {name: self.attributes[name] for name in RegularPooling.declared}


def counts_of(windows: Sequence[Windows], dtype: np.dtype) -> np.ndarray:
    """The divisor of sums: a number, or an array of the spatial shape."""
    # Without padding at the border all windows have the same count.
    if all(len(set(w.counts)) == 1 for w in windows):
        return scalar(math.prod(w.counts[0] for w in windows), dtype)
    result = np.ones((), dtype)
    for w in windows:
        result = np.multiply.outer(result, np.asarray(w.counts, dtype))
    return result


def reduction_kernel(
    stages: Sequence[AxisPass],
    ufunc: np.ufunc,
    identity: float,
    source: np.ndarray,
    target: np.ndarray,
    env: Environment,
    averaged: Sequence[Windows],
) -> Kernel:
    """Reduce axis after axis; then divide by the counts of the windows ``averaged``, if any."""
    x, steps = contiguous(source, env, slot=0)
    out, store_steps = result_buffer(target, env, slot=1)
    levels = [flat(x), *temporaries(flat(x).shape, stages, x.dtype, env, 2), flat(out)]
    # Without a stage that changes something the result is the operand.
    steps = [*steps] if stages else [*steps, partial(np.copyto, out, x)]
    for index, stage in enumerate(stages):
        steps += stage.reduce(ufunc, identity, levels[index], levels[index + 1])
    if averaged:
        steps.append(partial(np.divide, flat(out), counts_of(averaged, out.dtype), flat(out)))
    return sequence(*steps, *store_steps)


# -- cost --------------------------------------------------------------------------------------------------------------

#: Innermost loop over the n vectors of a row, ``fixed + rate * (n - 1)`` thread cycles.
INNER_LOOP = {"max": (4, 3), "sum": (5, 3), "max_grad": (7, 5)}


def pooling_cycles(kind: str, windows: Sequence[Windows], result: TensorSpec, *, backward: bool) -> TileCycles:
    """PopLibs' pooling vertices (lib/popnn/PerformanceEstimation.hpp getPoolingCycles, ``docs/reference/cycles.md``
    6.3).

    A worker starts up (45 cycles, 46 for sums, 55 for the gradient of a maximum), clears its vectors of the result (1
    cycle each) and walks over its rows (15 cycles each). For each row and position of the window there is a work item
    of ``28 + inner loop`` cycles over the vectors of the row. The tile takes W times that plus 13.

    The plan chooses which rows and channels a tile holds (PoolPlan.cpp). Here its elements are taken to be rows of the
    result with one vector of channels, shared evenly by the workers, hence low confidence. Positions and row lengths
    of a gradient are averages over the elements of the input.
    """
    fixed, rate = INNER_LOOP[kind]
    worker = {"max": 45, "sum": 46, "max_grad": 55}[kind]
    inner_windows = windows[-1]
    row = inner_windows.size if backward else inner_windows.outputs
    per_row = math.prod(-(-w.visits // (w.size if backward else w.outputs)) for w in windows[:-1])
    # Averages are rounded up, as vertices cannot do parts of a position.
    positions = max(1, per_row * -(-inner_windows.visits // inner_windows.outputs))
    dtype = result.dtype

    def cycles(elements: np.ndarray, chip: Any) -> np.ndarray:
        count = np.asarray(elements, dtype=np.int64)
        vectors = vertices.ceil_div(count, vertices.vector_width(dtype, chip))
        share = np.maximum(1, vertices.ceil_div(vectors, chip.workers))
        length = np.minimum(share, row)
        rows = vertices.ceil_div(share, length)
        used = np.maximum(1, vertices.ceil_div(length * inner_windows.outputs, row)) if backward else length
        item_cycles = 28 + fixed + rate * (used - 1)
        total = chip.workers * (worker + share + rows * (15 + positions * item_cycles)) + 13
        return np.where(count > 0, total, 0).astype(np.int64)

    return cycles
