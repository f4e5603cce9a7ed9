"""Plans on a chip with changed figures: those of the preset it comes from, and of chips between the two.

The search compares estimates, as PopLibs' planner does. Lowering also charges launches, syncs and rearrangements, which
these leave out. So a better figure may change the order of two estimates and lead to a slower plan. A chip with changed
figures can run the plans of a weaker chip as well, so lowering chooses among several plans by the cycles it charges.

A chip that is nowhere weaker than its preset has the plans of fixed rungs (:data:`_RUNGS`) between the preset's figures
and its own. Where one figure is changed, a better chip has the plans of a weaker one and more, so it is never slower.
Where several are, they climb the rungs together, and a plan of a chip with fewer changes may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .form import TRAINING
from .kernels import amp_units
from .layers import cheapest_in_training, forward_of, passes_of, training_plan
from .plan import ConvolutionPlan, Request, explained
from .search import cheapest, plan_once
from .terms import operand_terms, with_reduction
from .vertices import inner_cycles, vertex_cycles

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: Plans of one pass, or of it and the other two of its layer in training, which are taken together.
Way = tuple[ConvolutionPlan, ...]


#: Figures that the search depends on and of which more is better.
_FIGURES = (
    "tiles",
    "bytes_per_tile",
    "exchange_bytes_per_cycle",
    "memcpy_bytes_per_cycle",
    "weight_load_bytes_per_cycle",
    "amp_units_f16_f16",
    "amp_units_f16_f32",
    "amp_units_f32_f32",
)

#: Figures that the search never reads. With those of the preset, chips that differ in nothing else share its plans.
_UNREAD = (
    "clock_hz",
    "exchange_setup_cycles",
    "sync_cycles",
    "external_sync_cycles",
    "launch_cycles",
    "division_cycles",
    "alignment_bytes",
    "copy_setup_cycles",
    "strided_copy_cycles_per_byte",
    "rearrangement",
    "code",
)

#: Factors on the preset's figures for which plans are searched.
_RUNGS = tuple(factor * 2**doubling for doubling in range(8) for factor in (1.0, 1.25, 1.5))


def _rungs(chip: Chip) -> list[Chip] | None:
    """Chips whose plans ``chip`` can run, from its preset upwards; None where it is weaker than the preset.

    A figure between two rungs counts as the lower one, as a better chip would lack plans for the figure itself. Other
    figures than :data:`_FIGURES` are the chip's, but for those that the search never reads.
    """
    original = chip.original
    assert original is not None
    rungs: dict[str, list[int]] = {}
    for name in _FIGURES:
        own, preset = getattr(chip, name), getattr(original, name)
        if own < preset:
            return None
        rungs[name] = [int(preset * factor) for factor in _RUNGS if preset * factor <= own]
    most = max(map(len, rungs.values()))
    searched = replace(chip, original=None, **{name: getattr(original, name) for name in _UNREAD})
    chips = []
    for step in range(most):
        figures: dict[str, Any] = {name: values[min(step, len(values) - 1)] for name, values in rungs.items()}
        chips.append(replace(searched, **figures))
    return list(dict.fromkeys(chips))


def ways(request: Request) -> Sequence[Way]:
    """The ways to carry out a request, with the plan of ``request`` first in each; a preset's chip has one."""
    original = request.chip.original
    # The search was made for the figures of a preset, so its plan needs no rival.
    if original is None:
        return [(_searched(request),)]
    requests: tuple[Request, ...] = (request,)
    if request.form.pass_ in TRAINING:
        requests += tuple(
            other_request
            for other_request in passes_of(forward_of(request))
            if other_request.form.pass_ != request.form.pass_
        )
    rungs = _rungs(request.chip)
    choices: list[Way] = [] if rungs else [tuple(_searched(other_request) for other_request in requests)]
    for chip in rungs or [original]:
        plans = tuple(
            plan for plan in (_of_chip(other_request, chip) for other_request in requests) if plan is not None
        )
        # The plans of a layer's passes belong together, so those of another chip count only if this chip has them all.
        if len(plans) == len(requests) and plans not in choices:
            choices.append(plans)
    return choices


def _searched(request: Request) -> ConvolutionPlan:
    return training_plan(request) if request.form.pass_ in TRAINING else plan_once(request)


@lru_cache(maxsize=4096)
def _of_chip(request: Request, searched: Chip) -> ConvolutionPlan | None:
    """The plan of the chip ``searched`` with its cycles on the chip of ``request``.

    It is None where this chip has too few tiles, AMP units or bytes for it.
    """
    chip, types = request.chip, request.types
    original_request = replace(request, chip=searched)
    best = cheapest_in_training(original_request) if request.form.pass_ in TRAINING else cheapest(original_request)
    form, kernel, grid = best.form, best.kernel, best.grid
    units = [amp_units(some_chip, types.input, types.partial) for some_chip in (chip, searched)]
    # A vertex for more AMP units than the chip has cannot run on it.
    if grid.tiles[0] > chip.tiles or units[0] < units[1]:
        return None
    # The splits are those of the other chip; their cycles follow from the figures of this chip.
    grid = replace(grid, inner=inner_cycles(grid.piece.batch, grid.piece.field, form, kernel, chip))
    compute = vertex_cycles(grid.piece, grid.inner, form, kernel, chip)
    terms = operand_terms(form, kernel, grid, compute, types, best.passes, chip, best.cut)
    terms = with_reduction(terms, kernel, grid, types, best.passes, chip)
    # Its plan may exceed the limit itself, when nothing fits; then it may do so here.
    fits = terms["temp_bytes"][0] <= max(request.limit, best.cost[1])
    return explained(request, replace(best, grid=grid, terms=terms)) if fits else None
