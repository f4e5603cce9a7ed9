"""What the top level of modules says, as rows: constants, defaults of functions. Each module is executed anew."""

from __future__ import annotations

import ast
import enum
import importlib.util
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import ipuperf

PACKAGE = Path(ipuperf.__file__).parent
KINDS = (int, float, str, bytes, tuple, list, Mapping, set, frozenset, re.Pattern)


def fresh(name: str) -> Any:
    """A module, executed anew."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


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
    held = inspect.getclosurevars(value).nonlocals if inspect.isfunction(value) and value.__closure__ else {}
    plain = {cell: each for cell, each in held.items() if callable(each) or isinstance(each, (int, float, str, list))}
    cells = [f"{cell}={name_of(each) if callable(each) else each}" for cell, each in sorted(plain.items())]
    return f"{name_of(value)}[{', '.join(cells)}]" if cells else name_of(value)


def name_of(value: Any) -> str:
    """The name of a function or class; of one of ours where it stands."""
    ours = getattr(value, "__module__", None) or ""
    return str(getattr(value, "__qualname__" if ours.startswith("ipuperf") else "__name__", type(value).__name__))


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


def rows_of(files: Iterable[Path]) -> list[dict[str, str]]:
    """A row for each module of the package."""
    rows = []
    for file in files:
        name = ".".join(("ipuperf", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        module = fresh(name)
        text = " ".join("; ".join([*constants(module, file), *dict.fromkeys(with_defaults(module))]).split())
        rows.append({"call": name, "arguments": "", "outcome": text or "nothing"})
    return rows
