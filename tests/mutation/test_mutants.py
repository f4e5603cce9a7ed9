"""What the mutation command changes in a file, and what it leaves alone."""

import importlib.util
import os
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

SQUARE = pow(LIMIT, LIMIT)
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


@pytest.fixture
def command(monkeypatch):
    """The command as a module, with a tree of one package beside it."""
    spec = importlib.util.spec_from_file_location("mutation_command", Path(__file__).with_name("run.py"))
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutation_command", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a mutant lives in a child of the process")
@pytest.mark.parametrize(
    ("imports", "code", "end"), [(True, 0, "survived"), (True, 1, "killed"), (False, 0, "not loaded")]
)
def test_a_mutant_that_nobody_imports_is_not_called_a_survivor(command, root, monkeypatch, imports, code, end):
    monkeypatch.setattr(command, "ROOT", root)

    def tests(*_):
        if imports:
            importlib.import_module("module")
        return code

    monkeypatch.setattr(command, "_pytest", tests)
    result = command.meet(mutants.mutants_of("module.py", root)[0], ["tests/test_module.py::test"], 1.0)
    assert result.end == end


def test_every_package_is_a_room(command):
    packages = {file.parent.name for file in (command.ROOT / "ipuperf").glob("*/__init__.py")} - set(command.FLOORS)
    assert set(command.ROOMS) > packages | {"frontends/poptorch", "frontends/tensorflow", "tools/levers", "tools/sweep"}


def test_every_file_is_of_one_room(command):
    files = sorted(str(file.relative_to(command.ROOT)) for file in (command.ROOT / "ipuperf").rglob("*.py"))
    drawn = {room: [str(f.relative_to(command.ROOT)) for f in command._files(room)] for room in command.ROOMS}
    assert sorted(file for each in drawn.values() for file in each) == files
    assert all(command.room_of(file) == room for room, each in drawn.items() for file in each)


def test_the_files_beside_the_packages_are_drawn(command):
    assert {mutant.file for mutant in command.draw(1, 100, ["ipuperf"])} >= {"ipuperf/frontends/enumerations.py"}


def test_a_test_that_is_gone_counts_for_nothing(command):
    file = "tests/mutation/" + __file__.rpartition("/")[2]
    assert command._is_there(f"{file}::test_every_package_is_a_room")
    assert not command._is_there(f"{file}::test_that_never_was")
    assert not command._is_there("tests/gone/test_gone.py::test_a")
