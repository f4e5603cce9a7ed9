"""Group, layer, instance and batch normalisation.

Upstream: PopART ``willow/src/op/groupnorm.cpp``, ``batchnorm.cpp`` and their ``popx/op`` lowerings onto
``popnn::gn`` / ``popnn::bn`` (``lib/poplin/Norms.cpp``). Layer norm is group norm with one group, instance norm has one
group per channel. Differences from upstream, each by choice:

* statistics are computed in two passes (what PopART's ``enableStableNorm`` asks for); the cost is that of the default,
  which sums values and squares together;
* saved statistics are float32 for fp16 operands (PopART's have the operand's type);
* batch norm saves the inverse standard deviation (PopART saves the variance and converts it back).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ipuperf.ir import FLOAT16, FLOAT32, DType, DTypeError, GradientBuilder, Graph, IrError, Tensor, TensorSpec

from . import elementwise as ew
from . import shape, unary, vertices
from .base import Environment, Kernel, Op
from .binding import Step, contiguous, result_buffer, scalar, sequence
from .work import Reduction, Vertices, Work


def statistics_dtype(dtype: DType) -> DType:
    """Type of saved statistics: float32 for float16, otherwise the operand's type."""
    return FLOAT32 if dtype == FLOAT16 else dtype


#: Elements of the pieces in which group norm runs, so that intermediates stay in the level-2 cache.
BLOCK = 1 << 16

# -- cost --------------------------------------------------------------------------------------------------------------


def paired_reduction(names: tuple[str, str], dtype: DType, inputs: int, outputs: int, run: int = 1) -> Reduction:
    """Two reductions of equal shape in the same compute sets (``popops::reduceMany``, lib/poplin/Norms.cpp:127-250).

    ``run`` is as in :class:`~ipuperf.ops.work.Reduction`.
    """
    first, second = (vertices.reduction(name, dtype, inputs, outputs) for name in names)
    return Reduction(
        f"popops::Reduce<{'+'.join(names)},{vertices.poplar_type(dtype)}>",
        inputs,
        2 * outputs,
        dtype,
        lambda count, chip: first.cycles(count, chip) + second.cycles(count, chip),
        first.flops + second.flops,
        run=run,
    )


