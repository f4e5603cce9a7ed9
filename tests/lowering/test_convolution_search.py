"""The search for plans: each plan belongs to the option that it was found with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ipuperf.lowering import plan_convolution, plan_matmul
from ipuperf.lowering.planner.candidates import candidates_among, every_candidate, forms_of, serial_passes
from ipuperf.lowering.planner.form import ONCE, Passes, Types, product_form
from ipuperf.lowering.planner.kernels import hmac_kernels
from ipuperf.lowering.planner.plan import Request
from ipuperf.lowering.planner.search import Search, plan_once, plan_without
from ipuperf.machine import load_machine

CHIP = load_machine("gc200-1").chip
REQUEST = Request(CHIP, product_form(1, 32, 64, 96), Types(2, 2, 2), 0.6)


@pytest.fixture(scope="module")
def search():
    """Two vertices in one pass and in two."""
    return Search(REQUEST, every_candidate(REQUEST)[:2], (ONCE, Passes(out=2)), REQUEST.limit)


def test_a_plan_belongs_to_the_option_that_it_was_found_with(search):
    assert len(search.options) == 4
    plans = [search.best(number, math.inf, least_memory=False) for number in range(4)]
    assert [search.option_of(plan) for plan in plans] == [0, 1, 2, 3]
    assert [len(plan.grid.tiles) for plan in plans] == [1] * 4


def test_a_plan_of_another_search_belongs_to_no_option(search):
    other = Search(REQUEST, every_candidate(REQUEST)[2:3], (ONCE,), REQUEST.limit)
    assert search.option_of(other.best(0, math.inf, least_memory=False)) == -1


def test_the_option_of_a_known_plan_is_not_searched_again(search):
    """The others are: a search that knows the dearest plan ends with the same one as a search that knows none."""
    plans = [search.best(number, math.inf, least_memory=False) for number in range(4)]
    cheapest = min(plans, key=lambda plan: plan.cost)
    for number, plan in enumerate(plans):
        assert search.cheapest(math.inf, plan, number).cost == cheapest.cost == search.cheapest().cost


@pytest.mark.parametrize("pass_", ["nonemm", "fcfwd", "fcwu"])
def test_the_plan_of_least_memory_is_the_least_of_all_options(pass_):
    """And that of the first of equal ones, whatever its bounds are."""
    request = replace(REQUEST, form=product_form(1, 96, 64, 48, pass_))
    candidates = [*every_candidate(request), *candidates_among(request, forms_of(request), hmac_kernels, math.inf)]
    search = Search(request, candidates[::7], (ONCE, *serial_passes(request.form)), math.inf)
    options = [search.best(number, math.inf, least_memory=True) for number in range(len(search.options))]
    _, first = min((option.cost, number) for number, option in enumerate(options) if option)
    found = search.smallest()
    assert (found.cost, search.option_of(found)) == (options[first].cost, first)


def test_a_proportion_of_less_than_a_byte_has_a_plan():
    """The limit grows from there; it stayed at no byte for ever."""
    assert plan_once(replace(REQUEST, proportion=1e-9)).total >= plan_once(REQUEST).total


@pytest.mark.parametrize("proportion", [0.4, 0.15, 0.05, 0.01])
@pytest.mark.parametrize("shape", [(1, 32, 64, 96), (1, 192, 80, 640), (1, 512, 1024, 1024)])
def test_another_plan_that_is_searched_in_more_memory_is_that_of_its_request(shape, proportion):
    request = Request(CHIP, product_form(*shape), Types(2, 2, 2), proportion)
    chosen = plan_once(request)
    excluded = (chosen.vertex, chosen.form.changes)
    assert plan_without(request, *excluded, ample=0.6) == plan_without(request, *excluded)


@pytest.mark.parametrize("proportion", [0.05, 0.01, 0.004, 0.001])
@pytest.mark.parametrize("types", [Types(2, 2, 2), Types(4, 4, 4)])
@pytest.mark.parametrize("shape", [(1, 32, 64, 96), (3, 7, 24, 29), (1, 192, 80, 4)])
def test_serial_and_raised_plans_are_those_of_every_vertex(shape, types, proportion):
    """No vertex in one pass or in the serial passes that are tried is cheaper at the first limit that has a plan.

    Splits are priced one by one here, without bounds and guesses.
    """
    request = Request(replace(CHIP, tiles=12), product_form(*shape), types, proportion)
    plan = plan_once(request)
    dots = candidates_among(request, forms_of(request), hmac_kernels, math.inf)
    limit = max(request.limit, 1)
    while limit < 2 * CHIP.bytes_per_tile:
        every = Search(request, [*every_candidate(request), *dots], (ONCE, *serial_passes(request.form)), limit)
        bests = [every.best(number, math.inf, least_memory=False) for number in range(len(every.options))]
        if any(bests):
            assert plan.total <= min(best.cost[0] for best in bests if best)
            assert plan.temp_bytes <= limit
            return
        limit *= 2
    pytest.fail("no limit has a plan")


@pytest.mark.parametrize(
    "plan_for",
    [
        lambda share: plan_matmul(CHIP, 1, 614, 1718, 3732, "f32", "f32", amp=share),
        lambda share: plan_convolution(CHIP, 8, 64, 64, (56, 56), 3, 1, 1, 1, 1, "f16", "f32", "fwd", share),
        lambda share: plan_convolution("gc2", 1, 4, 4, (1122, 2200), 3, 1, 1, 1, 1, "f16", "f16", "fwd", share),
    ],
)
def test_less_memory_is_never_faster_where_the_plan_fits(plan_for):
    fitting = [
        plan for share in (0.6, 0.3, 0.2, 0.1, 0.05) if (plan := plan_for(share)).temp_bytes <= plan.request.limit
    ]
    assert len(fitting) >= 2
    totals = [plan.total for plan in fitting]
    assert totals == sorted(totals)


def test_memory_too_short_for_slic_takes_horizontal_macs():
    """PopLibs then has horizontal MACs, at a raised limit too.

    A published blur on a GC2 takes 27 times as long at 0.1 as at 0.6 (45.276 and 1.6564 ms for 100 runs). This shape
    is the one that fits its figures; the layout of its image is not published.
    """
    plenty, short = (
        plan_convolution("gc2", 1, 4, 4, (1122, 2200), 3, 1, 1, 1, 1, "f16", "f16", "fwd", share)
        for share in (0.6, 0.1)
    )
    assert (plenty.method, short.method) == ("SLIC", "HMAC")
    assert short.temp_bytes > short.request.limit
    assert short.total / plenty.total == pytest.approx(45.276 / 1.6564, rel=0.03)
