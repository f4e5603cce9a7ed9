"""Layer norm of rows that are split over replicas (custom op of popxl-addons:
``popxl_addons/ops/layer_norm_distributed``); values as :class:`~ipuperf.ops.GroupNormalization` of the whole
rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import FLOAT32, GradientBuilder, ReplicaGrouping, TensorSpec
from ipuperf.ir.attributes import Attribute, instance

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel
from ..binding import Step, WorkingArrays, scalar
from ..transfers.collectives import check_group, over_group
from ..work import GroupCollective, Reduction, Work
from . import shared as norms


def _sum_of_rows(group: ReplicaGrouping, rows: int) -> list[Work]:
    """The all-reduce of two float32 statistics of each row; nothing in groups of one."""
    if group.group_size == 1 or not rows:
        return []
    return [GroupCollective("all_reduce", "add", 2 * rows * 4, 2 * rows, FLOAT32, group, None)]


class DistributedLayerNorm(norms.Normalisation):
    """``(x - mean) * inv_std * scale + bias`` with the mean and deviation of rows that ``group`` holds in parts.

    Operands ``x [N, H]``, ``scale [H]``, ``bias [H]``: each replica's part. Outputs ``y [N, H]``, ``mean [N]``,
    ``inv_std_dev [N]`` (for the gradient only). The two passes of the statistics take two all-reduces here. The cost
    is that of upstream's single one, which sums values and squares together.
    """

    type: ClassVar[str] = "LayerNormDistributed"
    waited_for = True

    group = Attribute(instance(ReplicaGrouping))

    def infer(self) -> list[TensorSpec]:
        """y like x, two statistics for each row."""
        self.check(("x", "scale", "bias"), 2)
        check_group(self, self.group)
        x = self.inputs[0]
        self.require(len(x.shape) == 2, f"x has shape {x.shape}; rank 2 (rows, elements) is needed")
        saved = TensorSpec(x.shape[:1], norms.statistics_dtype(x.dtype))
        return [TensorSpec(x.shape, x.dtype), saved, saved]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Mean, then the mean of the squared differences, over all parts. The remaining steps work on each part
        alone."""
        arrays = WorkingArrays(inputs, outputs, env)
        (x, scale, bias), (y, mean, inverse) = arrays.operands, arrays.results
        squares = env.scratch(x.shape, x.dtype, slot=6)
        over = partial(_mean_over_group, group=self.group, env=env)
        steps: list[Step] = [
            *over(x, mean, slot=7),
            partial(np.subtract, x, mean[..., np.newaxis], y),
            partial(np.multiply, y, y, squares),
            *over(squares, inverse, slot=8),
            *norms.inverse_deviation(inverse, self.epsilon, inverse),
            partial(np.multiply, y, inverse[..., np.newaxis], y),
            *norms.affine(y, scale, bias),
        ]
        return arrays.kernel(*steps)

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """One op for all three, from x and the saved statistics."""
        grad = self.only_y(grads)
        x, scale = (builder.forward(t) for t in self.inputs[:2])
        inputs = [x, scale, *(builder.forward(t) for t in self.outputs[1:]), grad]
        return norms.create_gradient(builder, DistributedLayerNormGrad, inputs, group=self.group)

    def work(self) -> Sequence[Work]:
        """``poplin::distributedNormStatistics``: sums of values and squares, their all-reduce, then as layer norm
        (lib/poplin/Norms.cpp)."""
        x = self.inputs[0].spec
        dtype, count, rows = x.dtype, x.elements, x.shape[0]
        if not count:
            return []
        row, piece = x.shape[1], norms.row_piece(x, rows)
        return [
            norms.joint_reduction(("ADD", "SQUARE_ADD"), dtype, count, rows, row, piece=piece),
            *_sum_of_rows(self.group, rows),
            vertices.broadcast_scalar("VARIANCE_TO_INV_STD_DEV", dtype, rows),
            vertices.broadcast_outer("SUBTRACT", dtype, count, row, reduced=True, piece=piece),
            vertices.broadcast_outer("MULTIPLY", dtype, count, row, in_place=True, reduced=True, piece=piece),
            vertices.broadcast_inner("MULTIPLY", dtype, count, row, in_place=True),
            vertices.broadcast_inner("ADD", dtype, count, row, in_place=True),
        ]


def _mean_over_group(
    rows: np.ndarray, out: np.ndarray, slot: int, group: ReplicaGrouping, env: Environment
) -> list[Step]:
    """Steps for the mean ``(R, N)`` of the rows whose parts ``(R, N, H)`` the group's members hold."""
    # Every member holds an equal part of each row.
    count = max(rows.shape[2] * group.group_size, 1)
    return [
        partial(np.add.reduce, rows, 2, None, out),
        over_group(np.add, out, group, env, slot),
        partial(np.divide, out, scalar(count, out.dtype), out),
    ]


class DistributedLayerNormGrad(norms.NormalisationGrad):
    """``(x, scale, mean, inv_std_dev, y_grad) -> (x_grad, scale_grad, bias_grad)``; attribute ``group``."""

    type: ClassVar[str] = "LayerNormDistributedGrad"
    waited_for = True

    group = Attribute(instance(ReplicaGrouping))

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """With ``h`` the whitened operand and ``d = g * scale``: ``inv * (d - mean(d) - h * mean(d * h))``, means over
        whole rows."""
        arrays = WorkingArrays(inputs, outputs, env)
        (x, scale, mean, inverse, grad), (dx, dscale, dbias) = arrays.operands, arrays.results
        white, work = (env.scratch(x.shape, x.dtype, slot) for slot in (8, 9))
        mean_of_products, mean_of_grads = (env.scratch(mean.shape, x.dtype, slot) for slot in (10, 11))
        over: Callable[..., list[Step]] = partial(_mean_over_group, group=self.group, env=env)
        steps: list[Step] = [
            partial(np.subtract, x, mean[..., np.newaxis], white),
            partial(np.multiply, white, inverse[..., np.newaxis], white),
            partial(np.multiply, grad, white, work),
            # Scale and offset are parts as well, so their gradients need no exchange.
            partial(np.add.reduce, work, 1, None, dscale),
            partial(np.add.reduce, grad, 1, None, dbias),
            partial(np.multiply, grad, scale[:, np.newaxis], dx),
            partial(np.multiply, dx, white, work),
            *over(work, mean_of_products, slot=12),
            *over(dx, mean_of_grads, slot=13),
            partial(np.multiply, white, mean_of_products[..., np.newaxis], white),
            partial(np.subtract, dx, mean_of_grads[..., np.newaxis], dx),
            partial(np.subtract, dx, white, dx),
            partial(np.multiply, dx, inverse[..., np.newaxis], dx),
        ]
        return arrays.kernel(*steps)

    def work(self) -> Sequence[Work]:
        """``poplin::distributedNormStatisticsGradients`` and ``groupNormParamGradients``: layer norm's gradient with an
        all-reduce of the two sums of each row."""
        x = self.inputs[0].spec
        if not x.elements:
            return [vertices.fill(x.dtype, 2 * self.inputs[1].spec.elements)]
        rows, piece = x.shape[0], norms.row_piece(x, x.shape[0])
        works = norms.gradient_work(x.dtype, x.elements, x.shape[1], rows, grouped=True, piece=piece)
        # The sums over rows are the last reduction of layer
        # norm's gradient; their all-reduce follows it.
        last_sum = max(position for position, part in enumerate(works) if isinstance(part, Reduction)) + 1
        return [*works[:last_sum], *_sum_of_rows(self.group, x.shape[0]), *works[last_sum:]]
