"""Plans on a chip whose figures were changed: its own, and that of the preset it comes from.

The search compares estimates, as PopLibs' planner does; lowering charges launches, syncs and rearrangements that these
leave out. So a better figure may change the order of two estimates and bring a plan that takes longer. A chip with
changed figures can do what the preset's plan says as well, so that lowering chooses between the two by what it charges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from .form import TRAINING
from .layers import cheapest_in_training, forward_of, passes_of, training_plan
from .plan import ConvolutionPlan, Request, explained
from .search import cheapest, plan_once
from .terms import operand_terms, with_reduction
from .vertices import amp_units, inner_cycles, vertex_cycles

#: Plans of one pass, or of it and the other two of its layer in training, which are taken together.
Way = tuple[ConvolutionPlan, ...]


def ways(request: Request) -> Sequence[Way]:
    """The ways to do what is asked, the plan of ``request`` first in each: of a preset's chip one."""
    if request.chip.original is None:
        return [(_searched(request),)]
    requests: tuple[Request, ...] = (request,)
    if request.form.pass_ in TRAINING:
        requests += tuple(each for each in passes_of(forward_of(request)) if each.form.pass_ != request.form.pass_)
    searched = tuple(_searched(each) for each in requests)
    taken_over = tuple(plan for plan in map(_of_original, requests) if plan is not None)
    return [searched, taken_over] if len(taken_over) == len(searched) and taken_over != searched else [searched]


def _searched(request: Request) -> ConvolutionPlan:
    return training_plan(request) if request.form.pass_ in TRAINING else plan_once(request)


@lru_cache(maxsize=4096)
def _of_original(request: Request) -> ConvolutionPlan | None:
    """The plan of the original chip with its cycles on this one; None where this one has too few tiles, AMP units or
    bytes for it."""
    chip, types, original = request.chip, request.types, request.chip.original
    assert original is not None
    asked = replace(request, chip=original)
    found = cheapest_in_training(asked) if request.form.pass_ in TRAINING else cheapest(asked)
    form, kernel, grid = found.form, found.kernel, found.grid
    units = [amp_units(each, types.input, types.partial) for each in (chip, original)]
    if grid.tiles[0] > chip.tiles or units[0] < units[1]:
        return None
    grid = replace(grid, inner=inner_cycles(grid.piece.batch, grid.piece.field, form, kernel, chip))
    compute = vertex_cycles(grid.piece, grid.inner, form, kernel, chip)
    terms = operand_terms(form, kernel, grid, compute, types, found.passes, chip, found.cut)
    terms = with_reduction(terms, kernel, grid, types, found.passes, chip)
    fits = terms["temp_bytes"][0] <= max(request.limit, found.cost[1])
    return explained(request, replace(found, grid=grid, terms=terms)) if fits else None
