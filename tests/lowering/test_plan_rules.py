"""Plans of edge shapes against the rules of PopLibs' planner, written here once more: all of them for products, for
convolutions those that no transform changes.

Rules (PopLibs ``lib/poplin/ConvModel.cpp`` constructModel, addEstimates, addMethodConstraints; ``ConvVertexType.cpp``;
``docs/reference/planner.md`` 2): which vertices there are for which types and passes, which splits are tried, what
serial passes may divide, what a joint plan leaves alone, that a plan fits its tiles and its memory, and that it has at
least the work that the rate of the vertex asks for. The shapes are those in which a search goes astray: 1 to 16 rows,
odd groups, odd channels, float32 with small batches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from ipuperf.lowering import plan_convolution, plan_matmul
from ipuperf.lowering.planner.arguments import chip_named
from ipuperf.lowering.planner.plan import ConvolutionPlan

_TYPES = (("f16", "f16"), ("f16", "f32"), ("f32", "f32"))
_PASSES = ("nonemm", "fcinf", "fcfwd", "fcbwd", "fcwu")
_BYTES = {"f16": 2, "f32": 4}

#: Inner and outer channels: small, odd, prime, a little more than a power of two, large.
_CHANNELS = (1, 2, 3, 5, 7, 8, 12, 15, 16, 17, 31, 33, 64, 100, 127, 250, 257, 512, 768, 1000, 1024, 2048, 4096)

Shape = tuple[str, int, int, int, int, str, str, str, float]


def edge_shapes(count: int, seed: int) -> Iterator[Shape]:
    """(chip, groups, m, k, n, type, partial sums, pass, proportion of memory), the same for the same seed."""
    draw = random.Random(seed)
    for _ in range(count):
        dtype, partials = draw.choice(_TYPES)
        groups, rows = draw.choice((1, 1, 1, 3, 5, 7, 12, 13)), draw.randint(1, 16)
        inner, outer = draw.choice(_CHANNELS), draw.choice(_CHANNELS)
        pass_ = draw.choice(_PASSES)
        m, k, n = {"fcbwd": (rows, outer, inner), "fcwu": (inner, rows, outer)}.get(pass_, (rows, inner, outer))
        chip = draw.choice(("gc200", "gc200", "gc2"))
        yield chip, groups, m, k, n, dtype, partials, pass_, draw.choice((0.6, 0.6, 0.1, 0.01))


def violations(plan: ConvolutionPlan, shape: Shape) -> list[str]:
    """The rules that a plan breaks, in words."""
    return [*_vertex(plan, shape), *_splits(plan, shape), *_serial(plan, shape), *_work(plan, shape)]


def _operands(plan: ConvolutionPlan, shape: Shape) -> tuple[int, int, int, int]:
    """(groups, positions, input channels, output channels) of the convolution that was planned: with operands exchanged
    the columns are the field and the rows the output channels; some groups may have been put into one."""
    _, groups, m, k, n, *_ = shape
    positions, outer = (n, m) if plan.swapped else (m, n)
    return -(-groups // plan.combined), positions, k * plan.combined, outer * plan.combined


def _vertex(plan: ConvolutionPlan, shape: Shape) -> Iterator[str]:
    chip, _, _, _, _, dtype, partials, pass_, _ = shape
    size, narrow = _BYTES[dtype], partials == "f16"
    of_chip = chip_named(chip)
    inner, outer, channels = plan.in_grouping, plan.out_grouping, _operands(plan, shape)[2]
    if plan.method == "AMP" and size == 2 and channels <= 16 and -(-channels // inner) * inner == 16:
        narrow = narrow or plan.unit.partial_size == 2  # a result without partial sums is written in its own type
    units = of_chip.amp_units_f16_f16 if narrow else of_chip.amp_units_f16_f32
    units = of_chip.amp_units_f32_f32 if size == 4 else units
    if plan.combined > 1 and (shape[1] == 1 or shape[3] * size > 4 or channels * size > 32):
        yield f"{plan.combined} of {shape[1]} groups with {shape[3]} input channels in one"
    if plan.group_grouping != 1:
        yield f"{plan.method} takes {plan.group_grouping} groups at once"
    if plan.method == "AMP":
        full = 32 // size  # four loads of 64 bits: 8 floats or 16 halves
        if plan.units not in (units, min(units, 8)):
            yield f"AMP with {plan.units} of {units} units"
        if full % inner or inner * size % 8:
            yield f"AMP with {inner} input channels: no divisor of {full} in whole loads"
        if outer % plan.units or outer not in (plan.units, full):
            yield f"AMP with {outer} output channels on {plan.units} units"
        if pass_ == "fcinf" and outer != plan.units:
            yield f"inference with {outer} output channels on {plan.units} units"
        if plan.joint and pass_ == "fcfwd" and inner % plan.units:
            yield f"joint plan with {inner} input channels on {plan.units} units"
    elif plan.method == "HMAC":
        step = 4 // size
        whole = -(-channels // step) * step
        if inner % step or inner > whole:
            yield f"HMAC with {inner} of {channels} input channels"
        if inner > step and -(-whole // (inner - step)) == -(-whole // inner) and not plan.joint:
            yield f"HMAC with {inner} of {channels} input channels: fewer make as many groups"
        if outer != (2 if narrow else 1) and not plan.joint:
            yield f"HMAC with {outer} output channels"
    elif plan.method == "OUTER":
        if channels != 1 or inner != 1 or (outer != 8 // size and not plan.joint):
            yield f"outer product of {channels} input channels, groupings {inner} and {outer}"
    else:
        yield f"{plan.method} is no vertex of products"


def _useful(split: int, whole: int) -> bool:
    """No smaller split has the same largest piece."""
    return 1 <= split <= whole and (split == 1 or -(-whole // (split - 1)) > -(-whole // split))


def _splits(plan: ConvolutionPlan, shape: Shape) -> Iterator[str]:
    groups, positions, inner, outer = _operands(plan, shape)
    used = math.prod(plan.field) * math.prod(plan.kernel) * plan.batch * plan.groups * plan.out_split * plan.in_split
    if used != plan.tiles or used > chip_named(shape[0]).tiles:
        yield f"{used} parts on {plan.tiles} tiles"
    if math.prod(plan.kernel) > 1 or math.prod(plan.field[:-1]) * plan.batch > 1:
        yield f"splits of axes that a product does not have: {plan.field}, {plan.batch}, {plan.kernel}"
    grains = (-(-positions // plan.form.grain), -(-inner // plan.in_grouping), -(-outer // plan.out_grouping))
    passes_out, passes_in = (1, plan.serial) if plan.serial_inputs else (plan.serial, 1)
    found = (plan.field[-1], plan.in_split * passes_in, plan.out_split * passes_out)
    for what, split, whole in zip(("field", "input channels", "output channels"), found, grains, strict=True):
        if not _useful(split, whole):
            yield f"{what}: {whole} grains in {split} parts"
    if not _useful(plan.groups, groups):
        yield f"{groups} groups in {plan.groups} parts"
    if plan.joint and shape[7] == "fcfwd" and plan.out_split > 1:
        yield f"joint plan with its rows in {plan.out_split} parts"


def _serial(plan: ConvolutionPlan, shape: Shape) -> Iterator[str]:
    _, _, inner, outer = _operands(plan, shape)
    whole = (inner if plan.serial_inputs else outer) // plan.combined
    if whole % plan.serial and not plan.joint:
        yield f"{whole} channels in {plan.serial} passes of one size"
    if plan.joint and shape[7] == "fcfwd" and plan.serial > 1 and plan.serial_inputs:
        yield "joint plan with serial passes over input channels"


def _work(plan: ConvolutionPlan, shape: Shape) -> Iterator[str]:
    """Fits into memory (or nothing does); has all products at the rate that PopLibs credits the vertex with."""
    groups, positions, inner, outer = _operands(plan, shape)
    size, rate = _BYTES[shape[5]], 8 // _BYTES[shape[5]]
    if plan.method == "AMP":
        rate *= plan.units
    padded = -(-inner // plan.in_grouping) * plan.in_grouping * -(-outer // plan.out_grouping) * plan.out_grouping
    products = groups * positions * padded
    if plan.compute * plan.serial * plan.tiles < products // rate:
        yield f"{plan.compute} cycles on {plan.tiles} tiles for {products} products of {size} bytes"
    if plan.temp_bytes > 2 * chip_named(shape[0]).bytes_per_tile and plan.serial == 1:
        yield f"{plan.temp_bytes} bytes in one pass"


# -- convolutions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """A convolution, the same along both axes; channels are per group."""

    batch: int
    groups: int
    inner: int
    outer: int
    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    dtype: str
    partials: str
    proportion: float

    @property
    def output(self) -> int:
        """Results along an axis."""
        return (self.size + 2 * self.padding - (self.kernel - 1) * self.dilation - 1) // self.stride + 1

    def plan(self) -> ConvolutionPlan:
        """Its plan on a GC200."""
        return plan_convolution(
            "gc200", self.batch, self.inner * self.groups, self.outer * self.groups, self.size, self.kernel,
            self.stride, self.padding, self.dilation, self.groups, self.dtype, self.partials, "fwd", self.proportion,
        )  # fmt: skip

    def products(self) -> int:
        """Products whose factors both lie in the input, by looking at each."""
        reach = [o * self.stride + k * self.dilation - self.padding
                 for o in range(self.output) for k in range(self.kernel)]  # fmt: skip
        along = sum(0 <= place < self.size for place in reach)
        return self.batch * self.groups * self.inner * self.outer * along**2


def edge_windows(count: int, seed: int) -> Iterator[Window]:
    """Convolutions with small batches, odd groups and odd channels."""
    draw = random.Random(seed)
    for _ in range(count):
        dtype, partials = draw.choice(_TYPES)
        yield Window(
            batch=draw.randint(1, 5), groups=draw.choice((1, 1, 3, 5, 7, 16, 33)),
            inner=draw.choice((1, 2, 3, 4, 9, 17)), outer=draw.choice((1, 2, 4, 5, 16, 31)),
            size=draw.choice((5, 7, 14, 20)), kernel=draw.choice((1, 2, 3, 4)),
            stride=draw.choice((1, 1, 2, 3)), padding=draw.choice((0, 1)), dilation=draw.choice((1, 1, 1, 2)),
            dtype=dtype, partials=partials, proportion=draw.choice((0.6, 0.6, 0.02)),
        )  # fmt: skip


def window_violations(plan: ConvolutionPlan, shape: Window) -> Iterator[str]:
    """The rules that the plan of a convolution breaks, in words."""
    size, rate = _BYTES[shape.dtype], 8 // _BYTES[shape.dtype]
    used = math.prod(plan.field) * math.prod(plan.kernel) * plan.batch * plan.groups * plan.out_split * plan.in_split
    if used != plan.tiles or used > chip_named("gc200").tiles:
        yield f"{used} parts on {plan.tiles} tiles"
    if plan.kernel[-1] > 1:
        yield "the innermost kernel axis in parts"
    spatial = len(plan.expanded) < 2 and shape.kernel > 1  # an expanded axis has neither dilation nor stride any more
    dilated = shape.dilation > 1 and spatial
    if plan.method in ("SLIC", "VMAC") and (size == 4 or plan.swapped or dilated):
        yield f"{plan.method} of {shape.dtype}, exchanged: {plan.swapped}, dilation {shape.dilation}"
    if plan.method == "SLIC" and (
        (shape.stride > 2 and len(plan.expanded) < 2) or plan.in_grouping != plan.out_grouping
    ):
        yield f"SLIC with stride {shape.stride}, channels {plan.in_grouping} and {plan.out_grouping}"
    if plan.group_grouping not in {"SLIC": (1, 2, 4, 8, 16), "VMAC": (4, 8, 16)}.get(plan.method, (1,)):
        yield f"{plan.method} of {plan.group_grouping} groups"
    whole = shape.inner if plan.serial_inputs else shape.batch if plan.swapped else shape.outer
    if whole % plan.serial:
        yield f"{whole} channels in {plan.serial} passes of one size"
    rate *= {"AMP": plan.units, "SLIC": 8, "VMAC": 2}.get(plan.method, 1)
    if plan.compute * plan.serial * plan.tiles < shape.products() // rate:
        yield f"{plan.compute} cycles on {plan.tiles} tiles for {shape.products()} products"


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(3))
def test_no_plan_of_an_edge_convolution_breaks_a_rule(seed):
    broken = {}
    for shape in edge_windows(16, seed):
        if found := list(window_violations(shape.plan(), shape)):
            broken[shape] = found
    assert not broken


# -- products ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 8))])
def test_no_plan_of_an_edge_shape_breaks_a_rule(seed):
    broken = {}
    for shape in edge_shapes(40, seed):
        if found := violations(plan_matmul(*shape), shape):
            broken[shape] = found
    assert not broken


@pytest.mark.parametrize(("m", "k", "n"), [(1, 4096, 4096), (2, 4096, 4096)])
def test_half_partial_sums_of_a_horizontal_mac_ask_for_more_work(m, k, n):
    """The estimate of the vertex takes eight products a cycle, PopLibs credits it with four: the fastest HMAC plan for
    one row (4,942 cycles, 24 % cheaper than the plan of PopLibs) drops out, and an AMP plan of 6,500 remains."""
    plan = plan_matmul("mk2", 1, m, k, n, "f16", "f16")
    assert (plan.method, plan.total) == ("AMP", 6500)


def test_rules_see_what_they_are_for():
    """Each rule finds a plan that breaks it."""
    shape: Shape = ("mk2", 1, 8, 512, 512, "f16", "f16", "nonemm", 0.6)
    plan = plan_matmul(*shape)
    assert not violations(plan, shape)
    wrong = {
        "units": replace(plan, units=4),
        "parts": replace(plan, in_split=plan.in_split + 1),
        "passes": replace(plan, serial=3),
        "products": replace(plan, compute=1),
        "vertex": replace(plan, method="SLIC"),
    }
    for word, broken in wrong.items():
        assert any(word in text for text in violations(broken, shape)), word
