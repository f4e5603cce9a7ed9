"""Pooling over windows of the spatial axes of ``(N, C, *spatial)``: maximum and average, and their gradients.

A window is a product of ranges, so that both reductions are done one axis after the other: a stage for each axis walks
over the positions in the window, each a pair of equally long slices (:class:`Windows`). fp16 is widened to float32 and
rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, Attribute

from . import vertices
from .base import Environment, Kernel, Op
from .binding import Step, contiguous, given, result_buffer, scalar, sequence
from .convolution import SPATIAL, per_axis, spatial, spatial_axes, spatial_padding
from .work import TileCycles, Vertices, Work

#: (outputs, inputs): which results take which elements at one position of the window.
Pair = tuple[slice, slice]


# -- windows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Windows:
    """The windows along one axis.

    Attributes:
        size, outputs: elements and windows.
        pairs: one for each position in the window, in order.
        counts: elements that a window's average is taken over.
        full: every position exists in every window.
        disjoint: no element lies in two windows.
    """

    size: int
    outputs: int
    pairs: tuple[Pair, ...]
    counts: tuple[int, ...]
    full: bool
    disjoint: bool

    @property
    def identity(self) -> bool:
        """Each element is a window of its own."""
        return self.full and len(self.pairs) == 1 and self.size == self.outputs

    @property
    def visits(self) -> int:
        """Pairs of a window and an element of it."""
        return sum(o.stop - o.start for o, _ in self.pairs)

    @property
    def covered(self) -> int:
        """Elements that lie in a window."""
        return len(
            {at for _, elements in self.pairs for at in range(elements.start, elements.stop, elements.step or 1)}
        )


def regular_windows(
    size: int,
    outputs: int,
    kernel: int,
    stride: int,
    padding: tuple[int, int],
    dilation: int = 1,
    include_padding: bool = False,
) -> Windows:
    """Windows of ``kernel`` elements, ``dilation`` apart, every ``stride`` elements of the padded axis."""
    before, after = padding
    pairs = []
    for position in range(kernel):
        offset = position * dilation - before
        first = max(0, -(offset // stride))
        last = min(outputs, (size - 1 - offset) // stride + 1)
        if first < last:
            start = first * stride + offset
            pairs.append((slice(first, last), slice(start, start + (last - first - 1) * stride + 1, stride)))
    low, high = (-before, size + after) if include_padding else (0, size)
    starts = [i * stride - before for i in range(outputs)]
    counts = tuple(sum(low <= s + j * dilation < high for j in range(kernel)) for s in starts)
    full = len(pairs) == kernel and all((o.start, o.stop) == (0, outputs) for o, _ in pairs)
    return Windows(size, outputs, tuple(pairs), counts, full, dilation == 1 and kernel <= stride)


def adaptive_windows(size: int, outputs: int) -> Windows:
    """PyTorch's windows from ``floor(i size / outputs)`` to ``ceil((i + 1) size / outputs)``."""
    if size % outputs == 0:
        return regular_windows(size, outputs, size // outputs, size // outputs, (0, 0))
    spans = [(i * size // outputs, -(-(i + 1) * size // outputs)) for i in range(outputs)]
    pairs = [(slice(i, i + 1), slice(at, at + 1)) for i, (start, stop) in enumerate(spans) for at in range(start, stop)]
    return Windows(size, outputs, tuple(pairs), tuple(b - a for a, b in spans), False, False)


@dataclass(frozen=True)
class AxisPass:
    """The reduction of one axis of arrays ``(L, *spatial)``; ``axis`` counts from the array's first axis."""

    axis: int
    windows: Windows

    def views(self, pair: Pair, coarse: np.ndarray, fine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The results and the elements of one position."""
        lead = (slice(None),) * self.axis
        outputs: tuple[slice, ...] = (*lead, pair[0])
        inputs: tuple[slice, ...] = (*lead, pair[1])
        return coarse[outputs], fine[inputs]

    def shape(self, fine: Sequence[int]) -> tuple[int, ...]:
        """Shape after the stage."""
        return (*fine[: self.axis], self.windows.outputs, *fine[self.axis + 1 :])

    def reduce(self, ufunc: np.ufunc, identity: float, fine: np.ndarray, coarse: np.ndarray) -> list[Step]:
        """Steps for ``coarse[i] = ufunc over the window i of fine``."""
        found = [self.views(pair, coarse, fine) for pair in self.windows.pairs]
        if not self.windows.full:
            return [partial(coarse.fill, identity), *(partial(ufunc, o, i, out=o) for o, i in found)]
        if len(found) == 1:
            return [partial(np.copyto, *found[0])]
        first = partial(ufunc, found[0][1], found[1][1], out=coarse)
        return [first, *(partial(ufunc, o, i, out=o) for o, i in found[2:])]

    def spread(self, coarse: np.ndarray, fine: np.ndarray) -> list[Step]:
        """The transpose of a sum: steps for ``fine[j] = sum of coarse over the windows that j lies in``."""
        found = [self.views(pair, coarse, fine) for pair in self.windows.pairs]
        clear = [] if self.covers else [partial(fine.fill, 0)]
        if self.windows.disjoint:
            return [*clear, *(partial(np.copyto, i, o) for o, i in found)]
        return [*clear, *(partial(np.add, i, o, out=i) for o, i in found)]

    @property
    def covers(self) -> bool:
        """Every element lies in exactly one window."""
        return self.windows.disjoint and self.windows.visits == self.windows.size


def temporaries(
    shape: Sequence[int], stages: Sequence[AxisPass], dtype: np.dtype, env: Environment, slot: int
) -> list[np.ndarray]:
    """Scratch arrays between the stages, from slot ``slot`` on."""
    arrays = []
    for index, stage in enumerate(stages[:-1]):
        shape = stage.shape(shape)
        arrays.append(env.scratch(shape, dtype, slot=slot + index))
    return arrays


# -- base --------------------------------------------------------------------------------------------------------------


class _Pooling(Op):
    """Base of the ops over windows."""

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
        """The stages that do something, in order of the axes."""
        return [AxisPass(axis + 1, w) for axis, w in enumerate(self.windows()) if not w.identity]

    def vertex_work(self, vertex: str, spec: TensorSpec, kind: str, flops: int) -> list[Work]:
        """One compute set of pooling vertices that make ``spec``."""
        cycles = pooling_cycles(kind, self.windows(), spec, backward=self.backward)
        return [Vertices(vertex, spec.elements, cycles, flops, low_confidence=True, operands=self.reads())]

    def reads(self) -> tuple[int, ...]:
        """Elements of each input that the vertices read (:attr:`Vertices.operands`).

        A tile holds rows along the last axis, as in :func:`pooling_cycles`: neighbours in a row share what they read,
        rows do not. (The third input is the ``x`` of :class:`MaxPoolGrad`, which lies like the result.)
        """
        windows = self.windows()
        rows = math.prod(self.inputs[0].shape[:2]) * math.prod(w.visits for w in windows[:-1])
        read = rows * (windows[-1].outputs if self.backward else windows[-1].covered)
        return tuple(self.outputs[0].spec.elements if index == 2 else read for index in range(len(self.inputs)))

    #: The result has the shape of the input of the windows.
    backward: ClassVar[bool] = False

    def visits(self, spec: TensorSpec) -> int:
        """Pairs of a window and an element of it, over all channels and samples of ``spec``."""
        return spec.shape[0] * spec.shape[1] * math.prod(w.visits for w in self.windows())


def _strides(op: _Regular, value: Any) -> tuple[int, ...]:
    """Distances of windows, the windows' sizes where none are given."""
    return per_axis(op, "strides", op.kernel_size if value is None else value, spatial_axes(op))


class _Regular(_Pooling):
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
        """Check the first operand and how the windows lie."""
        tensor = super().operand()
        self.require(self.dilated or set(self.dilation) == {1}, f"dilation={self.dilation}; an average has no dilation")
        for pads, k, d in zip(self.padding, self.kernel_size, self.dilation, strict=True):
            half = (d * (k - 1) + 1) // 2
            self.require(max(pads) <= half, f"padding={pads}; at most {half}, half of what a window of {k} spans")
        return tensor

    def windows_of(self, size: Sequence[int]) -> list[Windows]:
        """Windows over an input of spatial shape ``size``."""
        return [self._windows_on(axis, n) for axis, n in enumerate(size)]

    def _windows_on(self, axis: int, n: int) -> Windows:
        kernel, stride, dilation = self.kernel_size[axis], self.strides[axis], self.dilation[axis]
        before, after = self.padding[axis]
        spread = dilation * (kernel - 1) + 1
        self.require(
            spread <= n + before + after,
            f"a window of {kernel} with dilation {dilation} spans {spread} elements, more than the padded input's "
            f"{n} + {before} + {after} along spatial axis {axis}",
        )
        room = n + before + after - spread
        outputs = room // stride + 1
        if self.ceil_mode:
            outputs = -(-room // stride) + 1
            outputs -= (outputs - 1) * stride >= n + before
        return regular_windows(n, outputs, kernel, stride, (before, after), dilation, self.count_include_pad)

    def options(self) -> dict[str, Any]:
        """The attributes, for a gradient op."""
        return {name: self.attributes[name] for name in _Regular.declared}


def flat(array: np.ndarray) -> np.ndarray:
    """``(R, N, C, *spatial)`` as ``(R * N * C, *spatial)``; the array is contiguous."""
    return array.reshape(math.prod(array.shape[:3]), *array.shape[3:])


# -- maximum -----------------------------------------------------------------------------------------------------------


class MaxPool(_Regular):
    """``x -> y``: largest element of each window; padding is never the largest."""

    type = "MaxPool"
    dilated = True

    def infer(self) -> list[TensorSpec]:
        """``(N, C, *windows)``."""
        tensor = self.operand()
        return [TensorSpec(self.pooled(tensor), tensor.dtype)]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """One stage for each axis."""
        return reduction_kernel(self.stages(), np.maximum, -math.inf, inputs[0], outputs[0], env, [])

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """From the pooled and the unpooled tensor, as upstream."""
        y, x = builder.forward(self.outputs[0]), builder.forward(self.inputs[0])
        return [builder.op(MaxPoolGrad, [given(grads), y, x], **self.options())]

    def work(self) -> list[Work]:
        """One compute set."""
        spec = self.outputs[0].spec
        name = f"popnn::MaxPooling<{vertices.poplar_type(spec.dtype)}>"
        return self.vertex_work(name, spec, "max", self.visits(spec))


class MaxPoolGrad(_Regular):
    """``(grad, pooled, x) -> dx``: the gradient of each window goes to its first largest element (in the order of
    memory), as in PyTorch. Attributes as :class:`MaxPool`.

    Operands are those of PopART: nothing is kept besides tensors of the forward graph. The device's vertex
    (popnn MaxPoolingGrad) gives the gradient to every element that equals the maximum, which differs from this value
    where elements tie. A window whose maximum is NaN passes its gradient to its last element or to none.
    """

    type = "MaxPoolGrad"
    dilated = True
    backward = True

    def infer(self) -> list[TensorSpec]:
        """The spec of ``x``."""
        self.require(len(self.inputs) == 3, f"needs 3 operands (grad, pooled, x), got {len(self.inputs)}")
        self.operand()
        grad, pooled, x = self.inputs
        self.same_dtype(*self.inputs)
        expected = self.pooled(x)
        for name, tensor in (("gradient", grad), ("pooled tensor", pooled)):
            self.require(
                tensor.shape == expected, f"{name} has shape {tensor.shape}; {expected} follows from {x.shape}"
            )
        return [x.spec]

    def windows(self) -> list[Windows]:
        """Windows over ``x``."""
        return self.windows_of(self.inputs[2].shape[2:])

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Maxima over the last axes anew, then for each stage, in reverse, the gradient to the first maximum of a line.

        Lines along later axes are compared first, which makes the choice the first one in the order of memory.
        """
        stages = self.stages()[::-1]
        (grad, s0), (pooled, s1), (x, s2) = (contiguous(a, env, slot=i) for i, a in enumerate(inputs))
        out, after = result_buffer(outputs[0], env, slot=3)
        if not stages:
            return sequence([*s0, partial(np.copyto, out, grad), *after])
        slot = 4
        values = [flat(x), *temporaries(flat(x).shape, stages, x.dtype, env, slot), flat(pooled)]
        slot += len(stages)
        grads = [flat(out), *temporaries(flat(x).shape, stages, x.dtype, env, slot), flat(grad)]
        slot += len(stages)
        steps: list[Step] = [*s0, *s1, *s2]
        for index, stage in enumerate(stages[:-1]):
            steps += stage.reduce(np.maximum, -math.inf, values[index], values[index + 1])
        for index in reversed(range(len(stages))):
            coarse = values[index + 1]
            mask = env.scratch(coarse.shape, np.bool_, slot=slot)
            rest, part = (env.scratch(coarse.shape, coarse.dtype, slot=slot + 1 + i) for i in range(2))
            give = _give_apart if stages[index].windows.full and stages[index].windows.disjoint else _give_shared
            lines = _Lines(values[index], coarse, grads[index], grads[index + 1], mask, rest, part)
            steps += give(stages[index], lines)
        return sequence([*steps, *after])

    def work(self) -> list[Work]:
        """One compute set; each element compares itself with the maximum of each of its windows."""
        spec = self.outputs[0].spec
        name = f"popnn::MaxPoolingGrad<{vertices.poplar_type(spec.dtype)}>"
        return self.vertex_work(name, spec, "max_grad", 2 * self.visits(spec))


def _bits(array: np.ndarray) -> np.ndarray:
    """The array as integers: multiplied by 0 or 1 and subtracted they stay exact, which infinity and NaN would not."""
    return array.view(np.dtype(f"i{array.itemsize}"))


@dataclass(frozen=True)
class _Lines:
    """Arrays of one stage of a maximum's gradient: values and gradients before and after the stage, and temporaries of
    the shape after it."""

    fine: np.ndarray
    coarse: np.ndarray
    d_fine: np.ndarray
    d_coarse: np.ndarray
    mask: np.ndarray
    rest: np.ndarray
    part: np.ndarray


def _give_apart(stage: AxisPass, lines: _Lines) -> list[Step]:
    """Gradient to the first maximum where windows do not meet: every element is assigned once; the last one of a window
    takes what the others did not."""
    pairs = stage.windows.pairs
    steps: list[Step] = [] if stage.covers else [partial(lines.d_fine.fill, 0)]
    left = _bits(lines.d_coarse)
    for index, pair in enumerate(pairs):
        target = stage.views(pair, _bits(lines.d_coarse), _bits(lines.d_fine))[1]
        if index == len(pairs) - 1:
            return [*steps, partial(np.copyto, target, left)] if index == 0 else steps
        steps.append(partial(np.equal, stage.views(pair, lines.coarse, lines.fine)[1], lines.coarse, lines.mask))
        steps.append(partial(np.multiply, left, lines.mask, target))
        last = stage.views(pairs[-1], _bits(lines.d_coarse), _bits(lines.d_fine))[1]
        remains = last if index == len(pairs) - 2 else _bits(lines.rest)
        steps.append(partial(np.subtract, left, target, remains))
        left = remains
    return steps


def _give_shared(stage: AxisPass, lines: _Lines) -> list[Step]:
    """Gradient to the first maximum in general: gradients of windows that share an element are added."""
    steps: list[Step] = [partial(lines.d_fine.fill, 0), partial(np.copyto, lines.rest, lines.d_coarse)]
    for pair in stage.windows.pairs:
        largest, candidate = stage.views(pair, lines.coarse, lines.fine)
        chosen = stage.views(pair, lines.mask, lines.fine)[0]
        left, share = (stage.views(pair, a, lines.fine)[0] for a in (lines.rest, lines.part))
        target = stage.views(pair, lines.coarse, lines.d_fine)[1]
        steps.append(partial(np.equal, candidate, largest, chosen))
        steps.append(partial(np.multiply, _bits(left), chosen, _bits(share)))
        steps.append(partial(np.add, target, share, target))
        steps.append(partial(np.subtract, _bits(left), _bits(share), _bits(left)))
    return steps


# -- average -----------------------------------------------------------------------------------------------------------


class _Average(_Pooling):
    """Base of the averages ``x -> y``."""

    type = "AveragePool"

    def infer(self) -> list[TensorSpec]:
        """``(N, C, *windows)``."""
        tensor = self.operand()
        return [TensorSpec(self.pooled(tensor), tensor.dtype)]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """One stage of sums for each axis, then a division by the counts."""
        return reduction_kernel(self.stages(), np.add, 0, inputs[0], outputs[0], env, self.windows())

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradient over the counts, added to all elements of each window. (Upstream also hands the forward tensors
        to the gradient op but does not read them.)"""
        return [self.gradient_op(builder, given(grads), self.inputs[0].shape[2:])]

    def gradient_op(self, builder: GradientBuilder, grad: Tensor, size: tuple[int, ...]) -> Tensor:
        """The gradient of an input of spatial shape ``size``."""
        raise NotImplementedError

    def work(self) -> list[Work]:
        """One compute set of sums that also scale."""
        spec = self.outputs[0].spec
        name = f"popnn::SumPooling<{vertices.poplar_type(spec.dtype)}>"
        return self.vertex_work(name, spec, "sum", self.visits(spec) + spec.elements)


class AveragePool(_Regular, _Average):
    """``x -> y``: average of each window; see :class:`_Regular` for what is counted."""

    def gradient_op(self, builder: GradientBuilder, grad: Tensor, size: tuple[int, ...]) -> Tensor:
        """Over the same windows."""
        return builder.op(AveragePoolGrad, [grad], input_size=size, **self.options())


class _Adaptive(_Pooling):
    """Base of the ops over as many windows as :meth:`wanted`, which PyTorch chooses."""

    def wanted(self) -> tuple[int, ...]:
        """Windows along each spatial axis."""
        raise NotImplementedError

    def windows_of(self, size: Sequence[int]) -> list[Windows]:
        """Windows over an input of spatial shape ``size``."""
        self.require(min(size) > 0, f"spatial shape {tuple(size)} has no elements")
        return [adaptive_windows(n, o) for n, o in zip(size, self.wanted(), strict=True)]


class AdaptiveAveragePool(_Adaptive, _Average):
    """``x -> y``: average over windows that give ``output_size`` (attribute: one integer, or one for each spatial axis)
    results, as PyTorch chooses them.

    PopTorch runs an AveragePool of kernel and stride ``n / output``; where the input is no multiple of the output its
    values differ from PyTorch's and from this op's.
    """

    output_size = spatial("output_size")

    def wanted(self) -> tuple[int, ...]:
        """As given."""
        return self.output_size

    def gradient_op(self, builder: GradientBuilder, grad: Tensor, size: tuple[int, ...]) -> Tensor:
        """Over the same windows."""
        return builder.op(AdaptiveAveragePoolGrad, [grad], input_size=size, output_size=self.wanted())


class GlobalAveragePool(_Adaptive, _Average):
    """``x -> y``: average over all spatial axes, which are kept with length 1."""

    type = "GlobalAveragePool"

    def wanted(self) -> tuple[int, ...]:
        """One window for each axis."""
        return (1,) * spatial_axes(self)

    def gradient_op(self, builder: GradientBuilder, grad: Tensor, size: tuple[int, ...]) -> Tensor:
        """Over the same windows."""
        return builder.op(AdaptiveAveragePoolGrad, [grad], input_size=size, output_size=self.wanted())


class _AverageGrad(_Pooling):
    """Base of ``grad -> dx``, the gradient of an average over an input of spatial shape ``input_size`` (attribute)."""

    type = "AveragePoolGrad"
    backward = True

    input_size = spatial("input_size")

    def infer(self) -> list[TensorSpec]:
        """``(N, C, *input_size)``."""
        grad = self.operand()
        size = tuple(w.outputs for w in self.windows())
        self.require(grad.shape[2:] == size, f"gradient {grad.shape}; a spatial shape of {size} follows from its input")
        return [TensorSpec((*grad.shape[:2], *self.input_size), grad.dtype)]

    def windows(self) -> list[Windows]:
        """Windows over the forward input."""
        return self.windows_of(self.input_size)

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Divide by the counts, then spread axis after axis."""
        grad, before = contiguous(inputs[0], env, slot=0)
        out, after = result_buffer(outputs[0], env, slot=1)
        stages = self.stages()
        counts = _counts(self.windows(), grad.dtype)
        scaled = flat(env.scratch(grad.shape, grad.dtype, slot=2)) if stages else flat(out)
        levels = [flat(out), *temporaries(flat(out).shape, stages, grad.dtype, env, 3), scaled]
        steps: list[Step] = [*before, partial(np.divide, flat(grad), counts, scaled)]
        for index in reversed(range(len(stages))):
            steps += stages[index].spread(levels[index + 1], levels[index])
        return sequence([*steps, *after])

    def work(self) -> list[Work]:
        """One compute set of scaled sums of the gradients of an element's windows."""
        spec = self.outputs[0].spec
        name = f"popnn::SumPooling<{vertices.poplar_type(spec.dtype)}>"
        return self.vertex_work(name, spec, "sum", self.visits(spec) + spec.elements)


class AveragePoolGrad(_Regular, _AverageGrad):
    """Gradient of :class:`AveragePool`; the attributes are its and ``input_size``."""

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The average itself."""
        return [builder.op(AveragePool, [given(grads)], **self.options())]


class AdaptiveAveragePoolGrad(_Adaptive, _AverageGrad):
    """Gradient of :class:`AdaptiveAveragePool` and :class:`GlobalAveragePool`; attributes ``output_size``,
    ``input_size``."""

    output_size = spatial("output_size")

    def wanted(self) -> tuple[int, ...]:
        """As given."""
        return self.output_size

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The average itself."""
        return [builder.op(AdaptiveAveragePool, [given(grads)], output_size=self.output_size)]


def _counts(windows: Sequence[Windows], dtype: np.dtype) -> np.ndarray:
    """What sums are divided by: a number, or an array of the spatial shape."""
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
    """Reduce axis after axis; divide by the counts of the windows ``averaged``, if any."""
    x, steps = contiguous(source, env, slot=0)
    out, after = result_buffer(target, env, slot=1)
    levels = [flat(x), *temporaries(flat(x).shape, stages, x.dtype, env, 2), flat(out)]
    steps = [*steps] if stages else [*steps, partial(np.copyto, out, x)]
    for index, stage in enumerate(stages):
        steps += stage.reduce(ufunc, identity, levels[index], levels[index + 1])
    if averaged:
        steps.append(partial(np.divide, flat(out), _counts(averaged, out.dtype), flat(out)))
    return sequence([*steps, *after])


# -- cost --------------------------------------------------------------------------------------------------------------

#: Innermost loop over the n vectors of a row, ``fixed + rate * (n - 1)`` thread cycles.
INNER_LOOP = {"max": (4, 3), "sum": (5, 3), "max_grad": (7, 5)}


def pooling_cycles(kind: str, windows: Sequence[Windows], result: TensorSpec, *, backward: bool) -> TileCycles:
    """PopLibs' pooling vertices (lib/popnn/PerformanceEstimation.hpp getPoolingCycles,
    ``docs/reference/cycles.md`` 6.3).

    A worker starts up (45 cycles, 46 for sums, 55 for the gradient of a maximum), clears its vectors of the result (1
    cycle each) and walks over its rows (15 cycles each); for each row and position of the window there is a work item
    of ``28 + inner loop`` cycles over the vectors of the row. The tile takes W times that plus 13.

    Which rows and channels a tile holds is the plan's choice (PoolPlan.cpp); here its elements are taken to be rows of
    the result with one vector of channels, shared evenly by the workers, hence low confidence. Positions and row
    lengths of a gradient are averages over the elements of the input.
    """
    fixed, rate = INNER_LOOP[kind]
    worker = {"max": 45, "sum": 46, "max_grad": 55}[kind]
    last = windows[-1]
    row = last.size if backward else last.outputs
    per_row = math.prod(-(-w.visits // (w.size if backward else w.outputs)) for w in windows[:-1])
    positions = max(1, per_row * -(-last.visits // last.outputs))
    dtype = result.dtype

    def cycles(elements: np.ndarray, chip: Any) -> np.ndarray:
        count = np.asarray(elements, dtype=np.int64)
        vectors = vertices.ceil_div(count, vertices.vector_width(dtype, chip))
        share = np.maximum(1, vertices.ceil_div(vectors, chip.workers))
        length = np.minimum(share, row)
        rows = vertices.ceil_div(share, length)
        used = np.maximum(1, vertices.ceil_div(length * last.outputs, row)) if backward else length
        item = 28 + fixed + rate * (used - 1)
        total = chip.workers * (worker + share + rows * (15 + positions * item)) + 13
        return np.where(count > 0, total, 0).astype(np.int64)

    return cycles
