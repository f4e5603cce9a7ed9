"""The average over windows, which are of one size, adaptive, or everything; and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel
from ..binding import Step, WorkingArrays
from ..products.convolution import spatial, spatial_axes
from ..shape import copy_work
from ..work import Work
from .base import Pooling, RegularPooling, counts_of, reduction_kernel
from .windows import Windows, adaptive_windows, flat, temporaries


class _Average(Pooling):
    """Base of the averages ``x -> y``: sums that are also scaled."""

    type = "AveragePool"
    element_flops = 1

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One stage of sums for each axis, then a division by the counts."""
        return reduction_kernel(self.stages(), np.add, 0, inputs[0], outputs[0], env, self.windows())

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient divided by the counts, added to all elements of each window. (Upstream also passes the
        forward tensors to the gradient op but does not read them.)"""
        return [self.gradient_op(builder, grad, self.inputs[0].shape[2:])]

    def gradient_op(self, builder: GradientBuilder, grad: Tensor, size: tuple[int, ...]) -> Tensor:
        """The gradient of an input of spatial shape ``size``."""
        raise NotImplementedError


class AveragePool(RegularPooling, _Average):
    """``x -> y``: average of each window; :class:`RegularPooling` says which elements count."""

    def gradient_op(self, builder: GradientBuilder, grad: Tensor, size: tuple[int, ...]) -> Tensor:
        """Over the same windows."""
        return builder.op(AveragePoolGrad, [grad], input_size=size, **self.options())


class _Adaptive(Pooling):
    """Base of the ops over as many windows as :meth:`window_counts` says; PyTorch's rule places them."""

    def window_counts(self) -> tuple[int, ...]:
        """Windows along each spatial axis."""
        raise NotImplementedError

    def windows_of(self, size: Sequence[int]) -> list[Windows]:
        """Windows over an input of spatial shape ``size``."""
        self.require(min(size) > 0, f"spatial shape {tuple(size)} has no elements")
        return [adaptive_windows(n, o) for n, o in zip(size, self.window_counts(), strict=True)]


class AdaptiveAveragePool(_Adaptive, _Average):
    """``x -> y``: average over windows that give ``output_size`` (attribute: one integer, or one for each spatial
    axis) results, placed by PyTorch's rule.

    PopTorch runs an AveragePool of kernel and stride ``n / output``. Where the input is no multiple of the output, its
    values differ from PyTorch's and from this op's.
    """

    type = "AveragePool"

    output_size = spatial("output_size")

    def window_counts(self) -> tuple[int, ...]:
        """The attribute ``output_size``."""
        return self.output_size

    def gradient_op(self, builder: GradientBuilder, grad: Tensor, size: tuple[int, ...]) -> Tensor:
        """Over the same windows."""
        return builder.op(AdaptiveAveragePoolGrad, [grad], input_size=size, output_size=self.window_counts())


class GlobalAveragePool(_Adaptive, _Average):
    """``x -> y``: average over all spatial axes, which stay with length 1."""

    def window_counts(self) -> tuple[int, ...]:
        """One window for each axis."""
        return (1,) * spatial_axes(self)

    def gradient_op(self, builder: GradientBuilder, grad: Tensor, size: tuple[int, ...]) -> Tensor:
        """Over the same windows."""
        return builder.op(AdaptiveAveragePoolGrad, [grad], input_size=size, output_size=self.window_counts())


class _AverageGrad(Pooling):
    """Base of ``grad -> dx``, the gradient of an average over an input of spatial shape ``input_size`` (attribute)."""

    type = "AveragePoolGrad"
    element_flops = 1
    reduction = ""
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

    def work(self) -> list[Work]:
        """A pooling. Where one window covers everything, the gradient is scaled and copied to all elements of the
        window (``lib/popnn/Pooling.cpp`` substPoolingGradientWithBroadcast)."""
        if not self.whole():
            return super().work()
        grad = self.inputs[0].spec
        scaled = vertices.broadcast_scalar("MULTIPLY", grad.dtype, grad.elements)
        return [replace(scaled, operands=()), *copy_work(self.outputs[0])]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Divide by the counts, then spread the quotients axis after axis."""
        arrays = WorkingArrays(inputs, outputs, env)
        (grad,), (out,) = arrays.operands, arrays.results
        stages = self.stages()
        counts = counts_of(self.windows(), grad.dtype)
        # Without stages the quotients are already the result.
        scaled = flat(env.scratch(grad.shape, grad.dtype, slot=2)) if stages else flat(out)
        levels = [flat(out), *temporaries(flat(out).shape, stages, grad.dtype, env, 3), scaled]
        steps: list[Step] = [partial(np.divide, flat(grad), counts, scaled)]
        # The stages of the forward pass are undone from the last one on.
        for index in reversed(range(len(stages))):
            steps += stages[index].spread(levels[index + 1], levels[index])
        return arrays.kernel(*steps)


class AveragePoolGrad(RegularPooling, _AverageGrad):
    """Gradient of :class:`AveragePool`, with its attributes and ``input_size``."""

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The average itself."""
        return [builder.op(AveragePool, [grad], **self.options())]


class AdaptiveAveragePoolGrad(_Adaptive, _AverageGrad):
    """Gradient of :class:`AdaptiveAveragePool` and :class:`GlobalAveragePool`; attributes ``output_size``,
    ``input_size``."""

    type = "AveragePoolGrad"

    output_size = spatial("output_size")

    def window_counts(self) -> tuple[int, ...]:
        """The attribute ``output_size``."""
        return self.output_size

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The average itself."""
        return [builder.op(AdaptiveAveragePool, [grad], output_size=self.output_size)]
