"""Inside these rooms no module imports another in a circle, not even for types."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "ipuperf"


def imports(room):
    """``{module: modules of the room that it imports}``, names relative to the room; planner files aside."""
    files = {
        ".".join(path.relative_to(ROOT / room).with_suffix("").parts): path
        for path in (ROOT / room).rglob("*.py")
        if path.stem != "__init__" and not path.stem.startswith("convolution_") and "planner" not in path.parts
    }
    found = {}
    for name, path in files.items():
        package = name.split(".")[:-1]
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
                named = [".".join([*base, alias.name]) for alias in node.names]
                found[name].update(module for module in (".".join(base), *named) if module in files)
    return found


@pytest.mark.parametrize("room", ["lowering", "simulation"])
def test_no_circles(room):
    left = imports(room)
    assert len(left) > 20
    while left:
        free = [module for module, others in left.items() if not others & left.keys()]
        assert free, f"modules that import each other: {sorted(left)}"
        for module in free:
            del left[module]
