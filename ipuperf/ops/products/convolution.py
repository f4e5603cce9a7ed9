"""Convolution, its two gradients, transposed convolution and the bias of channels.

Layouts are those of PopART and PyTorch: input ``(N, C, *spatial)``, weights ``(O, C / groups, *kernel)``, with one or
more spatial axes. As everywhere in machine learning the kernel is not flipped (cross-correlation).

The bias is an op of its own (:class:`AddBias`): PopART makes it from a convolution with three operands. fp16 is
widened to float32 whatever ``partials_dtype`` says (fp16 partials on the device lose a little more) and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ipuperf.ir import FLOAT32, GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import FLOATING, INTEGER, NUMBER, REQUIRED, Attribute, Kind, optional

from .. import half, vertices
from .. import work as works
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import Step, sequence
from ..reductions import axes_reduced as reduce
from .unrolling import Matrices, convolved

Padding = tuple[tuple[int, int], ...]


# -- attributes --------------------------------------------------------------------------------------------------------


#: One value for all spatial axes, or one for each; only the op knows how many axes there are.
SPATIAL: Kind[Any] = Kind(lambda value: value, "an integer, or one for each spatial axis, is needed")


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def per_axis(op: Op, name: str, value: Any, axes: int, least: int = 1) -> tuple[int, ...]:
    """``value`` (one integer, or one for each of ``axes`` spatial axes) as a tuple of integers from ``least`` up."""
    values = tuple(value) if isinstance(value, (tuple, list, np.ndarray)) else (value,) * axes
    fits = len(values) == axes and all(_is_whole(v) and v >= least for v in values)
    op.require(fits, f"{name}={value!r}; an integer of at least {least} is needed for each of {axes} spatial axes")
    return tuple(int(v) for v in values)


def padding_pairs(op: Op, value: Any, axes: int) -> Padding:
    """``padding`` (one integer, or a pair (before, after) for each spatial axis) as a tuple of pairs."""
    pairs = list(value) if isinstance(value, (tuple, list, np.ndarray)) else [(value, value)] * axes
    fits = len(pairs) == axes and all(isinstance(p, (tuple, list, np.ndarray)) and len(p) == 2 for p in pairs)
    op.require(fits, f"padding={value!r}; a pair (before, after) is needed for each of {axes} spatial axes")
    fits = all(_is_whole(n) and n >= 0 for p in pairs for n in p)
    op.require(fits, f"padding={value!r}; integers that are not negative are needed")
    return tuple((int(p[0]), int(p[1])) for p in pairs)


def spatial_axes(op: Op) -> int:
    """How many axes follow batch and channels in the first operand."""
    return max(0, len(op.inputs[0].shape) - 2)


def spatial(name: str, default: Any = REQUIRED, *, least: int = 1) -> Attribute[tuple[int, ...]]:
    """An attribute with one integer for each spatial axis; one integer stands for all of them."""
    return Attribute(SPATIAL, default, settle=lambda op, value: per_axis(op, name, value, spatial_axes(op), least))


def spatial_padding() -> Attribute[Padding]:
    """The attribute ``padding``: a pair for each spatial axis, none by default."""
    return Attribute(SPATIAL, 0, settle=lambda op, value: padding_pairs(op, value, spatial_axes(op)))


# -- ops ---------------------------------------------------------------------------------------------------------------


class _Convolutional(Op):
    """Base of the passes of a convolution.

    Class attributes:
        extra_operands: operands after the two of the convolution.

    Attributes:
        strides, dilation: per spatial axis of the forward convolution (default 1; one integer stands for all axes).
        padding: (before, after) per spatial axis of the forward input, in zeros (default none).
        groups: channel groups (default 1).
        partials_dtype: type of partial sums on the device (default float32). A type narrower than the result's is
            replaced by the result's (poplibs: lib/poplin/ConvValidation.cpp, which warns).
        available_memory_proportion: share of tile memory the plan may use for temporaries, in (0, 1] (default 0.6).
    """

    pass_: ClassVar[str]
    extra_operands: ClassVar[int] = 0

    strides = spatial("strides", 1)
    dilation = spatial("dilation", 1)
    padding = spatial_padding()
    groups = Attribute(INTEGER, 1)
    partials_dtype = Attribute(optional(FLOATING), None, settle=lambda op, dtype: dtype or FLOAT32)
    available_memory_proportion = Attribute(optional(NUMBER), None)

    def convolution(self) -> works.Convolution:
        """The forward convolution of which this op is a pass; shape rule, value and cost all use it."""
        raise NotImplementedError

    @property
    def memory(self) -> float:
        """Share of tile memory that the plan may use."""
        stated = self.available_memory_proportion
        return 0.6 if stated is None else stated

    def operands(self, count: int) -> None:
        """Check the number, types and ranks of the operands, and the attributes that need no other."""
        operand_count = len(self.inputs) - self.extra_operands
        self.require(operand_count == count, f"needs {count} operands, got {operand_count}; a bias is added by AddBias")
        operands = self.inputs[:count]
        self.same_dtype(*operands)
        self.floating(*operands)
        # Axes are counted before their lengths are
        # compared, so that the errors name the cause.
        ranks = {len(t.shape) for t in operands}
        shapes = " and ".join(str(t.shape) for t in operands)
        self.require(len(ranks) == 1, f"operands of shapes {shapes} have different numbers of axes")
        self.require(ranks.pop() > 2, "a convolution needs at least 1 spatial axis: (N, C, *spatial)")
        self.require(self.groups >= 1, f"groups={self.groups}; a positive integer is needed")
        if not 0 < self.memory <= 1:
            raise IrError(f"{self.where()}: available_memory_proportion={self.memory}; allowed: above 0, up to 1")

    def check(self) -> works.Convolution:
        """Check that channels, groups and sizes fit together."""
        conv = self.convolution()
        for name, channels in (("input", conv.channels_in), ("output", conv.channels_out)):
            self.require(
                channels > 0 and channels % conv.groups == 0,
                f"{channels} {name} channels cannot be divided into {conv.groups} groups",
            )
        self.require(min(conv.kernel_size) > 0, f"kernel {conv.kernel_size} is empty")
        for axis, (n, k, d) in enumerate(zip(conv.input_size, conv.kernel_size, conv.dilation, strict=True)):
            pad_before, pad_after = conv.padding[axis]
            spread = d * (k - 1) + 1
            self.require(
                spread <= n + pad_before + pad_after,
                f"kernel of {k} with dilation {d} spans {spread} elements, more than the padded input's "
                f"{n} + {pad_before} + {pad_after} along spatial axis {axis}",
            )
        return conv

    def describe(
        self, batch: int, channels: tuple[int, int], size: Sequence[int], kernel: Sequence[int]
    ) -> works.Convolution:
        """The :class:`~ipuperf.ops.work.Convolution` with this op's attributes."""
        return works.Convolution(
            batch=batch,
            channels_in=channels[0],
            channels_out=channels[1],
            input_size=tuple(size),
            kernel_size=tuple(kernel),
            strides=self.strides,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            input_dtype=self.inputs[0].dtype,
            output_dtype=self.inputs[0].dtype,
            # Partial sums are never narrower than the result.
            partials_dtype=max(self.partials_dtype, self.inputs[0].dtype, key=lambda kind: kind.size),
            pass_=self.pass_,
            available_memory_proportion=self.memory,
        )

    def options(self) -> dict[str, Any]:
        """The attributes that the passes of a convolution share."""
        # Sizes are left out: they differ from pass to pass.
        names = ("strides", "padding", "dilation", "groups", "partials_dtype", "available_memory_proportion")
        return {name: self.attributes[name] for name in names}

    def work(self) -> list[works.Work]:
        """One planned pass."""
        return [self.convolution()]


