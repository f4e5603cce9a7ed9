"""What group and batch normalisation share: rules, statistics, gradients, costs.

Upstream: ``popnn::gn`` / ``popnn::bn`` (``lib/poplin/Norms.cpp``), onto which PopART lowers both. There are two
intended differences from upstream:

* Statistics are computed in two passes, whether or not they should be ``stable`` (PopART's ``enableStableNorm``,
  TensorFlow's ``use_stable_statistics``). The cost follows the option.
* Saved statistics are float32 for fp16 operands (PopART's have the operand's type).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ipuperf.ir import (
    FLOAT16,
    FLOAT32,
    DType,
    DTypeError,
    GradientBuilder,
    IrError,
    ReplicaGrouping,
    Tensor,
    TensorSpec,
)
from ipuperf.ir.attributes import NUMBER, Attribute

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import Step, WorkingArrays, scalar
from ..transfers.collectives import over_group
from ..work import GroupCollective, Reduction, Vertices, Work

if TYPE_CHECKING:
    from ipuperf.machine import Chip


def statistics_dtype(dtype: DType) -> DType:
    """Type of saved statistics: float32 for float16, otherwise the operand's type."""
    return FLOAT32 if dtype == FLOAT16 else dtype


#: Elements of the pieces in which group norm runs, so that intermediates stay in the level-2 cache.
BLOCK = 1 << 16

# -- cost --------------------------------------------------------------------------------------------------------------


def joint_reduction(
    names: Sequence[str], dtype: DType, inputs: int, outputs: int, run: int = 1, together: int = 1, piece: int = 0
) -> Reduction:
    """Reductions of equal shape in the same compute sets (``popops::reduceMany``, lib/poplin/Norms.cpp:127-250).

    ``run`` and ``together`` are as in :class:`~ipuperf.ops.work.Reduction`, ``piece`` as in
    :func:`.vertices.reduction`.
    """
    reductions = [vertices.reduction(name, dtype, inputs, outputs, piece=piece) for name in names]
    return Reduction(
        f"popops::Reduce<{'+'.join(names)},{vertices.poplar_type(dtype)}>",
        inputs,
        len(reductions) * outputs,
        dtype,
        lambda count, chip: np.sum([reduction.cycles(count, chip) for reduction in reductions], axis=0),
        sum(reduction.flops for reduction in reductions),
        run=run,
        together=together,
    )


