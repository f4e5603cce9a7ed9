"""The tables of the documentation say what the code has."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
OF_TENSORFLOW = "reference/tensorflow-operations.md"
WITH_TABLES = [
    name
    for path in sorted(DOCS.rglob("*.md"))
    if "<!-- table " in path.read_text(encoding="utf-8")
    and (name := path.relative_to(DOCS).as_posix()) != OF_TENSORFLOW
]


@pytest.fixture(scope="module")
def tables(installed_front_ends: Callable[[], AbstractContextManager[object]]) -> Iterator[ModuleType]:
    """``docs/tables.py``, which installs the front ends to look at them."""
    spec = importlib.util.spec_from_file_location("tables_of_docs", DOCS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with installed_front_ends():
        spec.loader.exec_module(module)
        yield module


@pytest.mark.heavy
@pytest.mark.parametrize("name", WITH_TABLES)
def test_tables_are_up_to_date(name: str, tables: ModuleType) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    assert tables.updated(text) == text, "python docs/tables.py --write"


def test_the_table_of_tensorflows_operations_is_up_to_date(tables: ModuleType) -> None:
    pytest.importorskip("tensorflow")
    text = (DOCS / OF_TENSORFLOW).read_text(encoding="utf-8")
    assert tables.needs_tensorflow(text)
    assert tables.updated(text) == text, "python docs/tables.py --write"


def test_every_op_module_with_costs_of_low_confidence_is_named() -> None:
    sources = {
        path.relative_to(DOCS.parent / "ipuperf" / "ops").as_posix(): path.read_text(encoding="utf-8")
        for path in (DOCS.parent / "ipuperf" / "ops").rglob("*.py")
    }
    flag = re.compile(r"low_confidence=(?!low_confidence)|_seeds\(.*True\)")
    said = re.findall(r"`ops/([\w/]+\.py)`", (DOCS / "accuracy" / "simplifications.md").read_text(encoding="utf-8"))
    assert {name for name, text in sources.items() if flag.search(text)} <= set(said)


def test_every_listed_name_is_there(tables: ModuleType) -> None:
    for module in tables.MODULES:
        found = importlib.import_module(f"ipuperf.{module}")
        for name in found.__all__:
            assert getattr(found, name) is not None


def test_the_guides_examples_of_errors_are_errors() -> None:
    from ipuperf.popxl import ops

    guide = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    (name,) = re.findall(r"`popxl\.ops\.(\w+) is not supported by ipuperf yet; supported: \.\.\.`", guide)
    with pytest.raises(AttributeError, match=f"popxl.ops.{name} is not supported by ipuperf yet; supported: "):
        getattr(ops, name)
    (imported,) = re.findall(r"cannot import name '(\w+)' from 'ipuperf.frontends.popxl.ops'", guide)
    with pytest.raises(ImportError, match=f"cannot import name '{imported}' from 'ipuperf.frontends.popxl.ops'"):
        exec(f"from ipuperf.popxl.ops import {imported}")


def test_a_table_that_is_out_of_date_is_seen(tables: ModuleType) -> None:
    stale = "a\n<!-- table trace -->\nold\n<!-- end of table -->\nb"
    assert "| `steps` |" in tables.updated(stale)
    assert tables.updated(stale).startswith("a\n")
    assert tables.updated(stale).endswith("\nb")
    with pytest.raises(KeyError):
        tables.updated("<!-- table nothing -->\n\n<!-- end of table -->")
