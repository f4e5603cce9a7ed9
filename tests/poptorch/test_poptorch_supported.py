"""Every operation of PopTorch's documentation: values and gradients against PyTorch, in float32 and float16."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
from supportedcases import CASES, SCATTER, Supported, checked  # noqa: E402

FIXED = {name: case for name, case in CASES.items() if not case.random}
HALF = {
    name: case for name, case in FIXED.items() if case.float16 and any(o.is_floating_point() for o in case.operands)
}


@pytest.mark.parametrize("case", FIXED.values(), ids=FIXED)
def test_is_pytorchs_in_float32(case: Supported, check_all: Any) -> None:
    check_all({"only": case.function}, *case.operands)


@pytest.mark.parametrize("case", HALF.values(), ids=HALF)
def test_is_pytorchs_in_float16(case: Supported, check_all: Any) -> None:
    operands = [o.half() if o.is_floating_point() else o for o in case.operands]
    check_all({"only": case.function}, *operands, rtol=1e-2, atol=1e-2)


def test_the_documented_table_says_what_is_checked() -> None:
    with (Path(__file__).parent / "supported.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["operation"]: row for row in csv.DictReader(file)}
    assert list(rows) == [*CASES, *SCATTER]
    for name, case in CASES.items():
        assert (rows[name]["checked"], rows[name]["remark"]) == (checked(case), case.remark), name
    for name in SCATTER:
        assert not rows[name]["checked"]
        assert rows[name]["remark"].startswith("refused")
