"""How products, convolutions, lookups and updates of tables are split."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, replace
from functools import partial
from typing import Any

from executables import Figures

from ipuperf.ir import FLOAT16, FLOAT32
from ipuperf.lowering.planner.embedding import plan_lookup
from ipuperf.lowering.planner.multi import plan_multi
from ipuperf.lowering.planner.plan import ConvolutionPlan
from ipuperf.lowering.planner.works import plan_convolution, plan_product
from ipuperf.lowering.rearrangements import laid_by_batch, stages, turned_parameter
from ipuperf.machine import load_machine
from ipuperf.ops.work import Convolution, Lookup, MatMul, MultiConvolution, TableUpdate

CHIPS = {"gc200": load_machine("gc200-1").chip, "gc2": load_machine("gc2-1").chip}
TYPES = {"half": (FLOAT16,) * 3, "half, float sums": (FLOAT16, FLOAT16, FLOAT32), "float": (FLOAT32,) * 3}
PASSES = ("fwd", "bwd", "wu")
LAYER = ("nonemm", "fcinf", "fcfwd", "fcbwd", "fcwu")


def _plan(plan: ConvolutionPlan, **more: Any) -> Figures:
    """The plan in one line, its terms, and its rearrangements."""
    terms = " ".join(str(value) for value in plan.values().values()).replace(", ", ",")
    moves = [" ".join(map(str, astuple(stage)[1:])) for stage in stages(plan, **more)]
    return {"plan": plan.explain(), "terms": terms, "moves": "; ".join(moves)}


# -- products ----------------------------------------------------------------------------------------------------------

PRODUCTS = {
    "layer": (1, 16, 96, 80),
    "odd": (3, 7, 13, 29),
    "tall": (1, 2000, 64, 8),
    "deep": (1, 4, 1500, 4),
    "groups": (16, 48, 32, 48),
    "vector": (1, 1, 300, 1),
    "large": (1, 384, 1024, 2048),
}


def _products(shape: tuple[int, int, int, int], types: str) -> Iterator[Figures]:
    for chip in CHIPS.values():
        for pass_ in LAYER if chip is CHIPS["gc200"] else LAYER[:1]:
            yield _plan(plan_product(chip, MatMul(*shape, *TYPES[types], pass_)))
    yield _plan(plan_product(CHIPS["gc200"], MatMul(*shape, *TYPES[types], available_memory_proportion=0.02)))


# -- convolutions ------------------------------------------------------------------------------------------------------


def _convolution(batch: int, inner: int, outer: int, size: tuple[int, ...], kernel: int, stride: int = 1,
                 pad: int = 0, dilation: int = 1, groups: int = 1) -> Convolution:  # fmt: skip
    axes = len(size)
    return Convolution(batch, inner, outer, size, (kernel,) * axes, (stride,) * axes, ((pad, pad),) * axes,
                       (dilation,) * axes, groups, *TYPES["half"])  # fmt: skip


CONVOLUTIONS = {
    "image": _convolution(2, 3, 16, (32, 32), 7, 2, 3),
    "same": _convolution(4, 16, 24, (14, 14), 3, 1, 1),
    "one by one": _convolution(4, 40, 64, (7, 7), 1),
    "strides": _convolution(1, 16, 16, (17, 17), 1, 2),
    "dilated": _convolution(2, 8, 8, (16, 16), 3, 1, 2, 2),
    "depthwise": _convolution(2, 32, 32, (12, 12), 3, 1, 1, groups=32),
    "groups": _convolution(2, 24, 12, (9, 9), 3, 1, 1, groups=3),
    "one axis": _convolution(3, 12, 20, (50,), 5, 2),
    "three axes": _convolution(1, 4, 8, (5, 4, 6), 2, 1, 1),
}


def _convolutions(item: Convolution, types: str) -> Iterator[Figures]:
    dtypes = dict(zip(("input_dtype", "output_dtype", "partials_dtype"), TYPES[types], strict=True))
    for chip in CHIPS.values():
        for pass_ in PASSES if chip is CHIPS["gc200"] else PASSES[:1]:
            asked = replace(item, pass_=pass_, **dtypes)
            yield _plan(plan_convolution(chip, asked), by_batch=laid_by_batch(asked, chip))
    little = plan_convolution(CHIPS["gc200"], replace(item, available_memory_proportion=0.01, **dtypes))
    turned = turned_parameter(9 * 480, (item.channels_in, item.channels_out), dtypes["input_dtype"].size, little)
    yield {**_plan(little), "moves": "; ".join(" ".join(map(str, astuple(stage)[1:])) for stage in turned)}


def _multi(plan_type: str) -> Iterator[Figures]:
    several = tuple(CONVOLUTIONS[name] for name in ("same", "one by one", "groups"))
    for reserved, spare in ((50, 0.1), (200, 0.5)):
        for placed in plan_multi(CHIPS["gc200"], MultiConvolution(several, plan_type, reserved, spare)).plans:
            yield {**_plan(placed.plan), "moves": f"from tile {placed.start}"}


# -- tables ------------------------------------------------------------------------------------------------------------

TABLES = ((3, 16, 300), (100, 1, 7), (5000, 64, 384), (30522, 768, 128), (1, 500, 20000), (64, 3, 20000))


def _lookups(dtype: Any, groups: int) -> Iterator[Figures]:
    for chip in CHIPS.values():
        for share in (0.6, 0.01):
            for shape in TABLES:
                more = {"groups": groups, "available_memory_proportion": share}
                items = [Lookup(*shape, dtype, **more)]
                items += [TableUpdate(*shape, dtype, **more, operation=name) for name in ("ADD", "MAX", "MUL", "NONE")]
                yield {
                    item: " ".join(map(str, astuple(plan_lookup(chip, each))))
                    for item, each in zip(("plan", "terms", "moves"), items[:2] + items[-1:], strict=True)
                }


PLANS: Mapping[str, Callable[[], Iterator[Figures]]] = {
    **{f"product, {name}, {types}": partial(_products, shape, types)
       for name, shape in PRODUCTS.items() for types in TYPES},
    **{f"convolution, {name}, {types}": partial(_convolutions, item, types)
       for name, item in CONVOLUTIONS.items() for types in TYPES},
    **{f"convolutions, {plan_type}": partial(_multi, plan_type) for plan_type in ("parallel", "serial")},
    **{f"table of {dtype}, {groups} groups": partial(_lookups, dtype, groups)
       for dtype in (FLOAT16, FLOAT32) for groups in (1, 3)},
}  # fmt: skip
