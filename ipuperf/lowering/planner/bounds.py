"""Lower bounds, in closed form, of the bytes and cycles of any split of a convolution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ops.vertices import Counts

from .form import Form, Passes, Types
from .kernels import Kernel
from .vertex_bounds import clear_cycles, loop_cycles, start_cycles, step_cycles, turn_cycles

if TYPE_CHECKING:
    from ipuperf.machine import Chip


def least_bytes(form: Form, kernel: Kernel, types: Types, passes: Passes, tiles: int) -> float:
    """A lower bound of the bytes of a piece on a tile.

    The arithmetic mean of inputs, weights and partial sums is at least the geometric one. The latter falls with the
    number of tiles, however they are split.
    """
    return bytes_of_share(*work_and_sizes(form, kernel, types), passes, tiles)


def bytes_of_share(products: int, sizes: float, passes: Passes, tiles: int) -> float:
    """:func:`least_bytes` from what :func:`work_and_sizes` says, which is the same for all passes."""
    return 3 * float(np.cbrt((products / (tiles * passes.count)) ** 2 * sizes))


def work_and_sizes(form: Form, kernel: Kernel, types: Types) -> tuple[int, float]:
    """The products of channels and outputs of a form, and bytes (of the three operands) for each product, cubed."""
    # Vertices compute whole groupings, so the bound may count their padding too.
    padded = -(-form.groups // kernel.group_grouping) * kernel.group_grouping
    padded *= -(-form.in_channels // kernel.in_grouping) * kernel.in_grouping
    padded *= -(-form.out_channels // kernel.out_grouping) * kernel.out_grouping
    products = form.batch * padded * math.prod(a.output for a in form.axes)
    # A dilated input stores only its elements; the zeros between them take no bytes.
    apart = math.prod(a.input_dilation for a in form.axes)
    window = math.prod(a.kernel for a in form.axes)
    # Padding can make the result larger than the input, so a piece reads fewer elements than it has outputs.
    cut = math.prod(min(1.0, a.size / a.output) for a in form.axes)
    return products, types.input**2 * kernel.partial_size * window * cut / apart


def least_spread(form: Form, kernel: Kernel, types: Types, passes: Passes, chip: Chip) -> float:
    """A lower bound of the cycles of any split, without rearrangements and slices.

    A tile with ``p`` positions, ``g`` groups, ``i`` input and ``o`` output channels and ``w`` kernel elements in all
    passes has at least its share of the products ``v = p g i o w`` of all ``P``, ``G``, ``I``, ``O``, ``W``. Weights
    and loops cost in proportion to ``g i o w`` (of the exchange a part of ``1 - p / P``: ``P / p`` tiles or more share
    them), inputs to ``p g i`` (``1 - o / O``) and partial sums to ``p g o``; the arithmetic mean of the three is no
    less than the geometric one, which is least with ``g = 1`` and ``w = W``.
    """
    rate, count = chip.exchange_bytes_per_cycle, passes.count
    grouping = kernel.group_grouping * kernel.in_grouping * kernel.out_grouping
    out_channels = -(-form.out_channels // kernel.out_grouping) * kernel.out_grouping
    positions, window = form.batch, math.prod(a.kernel for a in form.axes)
    reads = 1.0
    for axis in form.axes:
        positions *= axis.output
        reads *= min(1.0, axis.size / axis.output) / axis.input_dilation
    cycles_per_product = step_cycles(form, kernel) / grouping
    # At best two tiles share an exchange bus and are fed at once, hence twice the rate.
    inputs = reads * types.input / (2 * rate) * (passes.out if not passes.ahead else 1)
    # Each pass over input channels has sums of the whole result; passes over output channels share them out.
    sums = (kernel.partial_size / rate + clear_cycles(form, kernel)) * passes.inner
    weights = types.input / rate
    loops = (loop_cycles(form, kernel, chip) + turn_cycles(form, kernel)) / grouping
    groups = -(-form.groups // kernel.group_grouping) * kernel.group_grouping
    in_channels = -(-form.in_channels // kernel.in_grouping) * kernel.in_grouping
    products = positions * groups * in_channels * out_channels * window / chip.tiles
    start = count * start_cycles(form, kernel, chip)
    # The parts ``p / P`` and ``o / O`` that need no exchange come to the same cycles for every product.
    remaining_cycles = cycles_per_product - weights / positions - inputs / out_channels
    if remaining_cycles < 0:
        # Rounding must not lift a bound above the cycles of a plan.
        return (products * cycles_per_product + start) * (1 - 1e-9)
    mean = (weights + loops) * inputs * sums * products * products / window
    return (products * remaining_cycles + 3 * float(mean ** (1 / 3)) + start) * (1 - 1e-9)


def least_reduction(depth: Counts, kernel: Kernel, types: Types, passes: Passes, chip: Chip) -> Counts:
    """A lower bound of the cycles of reducing (or casting) ``depth`` partial sums of any size.

    It is the start of the vertex and one loop: once for fewer than 16 partial sums, otherwise twice with 4 or more each
    (:func:`~.reductions.reduce_depths`).
    """
    # ConvReduce starts in 33 and 20 a worker; its shortest loop adds 2 * (depth - 1) + 6 (``reductions.py``).
    least = 33 + chip.workers * (24 + 2 * np.minimum(depth, 16))
    # A single partial sum is only cast; passes over input channels cast at the end instead (``finish``).
    least[depth == 1] = 27 * chip.workers if kernel.partial_size != types.output and passes.inner == 1 else 0
    return least
