"""What modules say once, when they are imported: defaults of aten ops against PyTorch's schemas, enumerations,
constants and defaults of all functions.

Each module is executed anew, so that what it says is looked at here, not what another test imported.
"""

from __future__ import annotations

import ast
import enum
import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from outcomes import check_rows

torch = pytest.importorskip("torch")

from ipuperf.poptorch import aten  # noqa: E402
from ipuperf.testing import CycleBaseline  # noqa: E402

FILE = Path(__file__).parent / "every_function.csv"
MODULES = sorted(path.stem for path in Path(aten.__file__).parent.glob("aten_*.py") if path.stem != "aten_marks")


def fresh(name: str) -> Any:
    """A module, executed anew."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def plain(default: Any) -> Any:
    """A default as handlers have it: one number for all axes."""
    if isinstance(default, list):
        return default[0] if default else ()
    return default


def schema_defaults(name: str, parameter: inspect.Parameter, position: int) -> list[Any]:
    """What the overloads of an aten op say of an argument."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    found = []
    for each in () if packet is None else [overload] if overload else packet.overloads():
        arguments = getattr(packet, each)._schema.arguments
        named = [a for a in arguments if a.name == parameter.name]
        if not named and parameter.kind is not parameter.KEYWORD_ONLY:
            named = arguments[position : position + 1]
        found += [plain(a.default_value) for a in named if a.has_default_value()]
    return found


def defaults(handlers: dict[str, Any]) -> Iterator[tuple[str, str, Any, list[Any]]]:
    """Op, argument, the handler's default and those of PyTorch."""
    for name, handler in handlers.items():
        if "::" in name:
            continue
        for position, parameter in enumerate(list(inspect.signature(handler).parameters.values())[1:]):
            if parameter.default is not parameter.empty:
                yield name, parameter.name, parameter.default, schema_defaults(name, parameter, position)


@pytest.mark.parametrize("stem", MODULES)
def test_defaults_are_those_of_pytorchs_schemas(stem: str) -> None:
    found = list(defaults(getattr(fresh(f"ipuperf.poptorch.{stem}"), "HANDLERS", {})))
    wrong = [row for row in found if row[2] not in row[3] and (row[3] or row[2] is not None)]
    assert wrong == []


@pytest.mark.parametrize("name", ["ipuperf.poptorch.enums", "ipuperf.popart.enums", "ipuperf.popart.locations"])
def test_enumerations_have_their_names_and_numbers(name: str, cycle_baseline: CycleBaseline) -> None:
    kinds = [kind for kind in vars(fresh(name)).values() if isinstance(kind, enum.EnumMeta) and kind.__module__ == name]
    rows = [
        {"call": f"{name} {kind.__name__}", "arguments": "", "outcome": " ".join(f"{m.name}={m.value}" for m in kind)}
        for kind in kinds
    ]
    check_rows(FILE, rows, cycle_baseline.update)


PACKAGE = Path(aten.__file__).parents[1]
ROOMS = ("poptorch", "poptorch/options", "popart", "popdist", "cppimport")
ONCE = ("aten_marks", "collective_ops", "core", "custom_ops", "host_calls", "import_hook", "log", "ops", "popart_ir")
"""Modules that register something when they are imported."""
KINDS = (int, float, str, bytes, tuple, list, Mapping, set, frozenset, re.Pattern)
FILES = [path for room in ROOMS for path in sorted((PACKAGE / room).glob("*.py")) if path.stem not in ONCE]


def said(value: Any) -> str:
    """A constant without addresses; of functions and classes the names."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{said(key)}: {said(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(said, value))) + "}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(said, value))})"
    if isinstance(value, re.Pattern):
        return value.pattern
    if isinstance(value, str) and Path(value).is_absolute():
        return "a path"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, (str, int, float, bytes, torch.dtype)):
        return repr(value)
    ours = getattr(value, "__module__", None) or ""
    return getattr(value, "__qualname__" if ours.startswith("ipuperf") else "__name__", type(value).__name__)


def constants(module: Any, file: Path) -> Iterator[str]:
    """The constants that the top level of a module's source sets."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)]
        for name in names:
            value = getattr(module, name, None)
            if isinstance(value, KINDS) and not name.startswith("__") and "version" not in name.lower():
                yield f"{name}={said(value)}"


def with_defaults(module: Any) -> Iterator[str]:
    """The functions and methods of a module that have defaults, with these."""
    for value in vars(module).values():
        inner = [value, *(vars(value).values() if inspect.isclass(value) else ())]
        for each in inner if getattr(value, "__module__", "") == module.__name__ else ():
            function = getattr(each, "__func__", each)
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                parameters = inspect.signature(function).parameters.values()
                given = [f"{p.name}={said(p.default)}" for p in parameters if p.default is not p.empty]
                if given:
                    yield f"{function.__qualname__}({', '.join(given)})"


def test_constants_and_defaults_of_every_module(cycle_baseline: CycleBaseline) -> None:
    rows = []
    for file in FILES:
        name = ".".join(("ipuperf", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        module = fresh(name)
        text = " ".join("; ".join([*constants(module, file), *dict.fromkeys(with_defaults(module))]).split())
        if text:
            rows.append({"call": name, "arguments": "", "outcome": text})
    check_rows(FILE.with_name("every_default.csv"), rows, cycle_baseline.update)
