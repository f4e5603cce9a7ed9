"""The golden tables that have a test for each case: ``costs.py`` says what the cases are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from casewise import cases_of, check

pytest.importorskip("torch")  # the cases are drawn by the random programs that PyTorch checks

from costs import CASEWISE


@pytest.fixture(scope="module", autouse=True)
def front_ends(installed_front_ends: Any) -> Iterator[None]:
    """Some programs are models, which import them."""
    with installed_front_ends():
        yield


def _check(table: str, case: str, request: pytest.FixtureRequest) -> None:
    cases = CASEWISE[table]
    check(table, list(cases), case, cases[case](), update=bool(request.config.getoption("--update-baselines")))


@pytest.mark.parametrize("case", CASEWISE["ops"])
def test_calls_of_a_function_cost_the_same(case: str, request: pytest.FixtureRequest) -> None:
    _check("ops", case, request)


@pytest.mark.parametrize("case", CASEWISE["programs"])
def test_programs_cost_the_same(case: str, request: pytest.FixtureRequest) -> None:
    _check("programs", case, request)


@pytest.mark.parametrize("case", CASEWISE["random_programs"])
def test_random_programs_cost_the_same(case: str, request: pytest.FixtureRequest) -> None:
    _check("random_programs", case, request)


@pytest.mark.parametrize("case", CASEWISE["collectives"])
def test_collectives_take_the_same_time(case: str, request: pytest.FixtureRequest) -> None:
    _check("collectives", case, request)


@pytest.mark.parametrize("case", CASEWISE["schedules"])
def test_device_programs_take_the_same_time(case: str, request: pytest.FixtureRequest) -> None:
    _check("schedules", case, request)


@pytest.mark.parametrize("case", CASEWISE["vertices"])
def test_vertices_take_the_same_cycles(case: str, request: pytest.FixtureRequest) -> None:
    _check("vertices", case, request)


@pytest.mark.parametrize("case", CASEWISE["plans"])
def test_plans_are_the_same(case: str, request: pytest.FixtureRequest) -> None:
    _check("plans", case, request)


@pytest.mark.parametrize("table", CASEWISE)
def test_tables_hold_these_cases_alone(table: str) -> None:
    assert cases_of(table) == set(CASEWISE[table])
