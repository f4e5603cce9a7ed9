"""What a convolution becomes before it is split over tiles: its form for each pass, and the transforms of that form.

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

from ipuperf.ops.work import Convolution


@dataclass(frozen=True)
class Axis:
    """One spatial axis.

    Attributes:
        size, kernel, output: elements of input, kernel and result.
        stride: of the result; ``input_dilation`` and ``kernel_dilation``: distance of stored elements.
        padding: zeros around the input in all (negative: elements cut off).
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
        """Whether each output needs just the input at its own place, so that the axis can join a flat field."""
        return (self.kernel, self.stride, self.input_dilation, self.padding) == (1, 1, 1, 0)

    @cached_property
    def worklist_stride(self) -> int:
        """Outputs that one kernel element touches lie this far apart (above 1 with a dilated input)."""
        return self.input_dilation // math.gcd(self.input_dilation, self.stride)

    @cached_property
    def products(self) -> int:
        """Pairs of an output and a kernel element that meet the input (stored or not), counted as PopLibs does: outputs
        of a kernel element are a range, of which every :attr:`worklist_stride`-th counts; padding is taken to be the
        same on both sides (``lib/poplin/ConvModel.cpp`` getNumberOfMACs)."""
        spread, before = (self.size - 1) * self.input_dilation + 1, self.padding // 2
        found = 0
        for element in range(self.kernel):
            offset = before - element * self.kernel_dilation  # output o is at o * stride - offset
            first = max(0, -(-offset // self.stride))
            last = min(self.output - 1, (spread - 1 + offset) // self.stride)
            found += -(-max(0, last - first + 1) // self.worklist_stride)
        return found

    @property
    def whole(self) -> int:
        """Input elements that the whole result reads."""
        return min(self.size, self._span(self.output, self.kernel))

    def _span(self, outputs: int, kernel: int) -> int:
        reach = (outputs - 1) * self.stride + (kernel - 1) * self.kernel_dilation
        return reach // self.input_dilation + 1

    def reads(self, outputs: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        """Input elements that a piece of ``outputs`` results and ``kernel`` kernel elements reads at most (of a plain
        axis as many as there are results, those that only fill up a grain included)."""
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
    """Serial passes over parts of the output (``out``) or of the input channels (``inner``); one of the two is 1.

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
        swapped: operands exchanged; ``expanded``, ``flattened``: axes turned into channels; ``combined``: how many
            groups were put together into one.
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
        """What makes it another form than what was asked for."""
        return (self.swapped, self.expanded, self.flattened, self.combined)

    @cached_property
    def is_product(self) -> bool:
        """Whether this is a matrix product."""
        return self.pass_ not in CONVOLUTION_PASSES

    @cached_property
    def one_by_one(self) -> bool:
        """Whether all that is left is one flat field of positions (what the 1x1 AMP vertex can do)."""
        *outer, last = self.axes
        return self.batch == 1 and last.plain and all(axis.plain and axis.output == 1 for axis in outer)


def form_of(item: Convolution) -> Form:
    """The convolution that ``item`` asks for, in its pass.

    Raises:
        ValueError: a pass that is unknown, a dimension below 1, channels that the groups do not divide.
    """
    _check(item)
    inner, outer = item.channels_in // item.groups, item.channels_out // item.groups
    axes = list(zip(item.input_size, item.kernel_size, item.output_size, item.strides, item.dilation, item.padding,
                    strict=True))  # fmt: skip
    if item.pass_ == "fwd":
        found = [Axis(n, k, out, s, 1, d, sum(p)) for n, k, out, s, d, p in axes]
        form = Form(item.batch, item.groups, inner, outer, tuple(found), "fwd")
    elif item.pass_ == "bwd":
        found = [Axis(out, k, n, 1, s, d, n - 1 - (out - 1) * s + (k - 1) * d) for n, k, out, s, d, _ in axes]
        form = Form(item.batch, item.groups, outer, inner, tuple(found), "bwd")
    else:
        found = [Axis(n, out, k, d, 1, s, sum(p)) for n, k, out, s, d, p in axes]
        form = Form(inner, item.groups, item.batch, outer, tuple(found), "wu")
    return _two_axes(form)


def product_form(groups: int, m: int, k: int, n: int, pass_: str = "nonemm") -> Form:
    """A matrix product as PopLibs sees it: a 1x1 convolution with the rows as the batch
    (``docs/reference/planner.md`` 1).

    Raises:
        ValueError: an unknown pass or a dimension below 1.
    """
    if pass_ not in PRODUCT_PASSES:
        raise ValueError(f"matmul pass is {pass_!r}; allowed: {', '.join(PRODUCT_PASSES)}")
    if min(groups, m, k, n) < 1:
        raise ValueError(f"matmul [{groups}, {m}, {k}] x [{groups}, {k}, {n}]: every dimension has to be at least 1")
    _check_size(f"matmul [{groups}, {m}, {k}] x [{groups}, {k}, {n}]", groups * m * k * n)
    return Form(m, groups, k, n, (POINT, POINT), pass_)


def _check_size(what: str, products: int) -> None:
    if products > _MOST_PRODUCTS:
        raise ValueError(f"{what}: {products:.2e} multiplications; allowed: up to {_MOST_PRODUCTS:.2e}")


def _two_axes(form: Form) -> Form:
    return replace(form, axes=(POINT,) * max(0, 2 - len(form.axes)) + form.axes)


def _check(item: Convolution) -> None:
    if item.pass_ not in CONVOLUTION_PASSES:
        raise ValueError(f"convolution pass is {item.pass_!r}; allowed: {', '.join(CONVOLUTION_PASSES)}")
    sizes = (item.batch, item.channels_in, item.channels_out, item.groups, *item.input_size, *item.kernel_size)
    if min(*sizes, *item.strides, *item.dilation) < 1 or not item.input_size:
        raise ValueError(f"convolution {describe(item)}: every dimension, stride and dilation has to be at least 1")
    if min(item.output_size) < 1:
        raise ValueError(f"convolution {describe(item)}: the kernel does not fit into the padded input")
    if item.channels_in % item.groups or item.channels_out % item.groups:
        raise ValueError(
            f"convolution {describe(item)}: {item.groups} groups have to divide the channels "
            f"{item.channels_in} and {item.channels_out}"
        )
    positions = math.prod(item.output_size) * math.prod(item.kernel_size)
    products = item.batch * item.channels_in * item.channels_out // item.groups * positions
    _check_size(f"convolution {describe(item)}", products)


def describe(item: Convolution) -> str:
    """``batch x channels x size -> channels, kernel`` in one line, for names and messages."""
    size, kernel = ("x".join(str(v) for v in values) for values in (item.input_size, item.kernel_size))
    groups = f" groups {item.groups}" if item.groups > 1 else ""
    return f"{item.batch}x{item.channels_in}x{size}->{item.channels_out} k{kernel}{groups} {item.pass_}"


def swap(form: Form) -> Form:
    """Exchange the operands: the kernel becomes the input, output channels become the batch."""
    axes = []
    for axis in form.axes:
        spread = (axis.size - 1) * axis.input_dilation + 1 + axis.padding
        extra = spread - (axis.kernel - 1) * axis.kernel_dilation - 1
        axes.append(
            Axis(axis.kernel, axis.size, axis.output, axis.stride, axis.kernel_dilation, axis.input_dilation, 2 * extra)
        )
    return replace(
        form, axes=tuple(axes), batch=form.out_channels, out_channels=form.batch, swapped=not form.swapped
    )  # fmt: skip


def expand(form: Form, dims: Sequence[int]) -> Form:
    """Turn the kernel elements of ``dims`` into input channels (``im2col``): the axes are plain afterwards."""
    channels, axes = form.in_channels, list(form.axes)
    for dim in dims:
        channels *= axes[dim].kernel
        axes[dim] = Axis(axes[dim].output, 1, axes[dim].output)
    return replace(form, in_channels=channels, axes=tuple(axes), expanded=tuple(dims))


def flatten_outputs(form: Form, dims: Sequence[int]) -> Form:
    """Turn the outputs of ``dims`` into output channels and their inputs into input channels."""
    inner, outer, axes = form.in_channels, form.out_channels, list(form.axes)
    for dim in dims:
        inner *= axes[dim].size
        outer *= axes[dim].output
        axes[dim] = POINT
    return replace(form, in_channels=inner, out_channels=outer, axes=tuple(axes), flattened=tuple(dims))


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
    """Dilation of the input of a 1x1 kernel happens after the convolution: zeros are not worth computing with."""
    axes = tuple(
        Axis(a.size, 1, a.size) if (a.kernel, a.stride, a.padding) == (1, 1, 0) and a.input_dilation > 1 else a
        for a in form.axes
    )
    return replace(form, axes=axes)


def view_form(form: Form, swapped: bool) -> Form:
    """``form`` with what is only another view of the same elements: dilation put off, operands exchanged or not."""
    start = _without_late_dilation(form)
    return swap(start) if swapped else start


def _subsets(dims: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(dims) + 1):
        yield from combinations(dims, count)


def _group_factors(form: Form, in_size: int) -> list[int]:
    """Factors by which groups of one channel (two in half precision) may be combined: up to one AMP input load."""
    channels = form.in_channels
    if form.groups == 1 or channels not in ((1, 2) if in_size == 2 else (1,)):
        return [1]
    factor, most = (4 if in_size == 2 else 2) // channels, (16 if in_size == 2 else 8) // channels
    found = [1]
    while factor <= most:
        if factor not in found:
            found.append(factor)
        factor *= 2
    return found


def forms(form: Form, in_size: int) -> list[Form]:
    """Every transformed form that PopLibs would try, the untransformed one first (``in_size``: bytes per input)."""
    found: dict[Form, None] = {}
    for turned in (view_form(form, swapped=False), view_form(form, swapped=True)):
        dims = [d for d, axis in enumerate(turned.axes) if not axis.plain and axis.size >= axis.kernel]
        for subset in _subsets(dims):
            wide = expand(turned, subset)
            outs = [d for d, axis in enumerate(wide.axes) if axis.output > 1 and axis.size <= axis.kernel]
            for chosen in _subsets(outs):
                flat = flatten_field(flatten_outputs(wide, chosen))
                for factor in _group_factors(flat, in_size):
                    found[combine_groups(flat, factor) if factor > 1 else flat] = None
    return list(found)
