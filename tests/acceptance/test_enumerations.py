"""Every enumeration of ipuperf prints and counts as upstream's: pybind11's, or one of Python 3.8's ``enum``.

The classes are read off the sources, so that a new one is tested without being named here.
"""

import ast
import importlib
import json
from enum import Enum, Flag, IntEnum
from operator import attrgetter, index
from pathlib import Path

import pytest

import ipuperf
from ipuperf.frontends.enumerations import NativeEnum, NumberedEnum

ROOT = Path(ipuperf.__file__).parent
BASES = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "ReprEnum", "NativeEnum", "NumberedEnum"}


def classes(tree: ast.AST, outer: str = "") -> list[str]:
    """Names of the enumerations in a source, those within classes too."""
    names = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            bases = {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
            names += [f"{outer}{node.name}"] * bool(bases & BASES)
            names += classes(node, f"{outer}{node.name}.")
    return names


DECLARED = [
    (".".join(path.relative_to(ROOT.parent).with_suffix("").parts), name)
    for path in sorted(ROOT.rglob("*.py"))
    if path.name != "enumerations.py" and "num" in (text := path.read_text(encoding="utf-8"))
    for name in classes(ast.parse(text))
]


def test_there_are_enumerations() -> None:
    assert len(DECLARED) > 40
    assert {f"ipuperf.frontends.{m}" for m in ("popart.enums", "poptorch.enums", "pva.compilation")} <= {
        m for m, _ in DECLARED
    }


@pytest.mark.parametrize(("module", "name"), DECLARED, ids=lambda text: text.removeprefix("ipuperf."))
def test_members_print_as_upstreams(module: str, name: str) -> None:
    if module.startswith("ipuperf.frontends.poptorch"):
        pytest.importorskip("torch")
    if module.startswith("ipuperf.frontends.tensorflow"):
        pytest.importorskip("tensorflow")
    kind = attrgetter(name)(importlib.import_module(module))
    assert issubclass(kind, Enum)
    assert not issubclass(kind, Flag)
    assert not issubclass(kind, IntEnum) or issubclass(kind, NumberedEnum), "IntEnum prints numbers from Python 3.11 on"
    if module.startswith(("ipuperf.frontends.popart.", "ipuperf.frontends.pva.")):
        assert issubclass(kind, NativeEnum)
    for member in kind:
        text = f"{kind.__name__}.{member.name}"
        assert (str(member), repr(member)) == (text, f"<{text}: {member.value!r}>")
        if issubclass(kind, NumberedEnum):
            assert (f"{member}", f"{member:>4}") == (str(member.value), f"{member.value:>4}")
            assert json.dumps({"option": member}) == f'{{"option": {member.value}}}'
            continue
        assert (f"{member}", f"{member:s}") == (text, text)
        with pytest.raises(TypeError):
            json.dumps(member)
        if issubclass(kind, NativeEnum):
            assert int(member) == index(member) == member.value != member
            assert kind(int(member)) is member
