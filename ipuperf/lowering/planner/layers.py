"""Fully connected layers in training: their three passes are planned jointly when that is cheaper in all.

Otherwise they are planned one by one (PopLibs ``lib/poplin/ConvPlan.cpp`` createPlan).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from .candidates import every_candidate, output_passes, smaller_passes
from .form import ONCE, TRAINING, product_form
from .joint import Layer, joint_plan
from .plan import BestSplit, ConvolutionPlan, LayerCost, Request, explained
from .search import Search, cheapest, likeliest, plan_once, quick_plan

#: The largest number of rows (batch) of a fully connected layer for which a joint plan is searched.
_JOINT_ROWS = 512


def passes_of(forward: Request) -> tuple[Request, Request, Request]:
    """The forward, backward and update pass of the layer, each as a product of its own."""
    form = forward.form
    m, k, n = form.batch, form.in_channels, form.out_channels
    sizes = ((m, k, n), (m, n, k), (k, m, n))
    forward_pass, backward_pass, update_pass = (
        replace(forward, form=product_form(form.groups, *product_sizes, name))
        for product_sizes, name in zip(sizes, TRAINING, strict=True)
    )
    return forward_pass, backward_pass, update_pass


def forward_of(request: Request) -> Request:
    """The forward pass of the layer that ``request`` is a pass of."""
    form = request.form
    m, k, n = form.batch, form.in_channels, form.out_channels
    sizes = {"fcfwd": (m, k, n), "fcbwd": (m, n, k), "fcwu": (k, m, n)}[form.pass_]
    return replace(request, form=product_form(form.groups, *sizes, "fcfwd"))


def _quick_total(request: Request) -> float:
    """Cycles of a plan that fits, from a quick search; infinite when no likely vertex has one."""
    if best := quick_plan(request):
        return best.cost[0]
    for ways in (output_passes(request.form), smaller_passes(request.form)):
        if best := Search(request, likeliest(request), ways, request.limit).cheapest():
            return best.cost[0]
    return math.inf


def _least_total(request: Request) -> float:
    """A lower bound of the cycles of any plan of a pass, whatever the memory."""
    return min((candidate.least(ONCE) for candidate in every_candidate(request)), default=0.0)


@lru_cache(maxsize=4096)
def _joint_layer(forward: Request) -> Layer | None:
    """The joint plan of the layer with this forward pass, or None when the passes are planned one by one.

    The joint plan is chosen when it fits and the passes one by one do not fit or are not cheaper in all (PopLibs
    ``ConvPlan.cpp`` createPlan). The other passes are planned only while bounds leave that open.

    Simplifications: Where neither fits, the passes are planned one by one; PopLibs takes the way of fewer bytes. So are
    layers of more than :data:`_JOINT_ROWS` rows. A joint plan does not split the rows, so it rarely pays for many of
    them (of 377 random layers of up to 2,048 rows 8 were joint, all where memory was short).
    """
    limit = float(forward.limit)
    if forward.form.batch > _JOINT_ROWS:
        return None
    forward_plan, others = plan_once(forward), passes_of(forward)[1:]
    apart = forward_plan.total
    bound = apart + sum(_quick_total(request) for request in others) if forward_plan.temp_bytes <= limit else math.inf
    layer = joint_plan(forward.chip, forward.form, forward.types, limit, bound)
    # Passes one by one do not fit, so a joint plan is chosen if there is one.
    if layer is None or forward_plan.temp_bytes > limit:
        return layer
    # Planning a pass takes long, so the bounds are tried first.
    for number, request in enumerate(others):
        if layer.total <= apart + sum(_least_total(later_request) for later_request in others[number:]):
            return layer
        plan = plan_once(request)
        if plan.temp_bytes > limit:
            return layer
        apart += plan.total
    return layer if layer.total <= apart else None


@lru_cache(maxsize=512)
def layer_cost(forward: Request) -> LayerCost:
    """Cycles of the passes of a layer in training, planned jointly and one by one, and which way is chosen."""
    layer = _joint_layer(forward)
    # The answer shows both prices, so a joint plan is searched even where it is not chosen.
    jointly = layer or joint_plan(forward.chip, forward.form, forward.types, float(forward.limit))
    apart = sum(plan_once(request).total for request in passes_of(forward))
    return LayerCost(jointly.total if jointly else None, apart, layer is not None)


def cheapest_in_training(request: Request) -> BestSplit:
    """The split that is chosen for one pass of a fully connected layer in training."""
    layer = _joint_layer(forward_of(request))
    if layer is None:
        return cheapest(request)
    index = TRAINING.index(request.form.pass_)
    part, terms, grid = layer.parts[index], layer.terms[index], layer.grids[index]
    cost = (int(terms["total"][0]), int(terms["temp_bytes"][0]), int(grid.tiles[0]))
    return BestSplit(cost, part.form, part.kernel, layer.passes, grid, terms, part.cut)


@lru_cache(maxsize=4096)
def training_plan(request: Request) -> ConvolutionPlan:
    """:func:`cheapest_in_training` as a plan."""
    return explained(request, cheapest_in_training(request))
