"""Forms of a convolution before it is split over tiles: one for each pass, and the transforms of that form.

A :class:`Form` is a convolution seen by the planner: batch, groups, channels per group and one :class:`Axis` per
spatial axis. The gradient of the input and the gradient of the weights are convolutions themselves (batch and channels
change places in the latter). PopLibs then tries transforms (``docs/reference/planner.md`` 1 and 2, PopLibs
``lib/poplin/ConvPlan.cpp`` createPlan): exchange the operands, expand kernel axes into the input channels, flatten
output axes into the output channels, combine groups, flatten the batch and plain axes into one field.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from ipuperf.base.near_names import instead_of
from ipuperf.ops.work import Convolution


@dataclass(frozen=True)
class Axis:
    """One spatial axis.

    Attributes:
        size, kernel, output: elements of input, kernel and result.
        stride: stride of the result; ``input_dilation`` and ``kernel_dilation``: distance of stored elements.
        padding: zeros on both sides of the input together (negative: elements cut off).
    """

    size: int
    kernel: int
    output: int
    stride: int = 1
    input_dilation: int = 1
    kernel_dilation: int = 1
    padding: int = 0

    @cached_property
    def plain(self) -> bool:
        """Whether each output reads only the input at its own place, so that the axis can join a flat field."""
        return (self.kernel, self.stride, self.input_dilation, self.padding) == (1, 1, 1, 0)

    @cached_property
    def worklist_stride(self) -> int:
        """Distance of the outputs that one kernel element touches; above 1 with a dilated input."""
        return self.input_dilation // math.gcd(self.input_dilation, self.stride)

    @cached_property
    def products(self) -> int:
        """Pairs of an output and a kernel element that meet the input (stored or not).

        PopLibs' count (``lib/poplin/ConvModel.cpp`` getNumberOfMACs): the outputs of a kernel element are a range, of
        which every :attr:`worklist_stride`-th counts. Padding is assumed to be equal on both sides.
        """
        spread, padding_before = (self.size - 1) * self.input_dilation + 1, self.padding // 2
        pairs = 0
        for element in range(self.kernel):
            offset = padding_before - element * self.kernel_dilation  # output o is at o * stride - offset
            first_output = max(0, -(-offset // self.stride))
            last_output = min(self.output - 1, (spread - 1 + offset) // self.stride)
            pairs += -(-max(0, last_output - first_output + 1) // self.worklist_stride)
        return pairs

    @property
    def whole(self) -> int:
        """Input elements that the whole result reads."""
        return min(self.size, self._span(self.output, self.kernel))

    def _span(self, outputs: int, kernel: int) -> int:
        reach = (outputs - 1) * self.stride + (kernel - 1) * self.kernel_dilation
        return reach // self.input_dilation + 1

    def reads(self, outputs: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        """Upper limit of the input elements that a piece of ``outputs`` results and ``kernel`` kernel elements reads.

        A plain axis reads as many as there are results, including those that only fill up a grain.
        """
        if self.plain:
            return outputs
        reach = (outputs - 1) * self.stride + (kernel - 1) * self.kernel_dilation
        part = np.minimum(reach // self.input_dilation + 1, self.whole)
        return np.where((outputs == self.output) & (kernel == self.kernel), self.whole, part)


@dataclass(frozen=True)
class Types:
    """Bytes per element of inputs, partial sums and result."""

    input: int
    partial: int
    output: int


@dataclass(frozen=True)
class Passes:
    """Serial passes over parts of the output channels (``out``) or input channels (``inner``); one of the two is 1.

    ``ahead``: the inputs are brought to the tiles once, before the passes over output channels.
    """

    out: int = 1
    inner: int = 1
    ahead: bool = False

    @property
    def count(self) -> int:
        """Passes in all."""
        return self.out * self.inner


#: All in one pass.
ONCE = Passes()


CONVOLUTION_PASSES = ("fwd", "bwd", "wu")
PRODUCT_PASSES = ("nonemm", "fcinf", "fcfwd", "fcbwd", "fcwu")

#: The passes of a fully connected layer in training.
TRAINING = ("fcfwd", "fcbwd", "fcwu")

#: Multiplications of one product or convolution: cycles and bytes have to stay whole numbers of 64 bits.
_MOST_PRODUCTS = 2**56

#: An axis with nothing in it.
POINT = Axis(1, 1, 1)


@dataclass(frozen=True)
class Form:
    """A convolution with the transforms applied so far.

    Attributes:
        batch, groups, in_channels, out_channels: channels are per group.
        axes: at least two.
        pass_: ``fwd``, ``bwd``, ``wu``, or that of a matrix product (:class:`~ipuperf.ops.work.MatMul`).
        swapped: operands exchanged; ``expanded``, ``flattened``: axes turned into channels; ``combined``: number of
            groups that were combined into one.
        grain: positions of the last axis go to the tiles in multiples of it.
        joint: part of a joint plan of the passes of a fully connected layer.
    """

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    axes: tuple[Axis, ...]
    pass_: str
    swapped: bool = False
    expanded: tuple[int, ...] = ()
    flattened: tuple[int, ...] = ()
    combined: int = 1
    grain: int = 1
    joint: bool = False

    def positions(self, axis: int) -> int:
        """Outputs of an axis, filled up to whole grains."""
        size, grain = self.axes[axis].output, self.grain if axis == len(self.axes) - 1 else 1
        return -(-size // grain) * grain

    @property
    def changes(self) -> tuple[object, ...]:
        """The transforms by which this form differs from the requested one."""
        return (self.swapped, self.expanded, self.flattened, self.combined)

    @cached_property
    def is_product(self) -> bool:
        """Whether this is a matrix product."""
        return self.pass_ not in CONVOLUTION_PASSES

    @cached_property
    def one_by_one(self) -> bool:
        """Whether only one flat field of positions is left, which the 1x1 AMP vertex can compute."""
        *outer_axes, last_axis = self.axes
        return self.batch == 1 and last_axis.plain and all(axis.plain and axis.output == 1 for axis in outer_axes)


def form_of(work: Convolution) -> Form:
    """The form of a convolution in its pass.

    Raises:
        ValueError: a pass that is unknown, a dimension below 1, channels that the groups do not divide.
    """
    _check(work)
    inputs_per_group, outputs_per_group = (
        work.channels_in // work.groups,
        work.channels_out // work.groups,
    )
    axes = list(
        zip(work.input_size, work.kernel_size, work.output_size, work.strides, work.dilation, work.padding, strict=True)
    )
    if work.pass_ == "fwd":
        # Only the sum of the padding counts, as the planner asks for sizes and not for places.
        form_axes = [Axis(n, k, out, s, 1, d, sum(p)) for n, k, out, s, d, p in axes]
        form = Form(work.batch, work.groups, inputs_per_group, outputs_per_group, tuple(form_axes), "fwd")
    elif work.pass_ == "bwd":
        # The gradient of a strided convolution convolves the result's gradient with zeros between its elements.
        form_axes = [Axis(out, k, n, 1, s, d, n - 1 - (out - 1) * s + (k - 1) * d) for n, k, out, s, d, _ in axes]
        form = Form(work.batch, work.groups, outputs_per_group, inputs_per_group, tuple(form_axes), "bwd")
    else:
        # The gradient of the result is the kernel: stride and dilation change places.
        form_axes = [Axis(n, out, k, d, 1, s, sum(p)) for n, k, out, s, d, p in axes]
        # The gradient of the weights sums over the batch, so batch and input channels change places.
        form = Form(inputs_per_group, work.groups, work.batch, outputs_per_group, tuple(form_axes), "wu")
    return _two_axes(form)


def product_form(groups: int, m: int, k: int, n: int, pass_: str = "nonemm") -> Form:
    """The form of a matrix product: a 1x1 convolution with the rows as the batch (``docs/reference/planner.md`` 1).

    Raises:
        ValueError: an unknown pass or a dimension below 1.
    """
    if pass_ not in PRODUCT_PASSES:
        raise ValueError(f"matmul pass is {pass_!r}{instead_of(pass_, PRODUCT_PASSES)}")
    if min(groups, m, k, n) < 1:
        raise ValueError(f"matmul [{groups}, {m}, {k}] x [{groups}, {k}, {n}]: every dimension has to be at least 1")
    _check_size(f"matmul [{groups}, {m}, {k}] x [{groups}, {k}, {n}]", groups * m * k * n)
    return Form(m, groups, k, n, (POINT, POINT), pass_)


def _check_size(description: str, products: int) -> None:
    if products > _MOST_PRODUCTS:
        raise ValueError(f"{description}: {products:.2e} multiplications; allowed: up to {_MOST_PRODUCTS:.2e}")


def _two_axes(form: Form) -> Form:
    # The planner expects at least two axes.
    return replace(form, axes=(POINT,) * max(0, 2 - len(form.axes)) + form.axes)


def _check(work: Convolution) -> None:
    if work.pass_ not in CONVOLUTION_PASSES:
        raise ValueError(f"convolution pass is {work.pass_!r}{instead_of(work.pass_, CONVOLUTION_PASSES)}")
    sizes = (
        work.batch,
        work.channels_in,
        work.channels_out,
        work.groups,
        *work.input_size,
        *work.kernel_size,
    )
    if min(*sizes, *work.strides, *work.dilation) < 1 or not work.input_size:
        raise ValueError(f"convolution {describe(work)}: every dimension, stride and dilation has to be at least 1")
    if min(work.output_size) < 1:
        raise ValueError(f"convolution {describe(work)}: the kernel does not fit into the padded input")
    if work.channels_in % work.groups or work.channels_out % work.groups:
        raise ValueError(
            f"convolution {describe(work)}: {work.groups} groups have to divide the channels "
            f"{work.channels_in} and {work.channels_out}"
        )
    positions = math.prod(work.output_size) * math.prod(work.kernel_size)
    products = work.batch * work.channels_in * work.channels_out // work.groups * positions
    _check_size(f"convolution {describe(work)}", products)


def describe(work: Convolution) -> str:
    """``batch x channels x size -> channels, kernel`` in one line, for names and messages."""
    size, kernel = ("x".join(str(v) for v in values) for values in (work.input_size, work.kernel_size))
    groups = f" groups {work.groups}" if work.groups > 1 else ""
    return f"{work.batch}x{work.channels_in}x{size}->{work.channels_out} k{kernel}{groups} {work.pass_}"


def swap(form: Form) -> Form:
    """Exchange the operands: the kernel becomes the input, output channels become the batch."""
    axes = []
    for axis in form.axes:
        spread = (axis.size - 1) * axis.input_dilation + 1 + axis.padding
        extra = spread - (axis.kernel - 1) * axis.kernel_dilation - 1
        axes.append(
            Axis(axis.kernel, axis.size, axis.output, axis.stride, axis.kernel_dilation, axis.input_dilation, 2 * extra)
        )
    return replace(form, axes=tuple(axes), batch=form.out_channels, out_channels=form.batch, swapped=not form.swapped)


def expand(form: Form, dims: Sequence[int]) -> Form:
    """Turn the kernel elements of ``dims`` into input channels (``im2col``): the axes are plain afterwards."""
    channels, axes = form.in_channels, list(form.axes)
    for dim in dims:
        channels *= axes[dim].kernel
        # Each position has its own window of inputs in its channels.
        axes[dim] = Axis(axes[dim].output, 1, axes[dim].output)
    return replace(form, in_channels=channels, axes=tuple(axes), expanded=tuple(dims))


def flatten_outputs(form: Form, dims: Sequence[int]) -> Form:
    """Turn the outputs of ``dims`` into output channels and their inputs into input channels."""
    in_channels, out_channels, axes = form.in_channels, form.out_channels, list(form.axes)
    for dim in dims:
        in_channels *= axes[dim].size
        out_channels *= axes[dim].output
        axes[dim] = POINT
    return replace(form, in_channels=in_channels, out_channels=out_channels, axes=tuple(axes), flattened=tuple(dims))


def flatten_field(form: Form) -> Form:
    """Put the batch and all plain axes into the last plain axis."""
    plain = [dim for dim, axis in enumerate(form.axes) if axis.plain]
    if not plain:
        return form
    positions, axes = form.batch, list(form.axes)
    for dim in plain:
        positions *= axes[dim].output
        axes[dim] = POINT
    axes[plain[-1]] = Axis(positions, 1, positions)
    return replace(form, batch=1, axes=tuple(axes))


def combine_groups(form: Form, factor: int) -> Form:
    """Put ``factor`` groups into one (with zeros in the weights between them)."""
    return replace(
        form,
        groups=-(-form.groups // factor),
        in_channels=form.in_channels * factor,
        out_channels=form.out_channels * factor,
        combined=factor,
    )


def _without_late_dilation(form: Form) -> Form:
    """``form`` with the dilation of inputs of 1x1 kernels put off until after the convolution.

    Otherwise the vertices would multiply the zeros between the elements.
    """
    axes = tuple(
        Axis(a.size, 1, a.size) if (a.kernel, a.stride, a.padding) == (1, 1, 0) and a.input_dilation > 1 else a
        for a in form.axes
    )
    return replace(form, axes=axes)


def view_form(form: Form, swapped: bool) -> Form:
    """``form`` with dilation put off, and with operands exchanged if ``swapped``: views of the same elements."""
    start = _without_late_dilation(form)
    return swap(start) if swapped else start


def _subsets(dims: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(dims) + 1):
        yield from combinations(dims, count)


def _group_factors(form: Form, in_size: int) -> list[int]:
    """Factors by which groups of one channel (or two in half precision) may be combined, up to one AMP input load."""
    channels = form.in_channels
    if form.groups == 1 or channels not in ((1, 2) if in_size == 2 else (1,)):
        return [1]
    # PopLibs combines groups up to one load of an AMP unit's inputs.
    factor, largest = (4 if in_size == 2 else 2) // channels, (16 if in_size == 2 else 8) // channels
    factors = [1]
    while factor <= largest:
        if factor not in factors:
            factors.append(factor)
        factor *= 2
    return factors


def forms(form: Form, in_size: int) -> list[Form]:
    """Every transformed form that PopLibs would try, the untransformed one first (``in_size``: bytes per input)."""
    # A dict, as equal forms arise in several ways and the first order counts.
    transformed: dict[Form, None] = {}
    for turned in (view_form(form, swapped=False), view_form(form, swapped=True)):
        dims = [d for d, axis in enumerate(turned.axes) if not axis.plain and axis.size >= axis.kernel]
        for subset in _subsets(dims):
            wide = expand(turned, subset)
            outs = [d for d, axis in enumerate(wide.axes) if axis.output > 1 and axis.size <= axis.kernel]
            for chosen in _subsets(outs):
                flat = flatten_field(flatten_outputs(wide, chosen))
                for factor in _group_factors(flat, in_size):
                    transformed[combine_groups(flat, factor) if factor > 1 else flat] = None
    return list(transformed)
