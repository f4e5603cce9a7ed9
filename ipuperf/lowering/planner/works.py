"""Plans of works: the requests of lowering to the planner."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

from ipuperf.ir import FLOAT16
from ipuperf.ops.work import Convolution, MatMul

from .form import TRAINING, Types, describe, form_of, product_form
from .layers import training_plan
from .plan import ConvolutionPlan, Request
from .search import plan_once

if TYPE_CHECKING:
    from ipuperf.machine import Chip


_OF_FLOAT8: dict[str, Any] = {"input_dtype": FLOAT16, "partials_dtype": FLOAT16, "output_dtype": FLOAT16}
"""The types as which a product of 8-bit floats is planned; its inner channels change too."""


def _check_proportion(proportion: float) -> None:
    if not (isinstance(proportion, Real) and 0 < proportion <= 1):
        raise ValueError(f"availableMemoryProportion is {proportion}; allowed: above 0, at most 1")


def plan_convolution(chip: Chip, convolution: Convolution) -> ConvolutionPlan:
    """The cheapest plan for one pass of a convolution on ``chip``; the same shape is planned once.

    When nothing fits into ``available_memory_proportion`` of a tile, output or input channels are computed in serial
    passes. When that does not help, the limit is doubled up to twice the tile. The last resort is the plan of least
    memory.

    8-bit floats: see :func:`plan_product`.

    Raises:
        ValueError: an unknown pass, a dimension below 1, groups that do not divide the channels, a kernel larger than
            the padded input, a proportion outside (0, 1], half-precision partial sums of float inputs.
    """
    return plan_once(request_of(chip, convolution))


def request_of(chip: Chip, convolution: Convolution) -> Request:
    """The request to the planner for a pass of a convolution; raises as :func:`plan_convolution`."""
    _check_proportion(convolution.available_memory_proportion)
    if convolution.input_dtype.category == "float8":
        # Two 8-bit floats take the place of one half.
        channels_in = -(-convolution.channels_in // (2 * convolution.groups)) * convolution.groups
        convolution = replace(convolution, channels_in=channels_in, **_OF_FLOAT8)
    sizes = (convolution.input_dtype.size, convolution.partials_dtype.size, convolution.output_dtype.size)
    if sizes[0] not in (2, 4) or sizes[1] not in (2, 4) or sizes[1] < sizes[0] or sizes[2] not in (2, 4):
        raise ValueError(
            f"convolution {describe(convolution)}: inputs {convolution.input_dtype}, partials "
            f"{convolution.partials_dtype} and result {convolution.output_dtype} are not possible; allowed: 16 or 32 "
            "bit floats, partials at least as wide as the inputs"
        )
    return Request(chip, form_of(convolution), Types(*sizes), convolution.available_memory_proportion)


def plan_product(chip: Chip, work: MatMul) -> ConvolutionPlan:
    """The cheapest plan for a matrix product, the 1x1 case of a convolution (memory as in :func:`plan_convolution`).

    The passes ``fcfwd``, ``fcbwd`` and ``fcwu`` of a fully connected layer are parts of its joint plan when that is no
    slower for all three together. The cycles are then those of this pass in the joint plan; alone it may be faster.

    Types that no vertex has are priced as the nearest ones: 64 bits as 32, 8 bits as 16, partial sums at least as wide
    as the operands. Two 8-bit floats take the place of one half in memory and in the AMP unit, which is twice as fast
    with them (C600: 560 TFLOP/s against 280): a product of them is planned as one of halves with half as many inner
    elements, half partial sums as upstream has them. There is no estimate of PopLibs to compare it with.

    Raises:
        ValueError: an unknown pass, a dimension below 1, a proportion outside (0, 1].
    """
    request = request_of_product(chip, work)
    return training_plan(request) if work.pass_ in TRAINING else plan_once(request)


def request_of_product(chip: Chip, work: MatMul) -> Request:
    """The request to the planner for a matrix product; raises as :func:`plan_product`."""
    _check_proportion(work.available_memory_proportion)
    if work.input_dtype.category == "float8":
        work = replace(work, k=-(-work.k // 2), **_OF_FLOAT8)
    inputs, sums, result = (
        min(max(dtype.size, 2), 4) for dtype in (work.input_dtype, work.partials_dtype, work.output_dtype)
    )
    form = product_form(work.groups, work.m, work.k, work.n, work.pass_)
    types = Types(inputs, max(inputs, sums), result)
    return Request(chip, form, types, work.available_memory_proportion)
