"""Batch normalisation (PopART ``willow/src/op/batchnorm.cpp``), see :mod:`~ipuperf.ops.norms.shared`.

The inverse standard deviation is saved; PopART saves the variance and converts it back.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ipuperf.ir import DType, GradientBuilder, IrError, ReplicaGrouping, TensorSpec
from ipuperf.ir.attributes import FLAG, NUMBER, Attribute, instance, optional

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel
from ..binding import Step, WorkingArrays, scalar
from ..elementwise import arithmetic as ew
from ..elementwise import unary
from ..transfers.collectives import check_group
from ..work import Work
from . import shared as norms

BATCH_OPERANDS = ("x", "scale", "bias", "running mean", "running variance")


class BatchNormalization(norms.Normalisation):
    """Batch norm in training, with PyTorch's rules.

    Inputs ``x [N, C, ...]``, ``scale``, ``bias``, ``running mean``, ``running variance`` (each ``[C]``; for float16
    ``x`` they may be float32). Outputs: ``y``; the new running mean and variance, which the caller stores (the
    variance is unbiased, and 0 for a single value); for the gradient, the batch mean and the inverse standard
    deviation (of the biased variance).

    Attributes:
        epsilon: added to the variance.
        momentum: weight of the new value (default 0.1).
        group: replicas whose samples share the statistics, as in ``popnn::bn::distributedBatchNormStatistics``; None:
            each replica has its own.
        stable: the variance is computed from centred values, which costs a further pass.
    """

    replaced = {3: 1, 4: 2}  # noqa: RUF012  # as declared

    momentum = Attribute(NUMBER, 0.1)
    group = Attribute(optional(instance(ReplicaGrouping)), None)
    stable = Attribute(FLAG, False)

    def movable(self) -> bool:
        """False where other replicas wait for it."""
        return self.group is None and super().movable()

    @property
    def count(self) -> int:
        """Values per channel, over all replicas that share the channel's statistics."""
        members = 1 if self.group is None else self.group.group_size
        return self.inputs[0].spec.elements // max(self.channels, 1) * members

    def infer(self) -> list[TensorSpec]:
        """y like x, running statistics like the given ones, saved ones in float32 for fp16."""
        # No parameter has to share the type of x: all may be float32 beside float16.
        self.check(BATCH_OPERANDS, 0)
        if self.group is not None:
            check_group(self, self.group)
        if not 0 <= self.momentum <= 1:
            raise IrError(f"{self.where()}: momentum={self.momentum}; a number from 0 to 1 is needed")
        x, _, _, mean, variance = self.inputs
        saved = TensorSpec((self.channels,), norms.statistics_dtype(x.dtype))
        return [TensorSpec(x.shape, x.dtype), mean.spec, variance.spec, saved, saved]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Moments, whitening, scale and offset, running statistics; fp16 is computed in float32."""
        arrays = WorkingArrays(inputs, outputs, env)
        x, scale, bias, old_mean, old_variance = arrays.operands
        y, new_mean, new_variance, mean, inverse = arrays.results
        over = norms.Statistics(x.shape[0], x.shape[1:], None, self.group)
        squares = env.scratch(over.form, x.dtype, slot=10)
        variance = env.scratch(inverse.shape, inverse.dtype, slot=11)
        view, spread = over.view(y), over.spread(inverse)
        # The batch variance is biased, so its weight has
        # the factor n / (n - 1) of the unbiased one.
        unbiased = self.momentum * self.count / max(self.count - 1, 1)
        return arrays.kernel(
            *norms.moments(over, over.view(x), view, squares, over.spread(mean), over.spread(variance), env),
            *norms.inverse_deviation(variance, self.epsilon, inverse),
            partial(np.multiply, view, spread, view),
            *norms.affine(norms.channelwise(y), scale, bias),
            *self._running(old_mean, mean, self.momentum, new_mean, env),
            *self._running(old_variance, variance, unbiased, new_variance, env),
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

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """One op for x, scale and bias. The running statistics are state, not parameters, and have none."""
        grad = self.only_y(grads)
        x, scale = (builder.forward(t) for t in self.inputs[:2])
        mean, inverse = (builder.forward(t) for t in self.outputs[3:])
        inputs = [x, scale, mean, inverse, grad]
        return [
            *norms.create_gradient(builder, BatchNormalizationGrad, inputs, frozen=False, group=self.group),
            None,
            None,
        ]

    def work(self) -> list[Work]:
        """PopART popx/op/batchnormx.cpp: statistics, ``scale * inv`` and ``bias - mean * scale * inv`` per channel, one
        multiplication and one addition per element, variance and running statistics per channel."""
        x = self.inputs[0].spec
        dtype, count, channels = x.dtype, x.elements, self.channels
        reads = (count, *[2 * channels] * (len(self.inputs) - 1))  # about two tiles for each channel
        return [
            *norms.statistics_work(
                partial(norms.channel_sums, dtype=dtype, count=count, channels=channels),
                vertices.broadcast_inner("SUBTRACT", dtype, count, channels, reduced=True),
                dtype,
                self.stable,
                partial(norms.sums_over, self.group, channels),
            ),
            replace(vertices.broadcast_scalar("VARIANCE_TO_INV_STD_DEV", dtype, channels), operands=reads),
            *_multiply_add_work(dtype, count, channels, reduced=True),
            vertices.broadcast_scalar("INV_STD_DEV_TO_VARIANCE", dtype, channels),
            norms.fused("RunningMean", dtype, channels, 2, 3),
            norms.fused("RunningVariance", dtype, channels, 2, 3),
        ]


def _multiply_add_work(dtype: DType, count: int, channels: int, *, reduced: bool = False) -> list[Work]:
    """Combine the statistics into one factor and one summand per channel, and apply them. ``reduced``: the
    statistics were computed in the same op."""
    return [
        vertices.binary("MULTIPLY", dtype, channels),
        norms.fused("Addend", dtype, channels, 3, 2),
        vertices.broadcast_inner("MULTIPLY", dtype, count, channels, reduced=reduced),
        vertices.broadcast_inner("ADD", dtype, count, channels, in_place=True, reduced=reduced),
    ]


class BatchNormalizationGrad(norms.NormalisationGrad):
    """``(x, scale, mean, inv_std_dev, y_grad) -> (x_grad, scale_grad, bias_grad)``.

    Attributes ``frozen``: the statistics were constants (inference form), so no gradient flows through them;
    ``group``: that of the forward op.
    """

    mixed = True

    frozen = Attribute(FLAG)
    group = Attribute(optional(instance(ReplicaGrouping)), None)

    def movable(self) -> bool:
        """False where other replicas wait for it."""
        return self.group is None and super().movable()

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """See :func:`.gradient_kernel`."""
        return norms.gradient_kernel(None, inputs, outputs, env, frozen=self.frozen, shared=self.group)

    def work(self) -> list[Work]:
        """See :func:`.gradient_work`; PopART also converts the saved variance. Frozen: whiten, sums, scale."""
        x = self.inputs[0].spec
        dtype, count, channels = x.dtype, x.elements, x.shape[1]
        if not count:
            return [vertices.fill(dtype, 2 * channels)]
        # PopART saves the variance and converts it; here the
        # inverse deviation is saved, but the cost is charged.
        if not self.frozen:
            convert = vertices.broadcast_scalar("VARIANCE_TO_INV_STD_DEV", dtype, channels)
            work = norms.gradient_work(dtype, count, channels, channels, grouped=False, group=self.group)
            return [replace(convert, operands=()), *work]
        # About two tiles read each channel's values.
        reads = (count, *[2 * channels] * 3, count)
        return [
            replace(vertices.broadcast_inner("SUBTRACT", dtype, count, channels), operands=reads),
            vertices.broadcast_inner("MULTIPLY", dtype, count, channels, in_place=True),
            vertices.binary("MULTIPLY", dtype, count),
            norms.channel_sums(("ADD", "ADD"), dtype, count, channels),
            vertices.binary("MULTIPLY", dtype, channels),
            vertices.broadcast_inner("MULTIPLY", dtype, count, channels),
        ]


class BatchNormalizationInference(norms.Normalisation):
    """Batch norm with given statistics: ``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    Inputs as in :class:`BatchNormalization`; the only output is ``y``. Upstream it is the same operation type with one
    output. As in PyTorch's ``eval`` mode, the statistics have no gradient; PopART has no gradient of this op.
    """

    type = "BatchNormalization"

    def infer(self) -> list[TensorSpec]:
        """Like x."""
        self.check(BATCH_OPERANDS, 2)
        return [TensorSpec(self.inputs[0].shape, self.inputs[0].dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Inverse deviation per channel, then whiten, scale and offset."""
        arrays = WorkingArrays(inputs, outputs, env)
        (x, scale, bias, mean, variance), (y,) = arrays.operands, arrays.results
        inverse = env.scratch(variance.shape, variance.dtype, slot=6)
        source, target = norms.channelwise(x), norms.channelwise(y)
        return arrays.kernel(
            *norms.inverse_deviation(variance, self.epsilon, inverse),
            partial(np.subtract, source, norms.per_channel(mean, source), target),
            # Both factors are per channel, so they are
            # combined before the elements are touched.
            partial(np.multiply, inverse, scale, inverse),
            *norms.affine(target, inverse, bias),
        )

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """As in training, without the terms of the statistics. The inverse deviation is computed again."""
        grad = self.only_y(grads)
        x, scale, _, mean, variance = (builder.forward(t) for t in self.inputs)
        # The statistics are operands here, so no inverse deviation was saved.
        total = builder.op(ew.Add, [variance, ew.number(builder, self.epsilon, variance.dtype)])
        deviation = builder.op(unary.Sqrt, [total])
        inverse = builder.op(ew.Div, [ew.number(builder, 1, variance.dtype), deviation])
        inputs = [x, scale, mean, inverse, grad]
        return [*norms.create_gradient(builder, BatchNormalizationGrad, inputs, frozen=True), None, None]

    def work(self) -> list[Work]:
        """PopART popx/op/batchnormx.cpp: inverse deviation, then as in training."""
        x = self.inputs[0].spec
        if not x.elements:
            return []
        convert = vertices.broadcast_scalar("VARIANCE_TO_INV_STD_DEV", x.dtype, self.channels)
        return [convert, *_multiply_add_work(x.dtype, x.elements, self.channels)]
