"""Every operation of PopTorch's documentation: values and gradients against PyTorch, in float32 and float16."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from supportedcases import CASES, SCATTER, Supported, checked  # noqa: E402

FIXED = {name: case for name, case in CASES.items() if not case.random}
HALF = {
    name: case for name, case in FIXED.items() if case.float16 and any(o.is_floating_point() for o in case.operands)
}


TOGETHER = 12
"""Operations in one export: PyTorch takes longer for an export than for what is in it."""


def groups(cases: dict[str, Supported]) -> list[Any]:
    """The cases, so many in one test."""
    names = list(cases)
    parts = [names[first : first + TOGETHER] for first in range(0, len(names), TOGETHER)]
    return [pytest.param({name: cases[name] for name in part}, id=f"{part[0]}-to-{part[-1]}") for part in parts]


def all_are_pytorchs(check_all: Any, cases: dict[str, Supported], half: bool, **tolerance: float) -> None:
    """Compare all in one export; where that fails, each alone tells which."""

    def check(names: Iterable[str]) -> None:
        operands = {
            f"case{list(cases).index(name)}": [
                o.half() if half and o.is_floating_point() else o for o in cases[name].operands
            ]
            for name in names
        }
        functions = {key: cases[name].function for key, name in zip(operands, names, strict=True)}
        check_all(functions, operands=operands, **tolerance)

    try:
        check(cases)
    except Exception:
        for name in cases:
            try:
                check([name])
            except Exception as error:
                raise AssertionError(f"{name}: {error}") from error
        raise


@pytest.mark.heavy
@pytest.mark.parametrize("cases", groups(FIXED))
def test_are_pytorchs_in_float32(cases: dict[str, Supported], check_all: Any) -> None:
    all_are_pytorchs(check_all, cases, half=False)


@pytest.mark.heavy
@pytest.mark.parametrize("cases", groups(HALF))
def test_are_pytorchs_in_float16(cases: dict[str, Supported], check_all: Any) -> None:
    all_are_pytorchs(check_all, cases, half=True, rtol=1e-2, atol=1e-2)


def test_the_documented_table_says_what_is_checked() -> None:
    with (Path(__file__).parent / "supported.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["operation"]: row for row in csv.DictReader(file)}
    assert list(rows) == [*CASES, *SCATTER]
    for name, case in CASES.items():
        assert (rows[name]["checked"], rows[name]["remark"]) == (checked(case), case.remark), name
    for name in SCATTER:
        assert not rows[name]["checked"]
        assert rows[name]["remark"].startswith("refused")
