"""Which modules of the ops import which."""

import ast
from pathlib import Path

from ipuperf import ops


def test_modules_of_ops_import_each_other_in_one_direction() -> None:
    """No circle among the imports at module level (those for the type checker apart)."""
    modules = Path(ops.__file__).parent.glob("*.py")
    needs = {path.stem: _imported(path) for path in modules if path.stem != "__init__"}
    while needs:
        free = [module for module, others in needs.items() if not others & needs.keys()]
        assert free, f"circle among {sorted(needs)}"
        for module in free:
            del needs[module]


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
    return found
