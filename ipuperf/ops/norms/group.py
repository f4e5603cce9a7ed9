"""Group normalisation (PopART ``willow/src/op/groupnorm.cpp``). Layer norm is group norm with one group; instance
norm has one group per channel. See :mod:`~ipuperf.ops.norms.shared`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, Attribute

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel
from ..binding import Step, WorkingArrays, sequence
from ..work import Work
from . import shared as norms


def _strided_kernel(
    kernel: Callable[[Arrays, Arrays], Kernel],
    inputs: Arrays,
    outputs: Arrays,
    statistics: tuple[Collection[int], Collection[int]],
    groups: int,
    env: Environment,
) -> Kernel:
    """Run ``kernel``, which expects consecutive groups, on strided ones.

    Channels are brought into the order of the groups before, and the results back into their own order after it.
    ``statistics``: the inputs and the outputs that have no channels.
    """
    channels = inputs[0].shape[2]
    # Channel c belongs to group c mod groups; the transposed grid lists them group by group.
    order = np.arange(channels).reshape(channels // groups, groups).T.ravel()
    steps: list[Step] = []
    operands, results = list(inputs), list(outputs)
    for i, array in enumerate(inputs):
        if i not in statistics[0]:
            operands[i] = env.scratch(array.shape, array.dtype, 20 + i)
            steps.append(partial(np.take, array, order, 1 if array.ndim == 2 else 2, operands[i]))
    back: list[Step] = []
    for i, array in enumerate(outputs):
        if i not in statistics[1]:
            results[i] = env.scratch(array.shape, array.dtype, 30 + i)
            # Writing to these places reverses the gathering.
            places = (slice(None), order) if array.ndim == 2 else (slice(None), slice(None), order)
            back.append(partial(array.__setitem__, places, results[i]))
    return sequence(*steps, kernel(operands, results), *back)


def _lanes(groups: int, strided: bool, shape: tuple[int, ...]) -> int:
    """Groups whose statistics neighbouring channels take in turn, as the lanes of a vector; 0 where neighbours share
    theirs.

    Groups of one channel each are strided groups too: PopLibs regroups both to the same tensor
    (``lib/popnn/GroupNorm.cpp`` groupActs). A single group has no lanes.
    """
    alone = len(shape) > 2 and groups == shape[1]
    return groups if groups > 1 and (strided or alone) else 0


class GroupNormalization(norms.Normalisation):
    """``(x - mean) * inv_std * scale + bias`` with statistics over ``C / num_groups`` channels of a sample.

    Inputs ``x [N, C, ...]``, ``scale [C]``, ``bias [C]``. Outputs ``y`` (as x), ``mean`` and ``inv_std_dev`` of shape
    ``[N * num_groups]`` (for the gradient only).

    Attributes:
        num_groups: divides C.
        epsilon: added to the variance.
        strided: a group has every ``num_groups``-th channel instead of consecutive ones (``lib/popnn/GroupNorm.cpp``
            ``groupNormStridedChannelGrouping``). Halves in multiples of four groups are faster so, as neighbours differ
            in their statistics like the lanes of a vector.
        stable: the variance is computed from centred values, which costs a further pass.
    """

    num_groups = Attribute(INTEGER)
    strided = Attribute(FLAG, False)
    stable = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """y like x, two statistics per sample and group."""
        self.check(("x", "scale", "bias"), 2)
        self.require(
            self.num_groups >= 1 and self.channels % self.num_groups == 0,
            f"num_groups={self.num_groups} must be at least 1 and divide the {self.channels} channels",
        )
        x = self.inputs[0]
        saved = TensorSpec((x.shape[0] * self.num_groups,), norms.statistics_dtype(x.dtype))
        return [TensorSpec(x.shape, x.dtype), saved, saved]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Statistics of rows, whiten, scale and offset. Strided groups are gathered before and put back after."""
        if not self.strided:
            return self._consecutive(inputs, outputs, env)
        kernel = partial(self._consecutive, env=env)
        return _strided_kernel(kernel, inputs, outputs, ((), (1, 2)), self.num_groups, env)

    def _consecutive(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Moments, whitening, scale and offset, a few samples at a time; fp16 is computed in float32."""
        arrays = WorkingArrays(inputs, outputs, env)
        (x, scale, bias), (y, mean, inverse) = arrays.operands, arrays.results
        steps: list[Step] = []
        for r, samples in norms.sample_blocks(x):
            replica, rows = slice(r, r + 1), slice(samples.start * self.num_groups, samples.stop * self.num_groups)
            block, result = x[replica, samples], y[replica, samples]
            over = norms.Statistics(1, block.shape[1:], self.num_groups)
            squares = env.scratch(over.form, x.dtype, slot=6)
            # The result serves as memory for the centred values until they are whitened.
            view, spread = over.view(result), over.spread(inverse[replica, rows])
            steps += [
                *norms.moments(over, over.view(block), view, squares, over.spread(mean[replica, rows]), spread),
                *norms.inverse_deviation(spread, self.epsilon, spread),
                partial(np.multiply, view, spread, view),
                *norms.affine(norms.channelwise(result), scale[replica], bias[replica]),
            ]
        return arrays.kernel(*steps)

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """One op for all three gradients, from x and the saved statistics."""
        grad = self.only_y(grads)
        x, scale = (builder.forward(t) for t in self.inputs[:2])
        mean, inverse = (builder.forward(t) for t in self.outputs[1:])
        inputs = [x, scale, mean, inverse, grad]
        attributes = {"num_groups": self.num_groups, "strided": self.strided}
        return norms.create_gradient(builder, GroupNormalizationGrad, inputs, **attributes)

    def work(self) -> list[Work]:
        """lib/poplin/Norms.cpp:127-250: sums of values and squares, inverse deviation, whiten, scale, offset."""
        x = self.inputs[0].spec
        dtype, count, rows = x.dtype, x.elements, self.outputs[1].spec.elements
        if not count:
            return []
        row = count // rows
        if lanes := _lanes(self.num_groups, self.strided, x.shape):
            spread = partial(vertices.broadcast_inner, dtype=dtype, elements=count, row=lanes, reduced=True)
            sums = partial(norms.channel_sums, dtype=dtype, count=count, channels=rows)
        else:
            piece = norms.row_piece(x, rows)
            spread = partial(vertices.broadcast_outer, dtype=dtype, elements=count, row=row, reduced=True, piece=piece)
            sums = partial(norms.joint_reduction, dtype=dtype, inputs=count, outputs=rows, run=row, piece=piece)
        return [
            *norms.statistics_work(sums, spread("SUBTRACT"), dtype, self.stable),
            vertices.broadcast_scalar("VARIANCE_TO_INV_STD_DEV", dtype, rows),
            spread("SUBTRACT"),
            spread("MULTIPLY", in_place=True),
            vertices.broadcast_inner("MULTIPLY", dtype, count, self.channels, in_place=True),
            vertices.broadcast_inner("ADD", dtype, count, self.channels, in_place=True),
        ]


class GroupNormalizationGrad(norms.NormalisationGrad):
    """``(x, scale, mean, inv_std_dev, y_grad) -> (x_grad, scale_grad, bias_grad)``; attributes of the forward op."""

    num_groups = Attribute(INTEGER)
    strided = Attribute(FLAG, False)

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """See :func:`.gradient_kernel`. Strided groups are gathered before and put back after."""
        if not self.strided:
            return norms.gradient_kernel(self.num_groups, inputs, outputs, env)
        kernel = partial(norms.gradient_kernel, self.num_groups, env=env)
        return _strided_kernel(kernel, inputs, outputs, ((2, 3), ()), self.num_groups, env)

    def work(self) -> list[Work]:
        """See :func:`.gradient_work`."""
        x = self.inputs[0].spec
        if not x.elements:
            return [vertices.fill(x.dtype, 2 * self.inputs[1].spec.elements)]
        lanes = _lanes(self.num_groups, self.strided, x.shape)
        statistics = self.inputs[2].spec.elements
        piece = norms.row_piece(x, statistics)
        return norms.gradient_work(x.dtype, x.elements, x.shape[1], statistics, grouped=True, lanes=lanes, piece=piece)
