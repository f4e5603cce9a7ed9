"""The planner as a room: no import runs in a circle, and a plan knows no search."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx

import ipuperf.lowering.planner as room

FOLDER = Path(room.__file__).parent


def imports(path: Path) -> set[str]:
    """Modules of the room that a module imports anywhere: at its top, in functions, for types only."""
    found = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    inside = [node for node in found if node.level == 1 or (node.module or "").startswith(room.__name__)]
    names = {(node.module or "").rsplit(".", 1)[-1] for node in inside if node.module}
    return names | {alias.name for node in inside if not node.module for alias in node.names}


MODULES = {path.stem: imports(path) for path in FOLDER.glob("*.py") if path.stem != "__init__"}


def test_imports_of_the_planner_run_in_no_circle() -> None:
    known = networkx.DiGraph([(name, other) for name, others in MODULES.items() for other in others])
    assert sorted(networkx.simple_cycles(known)) == []
    assert len(MODULES) >= 13


def test_a_plan_is_a_value() -> None:
    assert MODULES["plan"] <= {"form", "kernels", "splits"}
    assert {"next_best", "layer_cost"}.isdisjoint(vars(room.plan.ConvolutionPlan))
