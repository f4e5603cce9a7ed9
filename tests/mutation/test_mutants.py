"""What the mutation command changes in a file, and what it leaves alone."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("mutants", Path(__file__).with_name("mutants.py"))
mutants = sys.modules.setdefault("mutants", importlib.util.module_from_spec(_spec))
_spec.loader.exec_module(mutants)

SOURCE = '''\
"""A docstring of 1 line."""
LIMIT = 3

def clamp(value: int = 1, *, whole: bool = True) -> int:
    """At most LIMIT + 1."""
    if value > LIMIT and not whole:
        raise ValueError("more than" + str(LIMIT + 1))
    return min(value, LIMIT) - power(value, 2)
'''

CHANGED = [
    (2, "constant", "3", "4", True),
    (4, "constant", "True", "False", True),
    (4, "constant", "1", "2", True),
    (6, "boolean", "value > LIMIT and (not whole)", "value > LIMIT or not whole", False),
    (6, "comparison", "value > LIMIT", "value >= LIMIT", False),
    (6, "boolean", "not whole", "whole", False),
    (8, "arithmetic", "min(value, LIMIT) - power(value, 2)", "min(value, LIMIT) + power(value, 2)", False),
    (8, "swapped arguments", "power(value, 2)", "power(2, value)", False),
    (8, "constant", "2", "3", False),
]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "module.py").write_text(SOURCE)
    return tmp_path


def test_what_is_changed_and_what_is_not(root):
    found = mutants.mutants_of("module.py", root)
    assert [(m.line, m.kind, m.before, m.after, m.importing) for m in found] == CHANGED


def test_a_mutant_differs_in_one_place(root):
    last = mutants.mutants_of("module.py", root)[-2]
    names = {"power": pow}
    exec(compile(mutants.mutated(last, root), "module.py", "exec"), names)
    assert names["clamp"](3) == 3 - 2**3
    assert (root / "module.py").read_text() == SOURCE


def test_statements_that_only_act_are_deleted(root):
    (root / "module.py").write_text("def f(a):\n    a.append(1)\n    a[0] = a\n    b = 1\n    return b\n")
    found = [(m.line, m.kind) for m in mutants.mutants_of("module.py", root)]
    assert found == [(2, "deletion"), (2, "constant"), (3, "deletion"), (3, "constant"), (4, "constant")]


def test_a_mutant_of_another_version_is_refused(root):
    mutant = replace(mutants.mutants_of("module.py", root)[0], before="7")
    with pytest.raises(ValueError, match="module.py:2 is not '7' any more"):
        mutants.mutated(mutant, root)
