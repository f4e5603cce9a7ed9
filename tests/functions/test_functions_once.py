"""One op maker and one optimiser of each kind: front ends have none of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

import ipuperf

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
    from ipuperf.poptorch.aten_lowering import Lowering

    assert issubclass(Lowering, Builder)
    assert not {"op", "ops"} & set(vars(Lowering))
    for path in (ROOM / "poptorch").rglob("*.py"):
        assert "graph.create(" not in path.read_text(encoding="utf-8"), path


def test_updates_do_not_ask_for_kinds() -> None:
    for path in (ROOM / "functions" / "updates.py", ROOM / "poptorch" / "update_rules.py"):
        assert "kind ==" not in path.read_text(encoding="utf-8")
        assert "kind in" not in path.read_text(encoding="utf-8")
