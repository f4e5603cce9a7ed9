"""Plans on a chip with changed figures: its own plan, and the plan of the preset it comes from.

The search compares estimates, as PopLibs' planner does. Lowering also charges launches, syncs and rearrangements, which
these leave out. So a better figure may change the order of two estimates and lead to a slower plan. A chip with changed
figures can run the preset's plan as well, so lowering chooses between the two plans by the cycles it charges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from .form import TRAINING
from .kernels import amp_units
from .layers import cheapest_in_training, forward_of, passes_of, training_plan
from .plan import ConvolutionPlan, Request, explained
from .search import cheapest, plan_once
from .terms import operand_terms, with_reduction
from .vertices import inner_cycles, vertex_cycles

#: Plans of one pass, or of it and the other two of its layer in training, which are taken together.
Way = tuple[ConvolutionPlan, ...]


def ways(request: Request) -> Sequence[Way]:
    """The ways to carry out a request, with the plan of ``request`` first in each; a preset's chip has one."""
    # The search was made for the figures of a preset, so its plan needs no rival.
    if request.chip.original is None:
        return [(_searched(request),)]
    requests: tuple[Request, ...] = (request,)
    if request.form.pass_ in TRAINING:
        requests += tuple(
            other_request
            for other_request in passes_of(forward_of(request))
            if other_request.form.pass_ != request.form.pass_
        )
    searched = tuple(_searched(other_request) for other_request in requests)
    original_plans = tuple(plan for plan in map(_of_original, requests) if plan is not None)
    # The plans of a layer's passes belong together, so the original's count only if this chip has them all.
    return (
        [searched, original_plans]
        if len(original_plans) == len(searched) and original_plans != searched
        else [searched]
    )


def _searched(request: Request) -> ConvolutionPlan:
    return training_plan(request) if request.form.pass_ in TRAINING else plan_once(request)


@lru_cache(maxsize=4096)
def _of_original(request: Request) -> ConvolutionPlan | None:
    """The plan of the original chip with its cycles on this chip.

    It is None where this chip has too few tiles, AMP units or bytes for it.
    """
    chip, types, original = request.chip, request.types, request.chip.original
    assert original is not None
    original_request = replace(request, chip=original)
    best = cheapest_in_training(original_request) if request.form.pass_ in TRAINING else cheapest(original_request)
    form, kernel, grid = best.form, best.kernel, best.grid
    units = [amp_units(some_chip, types.input, types.partial) for some_chip in (chip, original)]
    # A vertex for more AMP units than the chip has cannot run on it.
    if grid.tiles[0] > chip.tiles or units[0] < units[1]:
        return None
    # The splits are the original's; their cycles follow from the figures of this chip.
    grid = replace(grid, inner=inner_cycles(grid.piece.batch, grid.piece.field, form, kernel, chip))
    compute = vertex_cycles(grid.piece, grid.inner, form, kernel, chip)
    terms = operand_terms(form, kernel, grid, compute, types, best.passes, chip, best.cut)
    terms = with_reduction(terms, kernel, grid, types, best.passes, chip)
    # The original's plan may exceed the limit itself, when nothing fits; then it may do so here.
    fits = terms["temp_bytes"][0] <= max(request.limit, best.cost[1])
    return explained(request, replace(best, grid=grid, terms=terms)) if fits else None
