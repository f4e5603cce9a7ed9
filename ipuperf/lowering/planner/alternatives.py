"""Alternatives to a plan: the cheapest other plan, and the cost of its layer jointly and apart."""

from __future__ import annotations

from .form import TRAINING
from .layers import forward_of
from .layers import layer_cost as cost_of_layer
from .plan import ConvolutionPlan, LayerCost
from .search import plan_once, plan_without


def next_best(plan: ConvolutionPlan, ample: float = 0.0) -> ConvolutionPlan | None:
    """The cheapest plan with another vertex or form; None if no other fits.

    For a joint plan it is the plan of the pass alone. ``ample``: see :func:`~.search.plan_without`.
    """
    if plan.joint:
        return plan_once(plan.request)
    return plan_without(plan.request, plan.vertex, plan.form.changes, ample)


def layer_cost(plan: ConvolutionPlan) -> LayerCost | None:
    """Cost of a plan's layer jointly and apart; None if it is no pass of a fully connected layer in training."""
    return cost_of_layer(forward_of(plan.request)) if plan.pass_ in TRAINING else None
