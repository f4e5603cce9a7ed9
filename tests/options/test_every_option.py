"""Every row of the catalogue of options, in the vocabulary of each front end: what a program is told of it."""

import warnings
from typing import Any

import pytest

from ipuperf.frontends.options import (
    APPLIED,
    NO_DIFFERENCE,
    NO_EFFECT,
    UNSUPPORTED,
    VOCABULARIES,
    Effects,
    Member,
    Option,
)

ROWS = [(front_end, name) for front_end in VOCABULARIES for name in Effects(front_end)]


class Refused(Exception):
    """The error of the front end."""


def told(front_end: str, name: str, value: Any) -> list[str]:
    """The warnings and the error for one value."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        try:
            Effects(front_end, Refused).given(name, value)
        except Refused as error:
            return [str(error)]
    return [str(message.message) for message in messages]


@pytest.mark.parametrize(("front_end", "name"), ROWS)
def test_what_a_program_is_told(front_end: str, name: str) -> None:
    row, other = Effects(front_end)[name], object()
    assert row.status in (APPLIED, NO_EFFECT, NO_DIFFERENCE, UNSUPPORTED)
    assert (row.status == APPLIED) == (row.reason == "")
    shown = f"{name[:-1]}={other!r})" if name.endswith(")") else f"{name} = {other!r}"
    expected = {
        NO_EFFECT: [f"{front_end}.{name} is without effect: {row.reason}"],
        UNSUPPORTED: [f"{front_end}.{shown} is not supported: {row.reason}"],
    }
    assert told(front_end, name, other) == expected.get(row.status, [])
    for value in row.neutral:
        assert isinstance(value, Member) or told(front_end, name, value) == []


@pytest.mark.parametrize(
    ("accepts", "good", "bad"),
    [
        ("bool", [True, False], [0, None]),
        ("int >= 1", [1, 2], [0, True, 1.0]),
        ("number", [1, 0.5], [True, float("nan"), "1"]),
        ("share", [0.5], [0.0, 1.0, 1]),
        ("half|float", ["half"], ["double", 1]),
        ("0 Off, 1 Zeros", [0, 1], [2, -1, True]),
    ],
)
def test_values_that_a_row_accepts(accepts: str, good: list[Any], bad: list[Any]) -> None:
    row = Option(APPLIED, accepts=accepts)
    assert [row.refusal(value) for value in good] == [""] * len(good)
    assert all(row.refusal(value) for value in bad)


def test_one_argument_is_told_once_and_at_the_programs_line() -> None:
    with warnings.catch_warnings(record=True) as messages:
        warnings.resetwarnings()
        warnings.simplefilter("once")
        for value in (True, False, 0, 1):  # False is not 0
            Effects("popxl").given("ops.call_with_info(check_inputs)", value)
    assert len(messages) == 1
    assert messages[0].filename == __file__