class Conv(_Convolutional):
    """``(x, w) -> y``: convolution of ``x`` (N, C, *spatial) with ``w`` (O, C / groups, *kernel)."""

    pass_ = "fwd"

    def convolution(self) -> works.Convolution:
        """This convolution."""
        x, w = (t.shape for t in self.inputs[:2])
        return self.describe(x[0], (x[1], w[0]), x[2:], w[2:])

    def infer(self) -> list[TensorSpec]:
        """``(N, O, *output size)``."""
        self.operands(2)
        conv = self.check()
        x, w = self.inputs[:2]
        self.require(
            w.shape[1] * conv.groups == x.shape[1],
            f"weights {w.shape} with {conv.groups} groups take {w.shape[1] * conv.groups} input channels; "
            f"the input {x.shape} has {x.shape[1]}",
        )
        return [TensorSpec((conv.batch, conv.channels_out, *conv.output_size), x.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Per replica: unroll the input into columns, make one (batched) matrix product, copy it to the output's
        layout."""
        return convolved(Matrices(self.convolution(), inputs[0].dtype, env), inputs, outputs[0])

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The input gradient pass and the weight gradient pass."""
        x, w = self.inputs
        size, kernel = x.shape[2:], w.shape[2:]
        return [
            builder.op(ConvInputGrad, [grad, builder.forward(w)], input_size=size, **self.options()),
            builder.op(ConvWeightGrad, [grad, builder.forward(x)], kernel_size=kernel, **self.options()),
        ]


class _InputPass(_Convolutional):
    """Base of the two ops ``(grad, w) -> dx`` that run the pass of a convolution's input gradient."""

    pass_ = "bwd"

    def size(self) -> tuple[int, ...]:
        """Spatial size of the result."""
        raise NotImplementedError

    def convolution(self) -> works.Convolution:
        """The forward convolution whose gradient this is."""
        grad, w = (t.shape for t in self.inputs[:2])
        # The gradient has the output channels of the forward convolution, the weights its input channels.
        return self.describe(grad[0], (w[1] * self.groups, grad[1]), self.size(), w[2:])

    def infer(self) -> list[TensorSpec]:
        """``(N, C, *size)``."""
        self.operands(2)
        conv = self.check()
        grad, w = self.inputs[:2]
        self.require(w.shape[0] == grad.shape[1], f"gradient {grad.shape} and weights {w.shape} differ in channels")
        self.require(
            grad.shape[2:] == conv.output_size,
            f"gradient of spatial size {grad.shape[2:]}; {conv.output_size} follows from input_size={conv.input_size}",
        )
        return [TensorSpec((conv.batch, conv.channels_in, *conv.input_size), grad.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Per replica: add products of transposed weights and gradient rows to the columns, and those to the image.

        Where :func:`_as_forward` finds one, a convolution of the gradient with turned weights is used: it takes less
        time.
        """
        turned = _as_forward(self.convolution())
        if turned is not None:
            return convolved(Matrices(turned, inputs[0].dtype, env), inputs, outputs[0], turned=True)
        conv = Matrices(self.convolution(), inputs[0].dtype, env)
        columns, matrix, grads = conv.columns(), conv.weights(), conv.results()
        flipped = matrix.array.swapaxes(1, 2)
        # One window's product; it is added to the columns before the next one is made.
        part = env.scratch(columns.windows[:, 0].shape, conv.dtype, slot=4)
        steps: list[Step] = []
        for grad, w, dx in zip(inputs[0], inputs[1], outputs[0], strict=True):
            steps.append(half.copy(grads.by_axis, conv.output_view(grad)))
            steps.append(half.copy(matrix.by_axis, conv.weight_view(w)))
            steps += columns.collect(flipped, grads.array, part)
            steps.append(half.copy(conv.input_view(dx), columns.inner))
        return sequence(*steps)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Linear in both operands: a forward convolution and a weight gradient."""
        data, w = self.inputs
        kernel = w.shape[2:]
        return [
            builder.op(Conv, [grad, builder.forward(w)], **self.options()),
            builder.op(ConvWeightGrad, [builder.forward(data), grad], kernel_size=kernel, **self.options()),
        ]


class ConvInputGrad(_InputPass):
    """``(grad, w) -> dx``: gradient of a convolution with respect to its input of spatial size ``input_size``
    (attribute).

    Upstream, ConvDataGrad becomes ConvFlipWeights and a Conv. Here the rearrangement of the weights belongs to the
    planned ``bwd`` pass. All other attributes are those of the forward convolution.
    """

    type = "ConvDataGrad"

    input_size = spatial("input_size")

    def size(self) -> tuple[int, ...]:
        """The attribute ``input_size``."""
        return self.input_size


class ConvTranspose(_InputPass):
    """``(x, w) -> y``: transposed convolution, the input gradient of a convolution used as a forward op.

    ``w`` is (C, O / groups, *kernel) for an input of C and an output of O channels. ``padding`` is removed from the
    output, and ``output_padding`` (attribute, default 0, below the stride) extends its end. The work is the ``bwd``
    pass of the convolution that is transposed. PopART runs it as a convolution of a dilated input, which is the same
    computation; PopART allows no ``dilation``, this op does.
    """

    output_padding = spatial("output_padding", 0, least=0)

    def size(self) -> tuple[int, ...]:
        """``(n - 1) stride - padding + dilation (kernel - 1) + 1 + output_padding``."""
        sizes = zip(self.inputs[0].shape[2:], self.inputs[1].shape[2:], strict=True)
        options = zip(self.strides, self.padding, self.dilation, self.output_padding, strict=True)
        return tuple(
            (n - 1) * s - sum(p) + d * (k - 1) + 1 + e for (n, k), (s, p, d, e) in zip(sizes, options, strict=True)
        )

    def operands(self, count: int) -> None:
        """Also check that ``output_padding`` and ``padding`` leave a size that the convolution has."""
        super().operands(count)
        for extra, stride in zip(self.output_padding, self.strides, strict=True):
            self.require(
                extra < stride, f"output_padding={self.output_padding} has to be smaller than strides={self.strides}"
            )
        size = self.size()
        self.require(
            min(size) > 0, f"the output would have spatial size {size}; padding={self.padding} takes away too much"
        )


class ConvWeightGrad(_Convolutional):
    """``(grad, x) -> dw``: gradient of a convolution with respect to its weights of spatial size ``kernel_size``
    (attribute)."""

    type = "ConvWeightsGrad"
    pass_ = "wu"

    kernel_size = spatial("kernel_size")

    def convolution(self) -> works.Convolution:
        """The forward convolution whose gradient this is."""
        grad, x = (t.shape for t in self.inputs)
        return self.describe(x[0], (x[1], grad[1]), x[2:], self.kernel_size)

    def infer(self) -> list[TensorSpec]:
        """``(O, C / groups, *kernel_size)``."""
        self.operands(2)
        conv = self.check()
        grad, x = self.inputs
        self.require(
            (grad.shape[0], grad.shape[2:]) == (conv.batch, conv.output_size),
            f"gradient {grad.shape}; ({conv.batch}, {conv.channels_out}, *{conv.output_size}) is needed for {x.shape}",
        )
        return [TensorSpec((conv.channels_out, conv.channels_in // conv.groups, *conv.kernel_size), x.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Per replica: unroll the input into columns, multiply them by gradient rows, add up the rows."""
        conv = Matrices(self.convolution(), inputs[0].dtype, env)
        columns, matrix, grads = conv.columns(), conv.weights(), conv.results()
        # The columns are the right operand here, so rows and columns change places.
        turned = columns.windows.swapaxes(2, 3)
        groups, rows = turned.shape[:2]
        parts = env.scratch((groups, rows, *matrix.array.shape[1:]), conv.dtype, slot=4)
        steps: list[Step] = []
        for grad, x, dw in zip(inputs[0], inputs[1], outputs[0], strict=True):
            steps += columns.load(x)
            steps.append(half.copy(grads.by_axis, conv.output_view(grad)))
            # Without shared rows there is nothing to add up.
            if rows == 1:
                steps.append(partial(np.matmul, grads.array[:, 0], turned[:, 0], matrix.array))
            else:
                steps.append(partial(np.matmul, grads.array, turned, parts))
                # Each row gives its own part of the weights' gradient.
                steps.append(partial(np.add.reduce, parts, 1, None, matrix.array))
            steps.append(half.copy(conv.weight_view(dw), matrix.by_axis))
        return sequence(*steps)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Linear in both operands: a forward convolution and an input gradient with the gradient as weights."""
        data, x = self.inputs
        size = x.shape[2:]
        return [
            builder.op(Conv, [builder.forward(x), grad], **self.options()),
            builder.op(ConvInputGrad, [builder.forward(data), grad], input_size=size, **self.options()),
        ]


class AddBias(Op):
    """``(x, bias) -> x + bias`` with ``x`` (N, C, *spatial) and one bias for each channel.

    PopART makes this op from the third operand of a convolution and turns it into AddBiasInplace. The vertices are
    priced in place, although the result is a tensor of its own here. Channels lie innermost on the device, so this is
    a broadcast of an inner vector; an Add of a reshaped bias could not show that.
    """

    def infer(self) -> list[TensorSpec]:
        """The spec of ``x``."""
        self.require(len(self.inputs) == 2, f"needs 2 operands, got {len(self.inputs)}")
        x, bias = self.inputs
        self.same_dtype(x, bias)
        self.floating(x)
        self.require(
            len(x.shape) >= 2 and bias.shape == x.shape[1:2],
            f"bias of shape {bias.shape}; one value for each channel of {x.shape} is needed",
        )
        return [x.spec]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One addition."""
        x, bias = inputs
        # Axis 2 is that of the channels, after replicas and batch.
        aligned = bias.reshape(bias.shape[0], 1, bias.shape[1], *(1,) * (x.ndim - 3))
        return partial(np.add, x, aligned, outputs[0])

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g`` and its sum over all axes but the channels (AddBiasDataGrad, AddBiasBiasGrad)."""
        # Each channel's bias was added in all samples and places.
        axes = (0, *range(2, len(grad.shape)))
        return [grad, builder.op(reduce.ReduceSum, [grad], axes=axes, keepdims=False)]

    def work(self) -> list[works.Work]:
        """One sum with a vector of all channels. It is an assumption about layouts that ``poplin::addBias`` ends
        there."""
        spec = self.outputs[0].spec
        return [vertices.broadcast_inner("ADD", spec.dtype, spec.elements, spec.shape[1], in_place=True)]


# -- the NumPy value ---------------------------------------------------------------------------------------------------


def _as_forward(conv: works.Convolution) -> works.Convolution | None:
    """The forward convolution that computes the gradient of another one's input.

    None with strides, with padding beyond the reach of the kernel, or with more output than input channels, which
    would make large columns.
    """
    reach = [d * (k - 1) for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    # The padding is what the kernel reaches beyond the forward padding.
    padding = tuple(
        (r - pad_before, r - pad_after) for r, (pad_before, pad_after) in zip(reach, conv.padding, strict=True)
    )
    wider = conv.channels_out > conv.channels_in
    if wider or any(s != 1 for s in conv.strides) or any(n < 0 for pair in padding for n in pair):
        return None
    return replace(
        conv,
        channels_in=conv.channels_out,
        channels_out=conv.channels_in,
        input_size=conv.output_size,
        padding=padding,
    )