def channel_sums(names: Sequence[str], dtype: DType, count: int, channels: int) -> Reduction:
    """:func:`joint_reduction` of ``count`` elements to one sum for each channel.

    The elements lie as convolutions leave them: in groupings of channels (16 halves or 8 floats, or a divisor of the
    channels) one after the other, so that a tile has few channels.
    """
    # 32 bytes are a grouping of channels; fewer where that does not divide the channels.
    together = math.gcd(32 // dtype.size, channels)
    return joint_reduction(names, dtype, count, channels, count // max(1, channels), together)


def image_sums(name: str, spec: TensorSpec) -> Reduction:
    """Reduction of the spatial axes of ``(N, C, *spatial)``, whose elements lie as in :func:`channel_sums`."""
    outputs = math.prod(spec.shape[:2])
    together = math.gcd(32 // spec.dtype.size, spec.shape[1])
    return joint_reduction([name], spec.dtype, spec.elements, outputs, spec.elements // max(1, outputs), together)


def sums_over(group: ReplicaGrouping | None, statistics: int, dtypes: Sequence[DType]) -> list[Work]:
    """The all-reduce of sums over the replicas that share statistics; none for one replica.

    Each of ``statistics`` has one sum of each of ``dtypes``. They are reduced at the same time whatever their types
    (lib/poplin/Norms.cpp calls its ``reduceCallback`` with both; tensorflow:
    compiler/plugin/poplar/driver/ops/custom_ops/popnn/norm.cc GetDistributedNormReduceCallback).
    """
    if group is None or group.group_size == 1 or not statistics:
        return []
    # One collective carries all sums; it is charged with the wider type.
    wide = max(dtypes, key=lambda dtype: dtype.size)
    size = sum(dtype.size for dtype in dtypes) * statistics
    return [GroupCollective("all_reduce", "add", size, len(dtypes) * statistics, wide, group, None)]


def statistics_work(
    sums: Callable[[Sequence[str]], Reduction],
    centre: Vertices,
    dtype: DType,
    stable: bool,
    shared: Callable[[Sequence[DType]], list[Work]] = lambda dtypes: [],
) -> list[Work]:
    """Sums of values and of squares, which are then ``shared`` between a group of replicas (:func:`sums_over`).

    Both are made in the same compute sets. For ``stable`` statistics the mean comes first; it is subtracted from a
    copy of the values (``centre``) before they are squared (lib/poplin/Norms.cpp, ``normStatisticsImpl``).
    """
    # One pass over the data gives both sums.
    if not stable:
        return [sums(("ADD", "SQUARE_ADD")), *shared((dtype, statistics_dtype(dtype)))]
    mean, power = shared((dtype,)), shared((statistics_dtype(dtype),))
    return [sums(("ADD",)), *mean, centre, sums(("SQUARE_ADD",)), *power]


def fused(name: str, dtype: DType, elements: int, operands: int, operations: int) -> Vertices:
    """A generated expression vertex (lib/popops/ExpressionGenerator.cpp:320-335): ``20 + operands * (m // v + m mod v)
    * operations`` per worker. The estimate is upstream's guess, hence low confidence."""

    def thread(m: vertices.Counts, chip: Chip) -> vertices.Counts:
        vector = vertices.vector_width(dtype, chip)
        return 20 + operands * (m // vector + m % vector) * operations

    vertex = f"popops::map::{name}<{vertices.poplar_type(dtype)}>"
    cycles = vertices.tile_cycles(thread, 0)
    return Vertices(vertex, elements, cycles, operations * elements, low_confidence=True)


def row_piece(spec: TensorSpec, statistics: int) -> int:
    """Neighbours with the same statistics among elements ``(N, C, ...)`` that lie in groupings of channels as in
    :func:`channel_sums`. 0 where they are whole rows (images whose groups have whole groupings)."""
    width, grouping = spec.shape[0] * spec.shape[1] // max(1, statistics), 32 // spec.dtype.size
    return min(width, grouping) if len(spec.shape) == 2 or width < grouping else 0


def gradient_work(
    dtype: DType,
    count: int,
    channels: int,
    statistics: int,
    grouped: bool,
    group: ReplicaGrouping | None = None,
    lanes: int = 0,
    piece: int = 0,
) -> list[Work]:
    """Whitening, gradients of the parameters, gradient of the operand (lib/poplin/Norms.cpp).

    ``group``: replicas that share the statistics; their two sums are all-reduced, the sums of the parameters are not.
    ``lanes``: groups of a group norm whose statistics neighbouring channels take in turn, 0 for others. ``piece``: see
    :func:`row_piece`.

    ``statistics`` values are spread over rows (group norm) or over channels (batch norm). About two tiles read each
    element of the operands (x, scale, mean, inverse deviation, gradient). All tiles read the scale of a group norm,
    whose rows hold every channel.
    """
    row = count // max(statistics, 1)
    reads = (count, count if grouped else 2 * channels, 2 * statistics, 2 * statistics, count)

    def spread(name: str, in_place: bool, reduced: bool = False) -> Vertices:
        if lanes:
            return vertices.broadcast_inner(name, dtype, count, lanes, in_place=in_place, reduced=reduced)
        if grouped:
            return vertices.broadcast_outer(name, dtype, count, row, in_place=in_place, reduced=reduced, piece=piece)
        return vertices.broadcast_inner(name, dtype, count, channels, in_place=in_place, reduced=reduced)

    def sums(outputs: int, run: int, piece: int = 0) -> Reduction:
        if lanes:
            return channel_sums(("ADD", "ADD"), dtype, count, outputs)
        if grouped:
            return joint_reduction(("ADD", "ADD"), dtype, count, outputs, run, piece=piece)
        return channel_sums(("ADD", "ADD"), dtype, count, channels)

    return [
        replace(spread("SUBTRACT", False), operands=reads),
        spread("MULTIPLY", True),
        vertices.binary("MULTIPLY", dtype, count),
        sums(channels, 1),
        vertices.broadcast_inner("MULTIPLY", dtype, count, channels),
        vertices.binary("MULTIPLY", dtype, count),
        sums(statistics, row, piece),
        *sums_over(group, statistics, (dtype, dtype)),
        spread("MULTIPLY", True, reduced=True),
        vertices.binary("ADD", dtype, count, in_place=True),
        spread("ADD", True, reduced=True),
        spread("MULTIPLY", True),
    ]


# -- shared rules and arrays -------------------------------------------------------------------------------------------


class Normalisation(Op, abstract=True):
    """Base: operands ``x [N, C, ...]``, ``scale [C]``, ``bias [C]``, ...; attribute ``epsilon``."""

    epsilon = Attribute(NUMBER, 1e-5)

    @property
    def channels(self) -> int:
        """Length of axis 1."""
        return self.inputs[0].shape[1]

    def check(self, names: Sequence[str], parameters: int) -> None:
        """Check operands: ``parameters`` tensors after x have its type and one element per channel. The remaining
        ones (running statistics) may also be float32."""
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
        if not self.epsilon >= 0:
            raise IrError(f"{self.where()}: epsilon={self.epsilon}; a number of at least 0 is needed")

    def only_y(self, grads: Gradients) -> Tensor:
        """The gradient of y; saved and running statistics have no gradient."""
        for tensor, grad in zip(self.outputs[1:], grads[1:], strict=True):
            if grad is not None:
                raise IrError(f"{self.where()}: {tensor.id!r} is a statistic and cannot be differentiated; use y only")
        if grads[0] is None:
            raise IrError(f"{self.where()}: no gradient of y is given")
        return grads[0]


def channelwise(array: np.ndarray) -> np.ndarray:
    """``(R, N, C, ...)`` as ``(R, N, C, S)``, or ``(R, N, C)`` without further axes."""
    if array.ndim == 3:
        return array
    return array.reshape(*array.shape[:3], math.prod(array.shape[3:]))


def per_channel(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    """``(R, C)`` to broadcast against :func:`channelwise` arrays."""
    return array.reshape(array.shape[0], 1, array.shape[1], *([1] * (like.ndim - 3)))


def _per_channel_sum(array: np.ndarray, out: np.ndarray) -> Step:
    """Sum a :func:`channelwise` array over all but replicas and channels into ``(R, C)``."""
    return partial(np.add.reduce, array, (1, 3) if array.ndim == 4 else 1, None, out)


class Statistics:
    """Which elements share a mean: rows of ``M`` elements (group norm) or channels (batch norm). Channels may be
    shared by all replicas of a ``shared`` group.

    ``view`` gives the array that is reduced over ``axes``, ``spread`` the statistics to broadcast against it.
    """

    def __init__(
        self, replicas: int, x_shape: Sequence[int], groups: int | None, shared: ReplicaGrouping | None = None
    ) -> None:
        batch, channels, *spatial = x_shape
        self.replicas = replicas
        self.shared = shared
        if groups is None:
            self.form: tuple[int, ...] = (replicas, batch, channels, math.prod(spatial))
            self.spread_shape: tuple[int, ...] = (replicas, 1, channels, 1)
            self.axes: tuple[int, ...] = (1, 3)
            self.count = batch * math.prod(spatial)
        else:
            self.count = channels // groups * math.prod(spatial)
            # Channels of a group are neighbours, so a group of a sample is one row.
            self.form = (replicas, batch * groups, self.count)
            self.spread_shape = (replicas, batch * groups, 1)
            self.axes = (2,)

    def view(self, array: np.ndarray) -> np.ndarray:
        """A contiguous ``(R, *x.shape)`` array in the form that is reduced."""
        return array.reshape(self.form)

    def spread(self, statistics: np.ndarray) -> np.ndarray:
        """``(R, statistics)`` with axes of length 1."""
        return statistics.reshape(self.spread_shape)

    def mean(self, array: np.ndarray, out: np.ndarray, env: Environment | None = None) -> list[Step]:
        """Steps that average ``array`` (in :attr:`form`) into ``out`` (in :attr:`spread_shape`). Shared statistics
        need ``env``."""
        steps: list[Step] = [partial(np.add.reduce, array, self.axes, None, out, True)]
        count = self.count
        if self.shared is not None and env is not None:
            # Every replica adds up its own part before
            # the group does, so only sums are exchanged.
            steps.append(over_group(np.add, out, self.shared, env, slot=13))
            # The group's members hold equal shares, so
            # the count is that of one times their number.
            count *= self.shared.group_size
        # Statistics of no elements are 0 rather than an error.
        return [*steps, partial(np.divide, out, scalar(max(count, 1), out.dtype), out)]


def moments(
    over: Statistics,
    x: np.ndarray,
    centred: np.ndarray,
    squares: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    env: Environment | None = None,
) -> list[Step]:
    """Steps for the mean and the biased variance, and ``x - mean``; all in the forms of ``over``."""
    return [
        *over.mean(x, mean, env),
        partial(np.subtract, x, mean, centred),
        partial(np.multiply, centred, centred, squares),
        # The second pass works on centred values, which
        # loses no digits where the mean is large.
        *over.mean(squares, variance, env),
    ]


def inverse_deviation(variance: np.ndarray, epsilon: float, out: np.ndarray) -> list[Step]:
    """Steps for ``1 / sqrt(variance + epsilon)``."""
    return [
        partial(np.add, variance, scalar(epsilon, out.dtype), out),
        # NumPy has no reciprocal square root.
        partial(np.sqrt, out, out),
        partial(np.reciprocal, out, out),
    ]


def affine(y: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> list[Step]:
    """Steps for ``y = y * scale + bias`` per channel; ``y`` as :func:`channelwise`."""
    return [
        partial(np.multiply, y, per_channel(scale, y), y),
        partial(np.add, y, per_channel(bias, y), y),
    ]


def gradient_kernel(
    groups: int | None,
    inputs: Arrays,
    outputs: Arrays,
    env: Environment,
    frozen: bool = False,
    shared: ReplicaGrouping | None = None,
) -> Kernel:
    """Gradients of x, scale and bias from ``x, scale, mean, inverse deviation, gradient of y``; ``shared``: the
    replicas that share these statistics.

    With ``h`` the whitened operand and ``d = g * scale``: ``inv * (d - mean(d) - h * mean(d * h))``; when the
    statistics are ``frozen`` (constants) ``inv * d``.
    """
    arrays = WorkingArrays(inputs, outputs, env)
    # Group norm needs only one sample at a time, batch norm all of them.
    if groups is not None:
        return arrays.kernel(*_gradient_by_samples(groups, arrays.operands, arrays.results, env))
    x = arrays.operands[0]
    over = Statistics(len(x), x.shape[1:], None, shared)
    return arrays.kernel(*_gradient_steps(over, arrays.operands, arrays.results, env, frozen))


def _gradient_by_samples(groups: int, inputs: Arrays, outputs: Arrays, env: Environment) -> list[Step]:
    """The steps for a few samples at a time, so that intermediates stay in cache. The parameters' gradients are
    added up."""
    x, scale, mean, inverse, grad = inputs
    dx, dscale, dbias = outputs
    # The parameters' gradients of one block, which are then added to the whole ones.
    part = env.scratch((2, 1, x.shape[2]), x.dtype, slot=11)
    steps: list[Step] = [partial(dscale.fill, 0), partial(dbias.fill, 0)]
    for r, samples in sample_blocks(x):
        replica, rows = slice(r, r + 1), slice(samples.start * groups, samples.stop * groups)
        block = x[replica, samples]
        over = Statistics(1, block.shape[1:], groups)
        operands = (block, scale[replica], mean[replica, rows], inverse[replica, rows], grad[replica, samples])
        steps += _gradient_steps(over, operands, (dx[replica, samples], part[0], part[1]), env, frozen=False)
        steps += [partial(np.add, a[replica], b, a[replica]) for a, b in zip((dscale, dbias), part, strict=True)]
    return steps


def sample_blocks(x: np.ndarray) -> list[tuple[int, slice]]:
    """Replica and samples of pieces of ``(R, N, ...)`` of about :data:`BLOCK` elements."""
    replicas, batch = x.shape[:2]
    # At least one sample, however large it is.
    step = max(1, BLOCK // max(x[:1, :1].size, 1))
    return [(r, slice(at, min(at + step, batch))) for r in range(replicas) for at in range(0, batch, step)]


def _gradient_steps(over: Statistics, inputs: Arrays, outputs: Arrays, env: Environment, frozen: bool) -> list[Step]:
    """Steps of :func:`gradient_kernel` on contiguous arrays of working type."""
    x, scale, mean, inverse, grad = inputs
    dx, dscale, dbias = outputs
    white = env.scratch(x.shape, x.dtype, slot=8)
    work = env.scratch(x.shape, x.dtype, slot=9)
    line = env.scratch(over.spread_shape, x.dtype, slot=10)
    white_o, work_o, dx_o = (over.view(a) for a in (white, work, dx))
    work_c, dx_c, grad_c = (channelwise(a) for a in (work, dx, grad))
    spread = over.spread(inverse)
    steps: list[Step] = [
        partial(np.subtract, over.view(x), over.spread(mean), white_o),
        partial(np.multiply, white_o, spread, white_o),
        partial(np.multiply, grad, white, work),
        _per_channel_sum(work_c, dscale),
        _per_channel_sum(grad_c, dbias),
        partial(np.multiply, grad_c, per_channel(scale, grad_c), dx_c),
    ]
    # Constant statistics pass no gradient, so the terms of their means drop out.
    if not frozen:
        steps += [
            partial(np.multiply, dx, white, work),
            *over.mean(work_o, line, env),
            partial(np.multiply, white_o, line, white_o),
            *over.mean(dx_o, line, env),
            partial(np.subtract, dx_o, line, dx_o),
            partial(np.subtract, dx_o, white_o, dx_o),
        ]
    return [*steps, partial(np.multiply, dx_o, spread, dx_o)]


def create_gradient(
    builder: GradientBuilder, op_class: type[Op], inputs: Sequence[Tensor], **attributes: object
) -> list[Tensor]:
    """The three outputs of a normalisation's gradient op."""
    names = ["x_grad", "scale_grad", "bias_grad"]
    return builder.create(op_class, inputs, names, **attributes).outputs


class NormalisationGrad(Op, abstract=True):
    """Base of ``(x, scale, mean, inv_std_dev, y_grad) -> (x_grad, scale_grad, bias_grad)``.

    Class attributes:
        mixed: for float16 ``x``, ``scale`` and its gradient may be float32.
    """

    mixed: ClassVar[bool] = False

    def infer(self) -> list[TensorSpec]:
        """x, and twice scale; the gradient of y must look like x."""
        x, scale, grad = self.inputs[0], self.inputs[1], self.inputs[4]
        self.same_dtype(x, grad)
        # With `mixed`, parameters beside a float16 operand may be float32.
        if not (self.mixed and scale.dtype == statistics_dtype(x.dtype)):
            self.same_dtype(x, scale)
        self.require(grad.shape == x.shape, f"gradient {grad.shape} and operand {x.shape} differ in shape")
        parameter = TensorSpec(scale.shape, scale.dtype)
        return [TensorSpec(x.shape, x.dtype), parameter, parameter]
