"""What tiles read of each other's inputs where a plan divides the field of a convolution.

A kernel of several elements reads past the piece of the inputs that lies on its tile: pieces overlap. PopLibs lays
inputs out by use (``lib/poplin/Convolution.cpp`` mapActivations, OptimizeHaloRegions), so each element lies on one of
the tiles that read it and arrives at the others. Its planner leaves these out: it counts on inputs that all lie where
they are read, but for those that tiles with other output channels read too (``lib/poplin/ConvModel.cpp``). So they
choose no plan. They are charged for the chosen one, as its exchange carries them.

Simplification: The vertices read what arrived where it arrives, beside the tile's own inputs; it is not copied
together with them.
"""

from __future__ import annotations

import math

import numpy as np

from .form import Axis
from .plan import ConvolutionPlan


def halo_bytes(plan: ConvolutionPlan) -> int:
    """Bytes of inputs that reach the fullest tile in a pass and that the planner does not count."""
    form, unit = plan.form, plan.unit
    if form.is_product:
        return 0
    read_by_axis, own_by_axis = zip(
        *(
            _read_and_own(axis, -(-form.positions(index) // split), split, kernel_split)
            for index, (axis, split, kernel_split) in enumerate(zip(form.axes, plan.field, plan.kernel, strict=True))
        ),
        strict=True,
    )
    passes = plan.serial if plan.serial_inputs else 1
    channels = _in_groupings(form.in_channels, unit.in_grouping, plan.in_split * passes)
    groups = _in_groupings(form.groups, unit.group_grouping, plan.groups)
    others = -(-form.batch // plan.batch) * channels * groups * plan.request.types.input
    # Tiles with other output channels share what a piece owns; the planner counts what each of them lacks.
    arriving: int = math.prod(read_by_axis) - math.ceil(math.prod(own_by_axis))
    return arriving * others // plan.out_split


def _read_and_own(axis: Axis, outputs: int, split: int, kernel_split: int) -> tuple[int, float]:
    """``(inputs that a piece reads along an axis, inputs of its own)``.

    ``outputs`` are those of a piece, of which there are ``split``. Parts of the kernel share what all of them read.
    """
    read, whole = (
        int(axis.reads(np.int64(outputs), np.int64(kernel)))
        for kernel in (-(-axis.kernel // kernel_split), axis.kernel)
    )
    advance = outputs * axis.stride / axis.input_dilation if split > 1 else math.inf
    return read, min(read, min(whole, advance) / kernel_split)


def _in_groupings(count: int, grouping: int, split: int) -> int:
    """``count`` divided over ``split`` tiles in whole groupings."""
    groupings = -(-count // grouping)
    return -(-groupings // split) * grouping
