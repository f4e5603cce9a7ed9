"""One op maker and one optimiser of each kind: front ends have none of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ipuperf
from ipuperf.ir import Operand, Tensor

ROOM = Path(ipuperf.__file__).parent
UPDATE_OPS = ("AdamUpdater(", "AdamUpdater,", "ScaledAddLhsInplace,", "moving_average")


@pytest.mark.parametrize("front_end", ["poptorch", "tensorflow"])
def test_front_ends_make_no_update_ops(front_end) -> None:
    found = [
        f"{path.name}: {op}"
        for path in (ROOM / front_end).rglob("*.py")
        for op in UPDATE_OPS
        if op in path.read_text(encoding="utf-8")
    ]
    assert not found, "weight updates are made in ipuperf/functions/updates.py"


def test_poptorch_makes_its_ops_by_the_builder() -> None:
    pytest.importorskip("torch")
    from ipuperf.ir import Builder
    from ipuperf.poptorch.aten.lowering import Lowering

    assert issubclass(Lowering, Builder)
    assert not {"op", "ops"} & set(vars(Lowering))
    for path in (ROOM / "frontends" / "poptorch").rglob("*.py"):
        assert "graph.create(" not in path.read_text(encoding="utf-8"), path


def test_updates_do_not_ask_for_kinds() -> None:
    for path in (ROOM / "functions" / "updates.py", ROOM / "frontends" / "poptorch" / "optimisers" / "update_rules.py"):
        assert "kind ==" not in path.read_text(encoding="utf-8")
        assert "kind in" not in path.read_text(encoding="utf-8")


def test_operands_are_converted_in_the_order_of_the_arguments() -> None:
    """Not in that of a set of names, which would be another one in each process."""
    pytest.importorskip("torch")
    from ipuperf.ir import FLOAT32
    from ipuperf.poptorch.aten.rules import computed

    class Recorder:
        dtype = FLOAT32

        def __init__(self) -> None:
            self.seen: list[str] = []

        def tensor(self, value: str, dtype: Any) -> str:
            self.seen.append(value)
            return f"{value} as {dtype.name}"

    def function(a: Tensor, factor: float, b: Operand, c: Operand, d: Tensor, e: Tensor) -> Any:
        return a, factor, b, c, d, e

    low = Recorder()
    found = computed(function)(low, *"axbcde")
    assert low.seen == list("abcde")
    assert found == tuple("x" if n == "x" else f"{n} as float32" for n in "axbcde")
