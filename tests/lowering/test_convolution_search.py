"""The search for plans: each plan belongs to the option that it was found with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ipuperf.lowering.planner.candidates import every_candidate
from ipuperf.lowering.planner.form import ONCE, Passes, Types, product_form
from ipuperf.lowering.planner.plan import Request
from ipuperf.lowering.planner.search import Search, plan_once
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


def test_a_proportion_of_less_than_a_byte_has_a_plan():
    """The limit grows from there; it stayed at no byte for ever."""
    assert plan_once(replace(REQUEST, proportion=1e-9)).total >= plan_once(REQUEST).total
