"""Fully connected layers in training: their three passes are planned jointly when that is cheaper for all of them, else
one by one (PopLibs ``lib/poplin/ConvPlan.cpp`` createPlan)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from .candidates import every_candidate, output_passes, smaller_passes
from .form import ONCE, TRAINING, product_form
from .joint import Layer, joint_plan
from .plan import ConvolutionPlan, Found, LayerCost, Request, explained
from .search import Search, cheapest, likeliest, plan_once, quick_plan

#: The most rows (batch) of a fully connected layer for which a joint plan is looked for.
_JOINT_ROWS = 512


def passes_of(forward: Request) -> tuple[Request, Request, Request]:
    """The forward, backward and update pass of the layer, each as a product of its own."""
    form = forward.form
    m, k, n = form.batch, form.in_channels, form.out_channels
    sizes = ((m, k, n), (m, n, k), (k, m, n))
    first, second, third = (replace(forward, form=product_form(form.groups, *each, name))
                            for each, name in zip(sizes, TRAINING, strict=True))  # fmt: skip
    return first, second, third


def forward_of(request: Request) -> Request:
    """The forward pass of the layer that ``request`` is a pass of."""
    form = request.form
    m, k, n = form.batch, form.in_channels, form.out_channels
    sizes = {"fcfwd": (m, k, n), "fcbwd": (m, n, k), "fcwu": (k, m, n)}[form.pass_]
    return replace(request, form=product_form(form.groups, *sizes, "fcfwd"))


def _quick_total(request: Request) -> float:
    """Cycles of a plan that fits, found quickly; infinite when there is none among the likely ones."""
    if found := quick_plan(request):
        return found.cost[0]
    for ways in (output_passes(request.form), smaller_passes(request.form)):
        if found := Search(request, likeliest(request), ways, request.limit).cheapest():
            return found.cost[0]
    return math.inf


def _least_total(request: Request) -> float:
    """Cycles that no plan of a pass goes below, whatever the memory."""
    return min((candidate.least(ONCE) for candidate in every_candidate(request)), default=0.0)


@lru_cache(maxsize=4096)
def _joint_layer(forward: Request) -> Layer | None:
    """The joint plan of the layer with this forward pass, when that is the way to take (PopLibs ``ConvPlan.cpp``
    createPlan): it fits, and the passes one by one do not or are not cheaper in all. The other passes are planned only
    while bounds leave that open.

    Simplifications: where neither fits, the passes are planned one by one (PopLibs takes the way of fewer bytes); and
    layers of more than :data:`_JOINT_ROWS` rows are: a joint plan does not split the rows, so it pays for few of them
    (of 377 random layers of up to 2,048 rows 8 were joint, all where memory was short).
    """
    limit = float(forward.limit)
    if forward.form.batch > _JOINT_ROWS:
        return None
    own, others = plan_once(forward), passes_of(forward)[1:]
    apart = own.total
    most = apart + sum(_quick_total(each) for each in others) if own.temp_bytes <= limit else math.inf
    layer = joint_plan(forward.chip, forward.form, forward.types, limit, most)
    if layer is None or own.temp_bytes > limit:
        return layer
    for number, each in enumerate(others):
        if layer.total <= apart + sum(_least_total(rest) for rest in others[number:]):
            return layer
        plan = plan_once(each)
        if plan.temp_bytes > limit:
            return layer
        apart += plan.total
    return layer if layer.total <= apart else None


@lru_cache(maxsize=512)
def layer_cost(forward: Request) -> LayerCost:
    """Cycles of the passes of a layer in training, planned together and apart, and which of the two it is."""
    layer = _joint_layer(forward)
    jointly = layer or joint_plan(forward.chip, forward.form, forward.types, float(forward.limit))
    apart = sum(plan_once(each).total for each in passes_of(forward))
    return LayerCost(jointly.total if jointly else None, apart, layer is not None)


def cheapest_in_training(request: Request) -> Found:
    """What is taken for one pass of a fully connected layer in training."""
    layer = _joint_layer(forward_of(request))
    if layer is None:
        return cheapest(request)
    index = TRAINING.index(request.form.pass_)
    part, terms, grid = layer.parts[index], layer.terms[index], layer.grids[index]
    cost = (int(terms["total"][0]), int(terms["temp_bytes"][0]), int(grid.tiles[0]))
    return Found(cost, part.form, part.kernel, layer.passes, grid, terms, part.cut)


@lru_cache(maxsize=4096)
def training_plan(request: Request) -> ConvolutionPlan:
    """:func:`cheapest_in_training` as a plan."""
    return explained(request, cheapest_in_training(request))
