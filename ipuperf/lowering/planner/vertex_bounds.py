"""Lower bounds of the tile cycles of convolution vertices, by which a search leaves plans out unseen.

Each part of a vertex's time has its own bound, in the order of its loops: every step (:func:`step_cycles`), the steps
of all positions (:func:`loop_cycles`), each turn of the loops around them (:func:`turn_cycles`), each partial sum
(:func:`clear_cycles`) and the vertex as a whole (:func:`start_cycles`). The exact cycles are in :mod:`.vertices`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from .form import POINT, Form
from .kernels import Kernel
from .vertices import amp_inner, dot_cycles, short_hmac, shuffle_cycles

if TYPE_CHECKING:
    from ipuperf.machine import Chip


def step_cycles(form: Form, kernel: Kernel) -> float:
    """A lower bound of the tile cycles of each step, at the full rate of the vertex.

    A step is one position, one kernel element and one grouping of groups, input and output channels.
    """
    if kernel.method == "HMAC":
        # With a dilated input only one position in so many meets a stored element.
        return (7 + dot_cycles(kernel.in_grouping, kernel)) / math.prod(a.input_dilation for a in form.axes)
    macs = kernel.in_grouping * kernel.out_grouping
    if kernel.method in ("AMP", "OUTER"):
        macs *= kernel.group_grouping
    return macs / (kernel.macs_per_cycle * math.prod(a.worklist_stride for a in form.axes))


def loop_cycles(form: Form, kernel: Kernel, chip: Chip) -> float:
    """A lower bound of the tile cycles that the steps of all positions of a piece take besides :func:`step_cycles`.

    They start the workers and load AMP coefficients.
    """
    if kernel.method == "HMAC":
        elements = math.prod(a.kernel for a in form.axes)
        # The constants around the kernel loop come once for all its elements; a step bears its part.
        return chip.workers * (35 - 17 * short_hmac(form, kernel)) + (10 + 16 * chip.workers) / elements
    if kernel.method == "AMP":
        return _amp_loop_cycles(form.one_by_one, kernel, chip)
    return 0.0


@lru_cache(maxsize=256)
def _amp_loop_cycles(flat: bool, kernel: Kernel, chip: Chip) -> float:
    """The minimum over all numbers of positions, cached.

    A dilated input needs fewer positions, so the minimum is the same.
    """
    # A batch of two keeps the form from being one flat field.
    form = Form(1 if flat else 2, 1, 1, 1, (POINT, POINT), "fwd")
    positions = np.arange(1, 65)
    ones = np.ones_like(positions)
    worker_cycles = amp_inner(ones, (ones, positions), form, kernel, chip)
    passes = -(-kernel.out_grouping // kernel.units)
    rate = step_cycles(form, kernel) * kernel.height / passes
    load = kernel.units * chip.amp_unit_bytes // chip.weight_load_bytes_per_cycle
    return passes * (load + 3 + max(0.0, float((worker_cycles - rate * positions).min()))) / kernel.height


def turn_cycles(form: Form, kernel: Kernel) -> float:
    """A lower bound of the tile cycles that each step of all positions takes besides :func:`loop_cycles`.

    They are the loops around an AMP vertex and the shuffling of its coefficients.
    """
    if kernel.method != "AMP":
        return 0.0
    passes = -(-kernel.out_grouping // kernel.units)
    return 18.0 + 3 * passes if kernel.flat(form) else (12 + passes * shuffle_cycles(kernel)) / kernel.height


def clear_cycles(form: Form, kernel: Kernel) -> float:
    """A lower bound of the tile cycles of clearing each partial sum."""
    # Two partial sums are cleared in a cycle (``vertices._zero_partials``).
    return 0.5 if kernel.method == "HMAC" or (kernel.method == "AMP" and not kernel.flat(form)) else 0.0


def start_cycles(form: Form, kernel: Kernel, chip: Chip) -> float:
    """A lower bound of the tile cycles of a vertex besides its steps and loops."""
    if kernel.method == "HMAC":
        return 55.0 + chip.workers * 9
    if kernel.method == "AMP":
        return 73.0 if kernel.flat(form) else 320.0
    return 0.0


def least_cycles(form: Form, kernel: Kernel, chip: Chip) -> tuple[float, float]:
    """Lower bounds of any plan of ``form`` with ``kernel``: ``(cycles in all, cycles in each serial pass)``.

    The first are all padded steps at full rate on all tiles, and the exchange of all partial sums. The second are the
    start and a single loop of a vertex (HMAC: the start alone).
    """
    groups, in_groups, out_groups = (
        -(-count // grouping)
        for count, grouping in (
            (form.groups, kernel.group_grouping),
            (form.in_channels, kernel.in_grouping),
            (form.out_channels, kernel.out_grouping),
        )
    )
    outputs = form.batch * groups * out_groups * math.prod(a.output for a in form.axes)
    steps = outputs * in_groups * math.prod(a.kernel for a in form.axes)
    sums = outputs * kernel.group_grouping * kernel.out_grouping * kernel.partial_size
    spread = (steps * step_cycles(form, kernel) + sums / chip.exchange_bytes_per_cycle) / chip.tiles
    start = start_cycles(form, kernel, chip)
    # One whole loop: the bound of a step is divided by the kernel rows that a pass covers.
    if kernel.method == "AMP":
        return spread, loop_cycles(form, kernel, chip) * kernel.height + start
    return spread, start


def work_asked(form: Form, kernel: Kernel) -> int:
    """A lower bound of the cycles that the tiles of a plan compute together.

    It is all products, with padding of groups and channels, at the rate of the vertex. PopLibs calls the condition
    redundant (``lib/poplin/ConvModel.cpp`` addEstimates), but it is not for vertices whose estimate is faster than that
    rate. A horizontal MAC with half partial sums takes two output channels at once, eight products a cycle against
    four, so its plans with the least work drop out of the search.
    """
    groups, in_channels, out_channels = (
        -(-count // grouping) * grouping
        for count, grouping in (
            (form.groups, kernel.group_grouping),
            (form.in_channels, kernel.in_grouping),
            (form.out_channels, kernel.out_grouping),
        )
    )
    products = form.batch * groups * in_channels * out_channels * math.prod(axis.products for axis in form.axes)
    return products // kernel.macs_per_cycle


def mac_cycles(form: Form, chip: Chip, in_size: int) -> float:
    """A lower bound of the cycles of MAC vertices: one vector of products per cycle on every tile."""
    macs = form.batch * form.groups * form.in_channels * form.out_channels
    macs *= math.prod(a.output * a.kernel for a in form.axes)
    return macs // math.prod(a.worklist_stride for a in form.axes) * in_size / (8 * chip.tiles)