def fused(name: str, dtype: DType, elements: int, operands: int, operations: int) -> Vertices:
    """A generated expression vertex (lib/popops/ExpressionGenerator.cpp:320-335): ``20 + operands * (m // v + m mod v)
    * operations`` per worker. The estimate is upstream's guess, hence low confidence."""

    def thread(m: np.ndarray, chip: object) -> np.ndarray:
        vector = vertices.vector_width(dtype, chip)  # type: ignore[arg-type]
        return 20 + operands * (m // vector + m % vector) * operations

    vertex = f"popops::map::{name}<{vertices.poplar_type(dtype)}>"
    cycles = vertices.tile_cycles(thread, 0)
    return Vertices(vertex, elements, cycles, operations * elements, low_confidence=True)


def _gradient_work(dtype: DType, count: int, channels: int, statistics: int, grouped: bool) -> list[Work]:
    """Whitening, gradients of the parameters, gradient of the operand (lib/poplin/Norms.cpp).

    ``statistics`` values are spread over rows (group norm) or over channels (batch norm).
    """
    row = count // max(statistics, 1)

    def spread(name: str, in_place: bool) -> Vertices:
        if grouped:
            return vertices.broadcast_outer(name, dtype, count, row, in_place=in_place)
        return vertices.broadcast_inner(name, dtype, count, channels, in_place=in_place)

    return [
        spread("SUBTRACT", False),
        spread("MULTIPLY", True),
        vertices.binary("MULTIPLY", dtype, count),
        paired_reduction(("ADD", "ADD"), dtype, count, channels),
        vertices.broadcast_inner("MULTIPLY", dtype, count, channels),
        vertices.binary("MULTIPLY", dtype, count),
        paired_reduction(("ADD", "ADD"), dtype, count, statistics, row if grouped else 1),
        spread("MULTIPLY", True),
        vertices.binary("ADD", dtype, count, in_place=True),
        spread("ADD", True),
        spread("MULTIPLY", True),
    ]


# -- shared rules and arrays -------------------------------------------------------------------------------------------


class _Normalisation(Op):
    """Base: operands ``x [N, C, ...]``, ``scale [C]``, ``bias [C]``, ...; attribute ``epsilon``."""

    @property
    def epsilon(self) -> float:
        """What is added to the variance."""
        return float(self.attributes["epsilon"])

    @property
    def channels(self) -> int:
        """Length of axis 1."""
        return self.inputs[0].shape[1]

    def check(self, names: Sequence[str], parameters: int) -> None:
        """Check operands: ``parameters`` tensors after x have its type and one element per channel; the rest
        (running statistics) may also be float32."""
        self.require(
            len(self.inputs) == len(names), f"needs {len(names)} operands ({', '.join(names)}), got {len(self.inputs)}"
        )
        x = self.inputs[0]
        self.floating(*self.inputs)
        self.require(len(x.shape) >= 2, f"x has shape {x.shape}; axes (batch, channels, ...) are needed")
        self.same_dtype(*self.inputs[: 1 + parameters])
        for name, tensor in zip(names[1:], self.inputs[1:], strict=True):
            self.require(
                tensor.shape == (self.channels,),
                f"{name} has shape {tensor.shape}; ({self.channels},) is needed, one element per channel of {x.shape}",
            )
        for name, tensor in zip(names[1 + parameters :], self.inputs[1 + parameters :], strict=True):
            if tensor.dtype not in (x.dtype, statistics_dtype(x.dtype)):
                allowed = " or ".join(sorted({x.dtype.name, statistics_dtype(x.dtype).name}))
                raise DTypeError(f"{self.where()}: {name} {tensor.id!r} is {tensor.dtype.name}; allowed: {allowed}")
        self.attributes.setdefault("epsilon", 1e-5)
        if not self.epsilon >= 0:
            raise IrError(f"{self.where()}: epsilon={self.epsilon}; a number of at least 0 is needed")

    def only_y(self, grads: Sequence[Tensor | None]) -> Tensor:
        """The gradient of y; saved and running statistics have no gradient."""
        for tensor, grad in zip(self.outputs[1:], grads[1:], strict=True):
            if grad is not None:
                raise IrError(f"{self.where()}: {tensor.id!r} is a statistic and cannot be differentiated; use y only")
        if grads[0] is None:
            raise IrError(f"{self.where()}: no gradient of y is given")
        return grads[0]


def _channelwise(array: np.ndarray) -> np.ndarray:
    """``(R, N, C, ...)`` as ``(R, N, C, S)``, or ``(R, N, C)`` without further axes."""
    if array.ndim == 3:
        return array
    return array.reshape(*array.shape[:3], math.prod(array.shape[3:]))


def _per_channel(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    """``(R, C)`` to broadcast against :func:`_channelwise` arrays."""
    return array.reshape(array.shape[0], 1, array.shape[1], *([1] * (like.ndim - 3)))


def _per_channel_sum(array: np.ndarray, out: np.ndarray) -> Step:
    """Sum a :func:`_channelwise` array over all but replicas and channels into ``(R, C)``."""
    return partial(np.add.reduce, array, (1, 3) if array.ndim == 4 else 1, None, out)


class _Statistics:
    """Which elements share a mean: rows of ``M`` elements (group norm) or channels (batch norm).

    ``view`` gives the array that is reduced over ``axes``, ``spread`` the statistics to broadcast against it.
    """

    def __init__(self, replicas: int, x_shape: Sequence[int], groups: int | None) -> None:
        batch, channels, *rest = x_shape
        self.replicas = replicas
        if groups is None:
            self.form: tuple[int, ...] = (replicas, batch, channels, math.prod(rest))
            self.kept: tuple[int, ...] = (replicas, 1, channels, 1)
            self.axes: tuple[int, ...] = (1, 3)
            self.count = batch * math.prod(rest)
        else:
            self.count = channels // groups * math.prod(rest)
            self.form = (replicas, batch * groups, self.count)
            self.kept = (replicas, batch * groups, 1)
            self.axes = (2,)

    def view(self, array: np.ndarray) -> np.ndarray:
        """A contiguous ``(R, *x.shape)`` array in the form that is reduced."""
        return array.reshape(self.form)

    def spread(self, statistics: np.ndarray) -> np.ndarray:
        """``(R, statistics)`` with axes of length 1."""
        return statistics.reshape(self.kept)

    def mean(self, array: np.ndarray, out: np.ndarray) -> list[Step]:
        """Steps that average ``array`` (in :attr:`form`) into ``out`` (in :attr:`kept`)."""
        return [
            partial(np.add.reduce, array, self.axes, None, out, True),
            partial(np.divide, out, scalar(max(self.count, 1), out.dtype), out),
        ]


def _moments(
    over: _Statistics, x: np.ndarray, centred: np.ndarray, squares: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> list[Step]:
    """Steps for the mean and the biased variance, and ``x - mean``; all in the forms of ``over``."""
    return [
        *over.mean(x, mean),
        partial(np.subtract, x, mean, centred),
        partial(np.multiply, centred, centred, squares),
        *over.mean(squares, variance),
    ]


def _inverse_deviation(variance: np.ndarray, epsilon: float, out: np.ndarray) -> list[Step]:
    """Steps for ``1 / sqrt(variance + epsilon)``."""
    return [
        partial(np.add, variance, scalar(epsilon, out.dtype), out),
        partial(np.sqrt, out, out),
        partial(np.reciprocal, out, out),
    ]


def _affine(y: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> list[Step]:
    """Steps for ``y = y * scale + bias`` per channel; ``y`` as :func:`_channelwise`."""
    return [
        partial(np.multiply, y, _per_channel(scale, y), y),
        partial(np.add, y, _per_channel(bias, y), y),
    ]


def _gradient_kernel(
    groups: int | None,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    env: Environment,
    frozen: bool = False,
) -> Kernel:
    """Gradients of x, scale and bias from ``x, scale, mean, inverse deviation, gradient of y``.

    With ``h`` the whitened operand and ``d = g * scale``: ``inv * (d - mean(d) - h * mean(d * h))``; when the
    statistics are ``frozen`` (constants) ``inv * d``.
    """
    bound = [contiguous(a, env, slot=i) for i, a in enumerate(inputs)]
    results = [result_buffer(a, env, slot=5 + i) for i, a in enumerate(outputs)]
    steps: list[Step] = [step for _, fill in bound for step in fill]
    x, scale, mean, inverse, grad = (array for array, _ in bound)
    dx, dscale, dbias = (array for array, _ in results)
    if groups is None:
        over = _Statistics(len(x), x.shape[1:], None)
        steps += _gradient_steps(over, (x, scale, mean, inverse, grad), (dx, dscale, dbias), env, frozen)
    else:
        steps += _gradient_by_samples(groups, (x, scale, mean, inverse, grad), (dx, dscale, dbias), env)
    return sequence([*steps, *(step for _, rounding in results for step in rounding)])


def _gradient_by_samples(
    groups: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment
) -> list[Step]:
    """The steps for a few samples at a time, so that intermediates stay in cache; parameters' gradients are added."""
    x, scale, mean, inverse, grad = inputs
    dx, dscale, dbias = outputs
    part = env.scratch((2, 1, x.shape[2]), x.dtype, slot=11)
    steps: list[Step] = [partial(dscale.fill, 0), partial(dbias.fill, 0)]
    for r, samples in _sample_blocks(x):
        one, rows = slice(r, r + 1), slice(samples.start * groups, samples.stop * groups)
        block = x[one, samples]
        over = _Statistics(1, block.shape[1:], groups)
        given_ = (block, scale[one], mean[one, rows], inverse[one, rows], grad[one, samples])
        steps += _gradient_steps(over, given_, (dx[one, samples], part[0], part[1]), env, frozen=False)
        steps += [partial(np.add, a[one], b, a[one]) for a, b in zip((dscale, dbias), part, strict=True)]
    return steps


def _sample_blocks(x: np.ndarray) -> list[tuple[int, slice]]:
    """Replica and samples of pieces of ``(R, N, ...)`` of about :data:`BLOCK` elements."""
    replicas, batch = x.shape[:2]
    step = max(1, BLOCK // max(x[:1, :1].size, 1))
    return [(r, slice(at, min(at + step, batch))) for r in range(replicas) for at in range(0, batch, step)]


def _gradient_steps(
    over: _Statistics, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment, frozen: bool
) -> list[Step]:
    """Steps of :func:`_gradient_kernel` on contiguous arrays of working type."""
    x, scale, mean, inverse, grad = inputs
    dx, dscale, dbias = outputs
    white = env.scratch(x.shape, x.dtype, slot=8)
    work = env.scratch(x.shape, x.dtype, slot=9)
    line = env.scratch(over.kept, x.dtype, slot=10)
    white_o, work_o, dx_o = (over.view(a) for a in (white, work, dx))
    work_c, dx_c, grad_c = (_channelwise(a) for a in (work, dx, grad))
    spread = over.spread(inverse)
    steps: list[Step] = [
        partial(np.subtract, over.view(x), over.spread(mean), white_o),
        partial(np.multiply, white_o, spread, white_o),
        partial(np.multiply, grad, white, work),
        _per_channel_sum(work_c, dscale),
        _per_channel_sum(grad_c, dbias),
        partial(np.multiply, grad_c, _per_channel(scale, grad_c), dx_c),
    ]
    if not frozen:
        steps += [
            partial(np.multiply, dx, white, work),
            *over.mean(work_o, line),
            partial(np.multiply, white_o, line, white_o),
            *over.mean(dx_o, line),
            partial(np.subtract, dx_o, line, dx_o),
            partial(np.subtract, dx_o, white_o, dx_o),
        ]
    return [*steps, partial(np.multiply, dx_o, spread, dx_o)]


def _create_gradient(
    builder: GradientBuilder, op_class: type[Op], inputs: Sequence[Tensor], **attributes: object
) -> list[Tensor]:
    """The three outputs of a normalisation's gradient op."""
    names = ["x_grad", "scale_grad", "bias_grad"]
    return builder.graph.create(op_class, inputs, names, **attributes).outputs


# -- group norm --------------------------------------------------------------------------------------------------------


class GroupNormalization(_Normalisation):
    """``(x - mean) * inv_std * scale + bias`` with statistics over ``C / num_groups`` consecutive channels of a sample.

    Inputs ``x [N, C, ...]``, ``scale [C]``, ``bias [C]``; attributes ``num_groups`` (divides C), ``epsilon``. Outputs
    ``y`` (as x), ``mean`` and ``inv_std_dev`` of shape ``[N * num_groups]`` (for the gradient only).
    """

    type = "GroupNormalization"

    @property
    def groups(self) -> int:
        """Groups of channels."""
        return int(self.attributes["num_groups"])

    def infer(self) -> list[TensorSpec]:
        """y like x, two statistics per sample and group."""
        self.check(("x", "scale", "bias"), 2)
        self.require(
            self.groups >= 1 and self.channels % self.groups == 0,
            f"num_groups={self.groups} must be at least 1 and divide the {self.channels} channels",
        )
        x = self.inputs[0]
        saved = TensorSpec((x.shape[0] * self.groups,), statistics_dtype(x.dtype))
        return [TensorSpec(x.shape, x.dtype), saved, saved]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Moments, whitening, scale and offset, a few samples at a time; in float32 for fp16."""
        bound = [contiguous(a, env, slot=i) for i, a in enumerate(inputs)]
        x, scale, bias = (array for array, _ in bound)
        (y, after), (mean, after_mean), (inverse, after_inverse) = (
            result_buffer(a, env, slot=3 + i) for i, a in enumerate(outputs)
        )
        steps: list[Step] = [step for _, fill in bound for step in fill]
        for r, samples in _sample_blocks(x):
            one, rows = slice(r, r + 1), slice(samples.start * self.groups, samples.stop * self.groups)
            block, result = x[one, samples], y[one, samples]
            over = _Statistics(1, block.shape[1:], self.groups)
            squares = env.scratch(over.form, x.dtype, slot=6)
            view, spread = over.view(result), over.spread(inverse[one, rows])
            steps += [
                *_moments(over, over.view(block), view, squares, over.spread(mean[one, rows]), spread),
                *_inverse_deviation(spread, self.epsilon, spread),
                partial(np.multiply, view, spread, view),
                *_affine(_channelwise(result), scale[one], bias[one]),
            ]
        return sequence([*steps, *after, *after_mean, *after_inverse])

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """One op for all three, from x and the saved statistics."""
        grad = self.only_y(grads)
        x, scale = (builder.forward(t) for t in self.inputs[:2])
        mean, inverse = (builder.forward(t) for t in self.outputs[1:])
        return _create_gradient(
            builder, GroupNormalizationGrad, [x, scale, mean, inverse, grad], num_groups=self.groups
        )

    def work(self) -> list[Work]:
        """lib/poplin/Norms.cpp:127-250: sums of values and squares, inverse deviation, whiten, scale, offset."""
        x = self.inputs[0].spec
        dtype, count, rows = x.dtype, x.elements, self.outputs[1].spec.elements
        if not count:
            return []
        row = count // rows
        return [
            paired_reduction(("ADD", "SQUARE_ADD"), dtype, count, rows, row),
            vertices.broadcast_scalar("VARIANCE_TO_INV_STD_DEV", dtype, rows),
            vertices.broadcast_outer("SUBTRACT", dtype, count, row),
            vertices.broadcast_outer("MULTIPLY", dtype, count, row, in_place=True),
            vertices.broadcast_inner("MULTIPLY", dtype, count, self.channels, in_place=True),
            vertices.broadcast_inner("ADD", dtype, count, self.channels, in_place=True),
        ]


class GroupNormalizationGrad(Op):
    """``(x, scale, mean, inv_std_dev, y_grad) -> (x_grad, scale_grad, bias_grad)``; attribute ``num_groups``."""

    type = "GroupNormalizationGrad"

    def infer(self) -> list[TensorSpec]:
        """x, and twice scale."""
        return _gradient_specs(self)

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """See :func:`_gradient_kernel`."""
        return _gradient_kernel(int(self.attributes["num_groups"]), inputs, outputs, env)

    def work(self) -> list[Work]:
        """See :func:`_gradient_work`."""
        x = self.inputs[0].spec
        if not x.elements:
            return [vertices.fill(x.dtype, 2 * self.inputs[1].spec.elements)]
        return _gradient_work(x.dtype, x.elements, x.shape[1], self.inputs[2].spec.elements, grouped=True)


def _gradient_specs(op: Op) -> list[TensorSpec]:
    """Specs of a normalisation gradient; the gradient of y must look like x."""
    x, scale, grad = op.inputs[0], op.inputs[1], op.inputs[4]
    op.same_dtype(x, scale, grad)
    op.require(grad.shape == x.shape, f"gradient {grad.shape} and operand {x.shape} differ in shape")
    parameter = TensorSpec(scale.shape, scale.dtype)
    return [TensorSpec(x.shape, x.dtype), parameter, parameter]


# -- batch norm --------------------------------------------------------------------------------------------------------

BATCH_OPERANDS = ("x", "scale", "bias", "running mean", "running variance")


class BatchNormalization(_Normalisation):
    """Batch norm in training, with PyTorch's rules.

    Inputs ``x [N, C, ...]``, ``scale``, ``bias``, ``running mean``, ``running variance`` (each ``[C]``); attributes
    ``epsilon``, ``momentum`` (weight of the new value, default 0.1). Outputs ``y``, the new running mean and variance
    (the caller stores them; the variance is unbiased) and, for the gradient, the batch mean and the inverse standard
    deviation (of the biased variance).
    """

    type = "BatchNormalization"

    @property
    def momentum(self) -> float:
        """Weight of the batch's statistics in the new running ones."""
        return float(self.attributes["momentum"])

    @property
    def count(self) -> int:
        """Values per channel."""
        return self.inputs[0].spec.elements // max(self.channels, 1)

    def infer(self) -> list[TensorSpec]:
        """y like x; running statistics as given, saved ones in float32 for fp16."""
        self.check(BATCH_OPERANDS, 2)
        self.attributes.setdefault("momentum", 0.1)
        if not 0 <= self.momentum <= 1:
            raise IrError(f"{self.where()}: momentum={self.momentum}; a number from 0 to 1 is needed")
        self.require(
            self.count > 1, f"training needs more than 1 value per channel; x has shape {self.inputs[0].shape}"
        )
        x, _, _, mean, variance = self.inputs
        saved = TensorSpec((self.channels,), statistics_dtype(x.dtype))
        return [TensorSpec(x.shape, x.dtype), mean.spec, variance.spec, saved, saved]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Moments, whitening, scale and offset, running statistics; in float32 for fp16."""
        bound = [contiguous(a, env, slot=i) for i, a in enumerate(inputs)]
        x, scale, bias, old_mean, old_variance = (array for array, _ in bound)
        results = [result_buffer(a, env, slot=5 + i) for i, a in enumerate(outputs)]
        y, new_mean, new_variance, mean, inverse = (array for array, _ in results)
        over = _Statistics(x.shape[0], x.shape[1:], None)
        squares = env.scratch(over.form, x.dtype, slot=10)
        variance = env.scratch(inverse.shape, inverse.dtype, slot=11)
        view, spread = over.view(y), over.spread(inverse)
        unbiased = self.momentum * self.count / (self.count - 1)
        return sequence(
            [
                *(step for _, steps in bound for step in steps),
                *_moments(over, over.view(x), view, squares, over.spread(mean), over.spread(variance)),
                *_inverse_deviation(variance, self.epsilon, inverse),
                partial(np.multiply, view, spread, view),
                *_affine(_channelwise(y), scale, bias),
                *self._running(old_mean, mean, self.momentum, new_mean, env),
                *self._running(old_variance, variance, unbiased, new_variance, env),
                *(step for _, steps in results for step in steps),
            ]
        )

    def _running(
        self, old: np.ndarray, batch: np.ndarray, weight: float, out: np.ndarray, env: Environment
    ) -> list[Step]:
        """Steps for ``(1 - momentum) * old + weight * batch``."""
        term = env.scratch(out.shape, out.dtype, slot=12)
        return [
            partial(np.multiply, batch, scalar(weight, out.dtype), term),
            partial(np.multiply, old, scalar(1 - self.momentum, out.dtype), out),
            partial(np.add, out, term, out),
        ]

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """One op for x, scale and bias; the running statistics are state, not parameters."""
        grad = self.only_y(grads)
        x, scale = (builder.forward(t) for t in self.inputs[:2])
        mean, inverse = (builder.forward(t) for t in self.outputs[3:])
        inputs = [x, scale, mean, inverse, grad]
        return [*_create_gradient(builder, BatchNormalizationGrad, inputs, frozen=False), None, None]

    def work(self) -> list[Work]:
        """PopART popx/op/batchnormx.cpp: statistics, ``scale * inv`` and ``bias - mean * scale * inv`` per channel, one
        multiplication and one addition per element, variance and running statistics per channel."""
        x = self.inputs[0].spec
        dtype, count, channels = x.dtype, x.elements, self.channels
        return [
            paired_reduction(("ADD", "SQUARE_ADD"), dtype, count, channels),
            vertices.broadcast_scalar("VARIANCE_TO_INV_STD_DEV", dtype, channels),
            *_multiply_add_work(dtype, count, channels),
            vertices.broadcast_scalar("INV_STD_DEV_TO_VARIANCE", dtype, channels),
            fused("RunningMean", dtype, channels, 2, 3),
            fused("RunningVariance", dtype, channels, 2, 3),
        ]


def _multiply_add_work(dtype: DType, count: int, channels: int) -> list[Work]:
    """Fold the statistics into one factor and one summand per channel and apply them."""
    return [
        vertices.binary("MULTIPLY", dtype, channels),
        fused("Addend", dtype, channels, 3, 2),
        vertices.broadcast_inner("MULTIPLY", dtype, count, channels),
        vertices.broadcast_inner("ADD", dtype, count, channels, in_place=True),
    ]


class BatchNormalizationGrad(Op):
    """``(x, scale, mean, inv_std_dev, y_grad) -> (x_grad, scale_grad, bias_grad)``.

    Attribute ``frozen``: the statistics were constants (inference form), so no gradient flows through them.
    """

    type = "BatchNormalizationGrad"

    def infer(self) -> list[TensorSpec]:
        """x, and twice scale."""
        return _gradient_specs(self)

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """See :func:`_gradient_kernel`."""
        return _gradient_kernel(None, inputs, outputs, env, frozen=self.attributes["frozen"])

    def work(self) -> list[Work]:
        """See :func:`_gradient_work`; PopART also converts the saved variance. Frozen: whiten, sums, scale."""
        x = self.inputs[0].spec
        dtype, count, channels = x.dtype, x.elements, x.shape[1]
        if not count:
            return [vertices.fill(dtype, 2 * channels)]
        if not self.attributes["frozen"]:
            convert = vertices.broadcast_scalar("VARIANCE_TO_INV_STD_DEV", dtype, channels)
            return [convert, *_gradient_work(dtype, count, channels, channels, grouped=False)]
        return [
            vertices.broadcast_inner("SUBTRACT", dtype, count, channels),
            vertices.broadcast_inner("MULTIPLY", dtype, count, channels, in_place=True),
            vertices.binary("MULTIPLY", dtype, count),
            paired_reduction(("ADD", "ADD"), dtype, count, channels),
            vertices.binary("MULTIPLY", dtype, channels),
            vertices.broadcast_inner("MULTIPLY", dtype, count, channels),
        ]


class BatchNormalizationInference(_Normalisation):
    """Batch norm with given statistics: ``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    Inputs as :class:`BatchNormalization`; the only output is ``y``. Upstream it is the same operation type with one
    output. The gradient (PyTorch's in ``eval`` mode; PopART has none) leaves the statistics alone.
    """

    type = "BatchNormalization"

    def infer(self) -> list[TensorSpec]:
        """Like x."""
        self.check(BATCH_OPERANDS, 2)
        return [TensorSpec(self.inputs[0].shape, self.inputs[0].dtype)]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Inverse deviation per channel, then whiten, scale and offset."""
        bound = [contiguous(a, env, slot=i) for i, a in enumerate(inputs)]
        x, scale, bias, mean, variance = (array for array, _ in bound)
        y, after = result_buffer(outputs[0], env, slot=5)
        inverse = env.scratch(variance.shape, variance.dtype, slot=6)
        source, target = _channelwise(x), _channelwise(y)
        return sequence(
            [
                *(step for _, steps in bound for step in steps),
                *_inverse_deviation(variance, self.epsilon, inverse),
                partial(np.subtract, source, _per_channel(mean, source), target),
                partial(np.multiply, inverse, scale, inverse),
                *_affine(target, inverse, bias),
                *after,
            ]
        )

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """As in training without the terms of the statistics; the inverse deviation is computed again."""
        grad = self.only_y(grads)
        x, scale, _, mean, variance = (builder.forward(t) for t in self.inputs)
        total = builder.op(ew.Add, [variance, ew.number(builder, self.epsilon, variance.dtype)])
        deviation = builder.op(unary.Sqrt, [total])
        inverse = builder.op(ew.Div, [ew.number(builder, 1, variance.dtype), deviation])
        inputs = [x, scale, mean, inverse, grad]
        return [*_create_gradient(builder, BatchNormalizationGrad, inputs, frozen=True), None, None]

    def work(self) -> list[Work]:
        """PopART popx/op/batchnormx.cpp: inverse deviation, then as in training."""
        x = self.inputs[0].spec
        if not x.elements:
            return []
        convert = vertices.broadcast_scalar("VARIANCE_TO_INV_STD_DEV", x.dtype, self.channels)
        return [convert, *_multiply_add_work(x.dtype, x.elements, self.channels)]


# -- forms that front ends use -----------------------------------------------------------------------------------------


def _parameter(graph: Graph, given: Tensor | None, value: float, channels: int, dtype: DType, name: str) -> Tensor:
    """A parameter as ``[channels]``; without one a constant, as PopTorch makes it."""
    if given is None:
        return graph.constant(np.full((channels,), value), dtype, name)
    if given.shape == (channels,):
        return given
    return graph.create(shape.Reshape, [given], [name], shape=(channels,)).outputs[0]


def group_norm(
    graph: Graph,
    x: Tensor,
    num_groups: int,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    name: str = "group_norm",
) -> Tensor:
    """``torch.nn.functional.group_norm``: y of :class:`GroupNormalization` on ``x [N, C, ...]``."""
    channels = x.shape[1] if len(x.shape) > 1 else 0
    weight = _parameter(graph, scale, 1, channels, x.dtype, f"{name}_scale")
    offset = _parameter(graph, bias, 0, channels, x.dtype, f"{name}_bias")
    names = [name, f"{name}_mean", f"{name}_inv_std_dev"]
    attributes = {"num_groups": num_groups, "epsilon": epsilon}
    return graph.create(GroupNormalization, [x, weight, offset], names, **attributes).outputs[0]


def instance_norm(
    graph: Graph,
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    name: str = "instance_norm",
) -> Tensor:
    """``torch.nn.functional.instance_norm`` with statistics of the input: one group per channel."""
    channels = x.shape[1] if len(x.shape) > 1 else 0
    return group_norm(graph, x, channels, scale, bias, epsilon, name)


def layer_norm(
    graph: Graph,
    x: Tensor,
    normalized_shape: Sequence[int],
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    name: str = "layer_norm",
) -> Tensor:
    """``torch.nn.functional.layer_norm``: x as ``[rows, elements of normalized_shape]`` in one group.

    ``scale`` and ``bias`` have ``normalized_shape``.

    Raises:
        IrError: ``normalized_shape`` is empty or not the end of x's shape.
    """
    wanted = tuple(int(n) for n in normalized_shape)
    if not wanted or x.shape[-len(wanted) :] != wanted:
        raise IrError(f"layer_norm of {x.id!r}: normalized_shape {wanted} is not the end of its shape {x.shape}")
    for what, tensor in (("scale", scale), ("bias", bias)):
        if tensor is not None and tensor.shape != wanted:
            raise IrError(f"layer_norm of {x.id!r}: {what} {tensor.id!r} has shape {tensor.shape}; {wanted} is needed")
    flat = (math.prod(x.shape[: -len(wanted)]), math.prod(wanted))
    if x.shape != flat:
        rows = graph.create(shape.Reshape, [x], [f"{name}_rows"], shape=flat).outputs[0]
        y = group_norm(graph, rows, 1, scale, bias, epsilon, name)
        return graph.create(shape.Reshape, [y], [f"{name}_shaped"], shape=x.shape).outputs[0]
    return group_norm(graph, x, 1, scale, bias, epsilon, name)
