"""Costs of functions, programs, device programs and vertices: ``costs.py`` says what the cases are."""

from collections.abc import Iterator
from typing import Any

import pytest
from answers import together
from executables import lines
from rows import Golden

pytest.importorskip("torch")  # the cases are drawn by the random programs that PyTorch checks

from costs import COLLECTIVES, OPS, PROGRAMS_BUILT, RANDOM, SCHEDULES, program_rows
from plans import PLANS
from vertices import VERTICES


@pytest.fixture(scope="module", autouse=True)
def front_ends(installed_front_ends: Any) -> Iterator[None]:
    """Some programs are models, which import them."""
    with installed_front_ends():
        yield


@pytest.mark.heavy
@together(OPS, lambda name: name[: name.rindex(".") + 2])
def test_calls_of_functions_cost_the_same(cases: list[str], golden: Golden) -> None:
    golden([line for case in cases for line in (case, *lines(OPS[case]()))])


@pytest.mark.parametrize("case", PROGRAMS_BUILT)
def test_programs_cost_the_same(case: str, golden: Golden) -> None:
    golden(lines(program_rows(PROGRAMS_BUILT[case])))


@pytest.mark.parametrize("case", RANDOM)
def test_random_programs_cost_the_same(case: str, golden: Golden) -> None:
    golden(lines(program_rows(*RANDOM[case])))


@pytest.mark.parametrize("case", COLLECTIVES)
def test_collectives_take_the_same_time(case: str, golden: Golden) -> None:
    golden(lines(COLLECTIVES[case]()))


@pytest.mark.parametrize("case", SCHEDULES)
def test_device_programs_take_the_same_time(case: str, golden: Golden) -> None:
    golden(lines(SCHEDULES[case]()))


@pytest.mark.parametrize("case", VERTICES)
def test_vertices_take_the_same_cycles(case: str, golden: Golden) -> None:
    golden(lines(VERTICES[case]()))


@pytest.mark.parametrize("case", PLANS)
def test_plans_are_the_same(case: str, golden: Golden) -> None:
    golden(lines(PLANS[case]()))
