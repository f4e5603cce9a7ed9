"""What tiles read of each other's inputs: against windows that are counted element by element."""

from __future__ import annotations

import itertools

import pytest

from ipuperf.ir import FLOAT16
from ipuperf.lowering.planner.halos import halo_bytes
from ipuperf.lowering.planner.works import plan_convolution, plan_product
from ipuperf.machine import load_machine
from ipuperf.ops.work import Convolution, MatMul

CHIP = load_machine("gc200-1").chip


def planned(channels, size, kernel, stride=1, batch=1, pass_="fwd"):
    pads = ((kernel // 2, kernel // 2),) * 2
    work = Convolution(batch, channels, channels, (size, size), (kernel, kernel), (stride, stride), pads, (1, 1), 1,
                       FLOAT16, FLOAT16, FLOAT16, pass_)  # fmt: skip
    return plan_convolution(CHIP, work)


def counted(plan):
    """Elements of a channel in the largest window, less those that the piece of the field has for itself."""
    window, own = 1, 1
    for axis, split in zip(plan.form.axes, plan.field, strict=True):
        outputs, before = -(-axis.output // split), axis.padding // 2
        windows = []
        for begin in range(0, axis.output, outputs):
            ends = itertools.product(range(begin, min(begin + outputs, axis.output)), range(axis.kernel))
            windows.append({out * axis.stride + element - before for out, element in ends} & set(range(axis.size)))
        window *= max(map(len, windows))
        own *= outputs * axis.stride
    return window - own


@pytest.mark.parametrize(("channels", "size", "kernel", "stride"), [(4, 320, 3, 1), (4, 640, 5, 1), (4, 640, 3, 2)])
def test_overlap_of_windows_arrives(channels, size, kernel, stride):
    plan = planned(channels, size, kernel, stride)
    assert plan.out_split == plan.in_split == plan.batch == 1
    assert plan.kernel == (1, 1)
    assert min(plan.field) > 2
    others = -(-channels // plan.in_grouping) * plan.in_grouping * FLOAT16.size
    assert halo_bytes(plan) == counted(plan) * others > 0


@pytest.mark.parametrize("pass_", ["fwd", "bwd", "wu"])
def test_kernels_of_one_element_have_none(pass_):
    assert halo_bytes(planned(64, 56, 1, batch=4, pass_=pass_)) == 0


def test_products_have_none():
    assert halo_bytes(plan_product(CHIP, MatMul(1, 256, 256, 256, FLOAT16, FLOAT16, FLOAT16))) == 0


@pytest.mark.parametrize("pass_", ["fwd", "bwd", "wu"])
@pytest.mark.parametrize("size", [14, 28, 56, 112])
def test_no_tile_receives_more_than_it_reads(pass_, size):
    plan = planned(64, size, 3, batch=4, pass_=pass_)
    axes = zip(plan.form.axes, plan.field, plan.kernel, strict=True)
    reads = 1
    for axis, field, kernel in axes:
        window = (-(-axis.output // field) - 1) * axis.stride + (-(-axis.kernel // kernel) - 1) * axis.kernel_dilation
        reads *= min(window // axis.input_dilation + 1, axis.size)
    others = 4 * 64 * FLOAT16.size
    assert 0 <= halo_bytes(plan) <= reads * others
