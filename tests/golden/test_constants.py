"""Constants, defaults and class attributes of every module of some rooms, as they are when it is imported anew."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.util import module_from_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import digest
import numpy as np
import pytest

ROOMS = ("levers", "pva", "report", "trace")
HERE = Path(__file__).with_name("constants")


def modules() -> list[str]:
    found = []
    for room in ROOMS:
        package = importlib.import_module(f"ipuperf.{room}")
        found += [package.__name__, *(m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))]
    return found


def anew(name: str) -> ModuleType:
    """The module executed once more, beside the one that all use."""
    spec = importlib.import_module(name).__spec__
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text(value: Any) -> str:
    """Data as text: sets in order, arrays as lists, no addresses, types of NumPy or places of files."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(text, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{text(key)}: {text(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value).name  # its own name is another one in NumPy 1
    if isinstance(value, type | FunctionType | ModuleType):
        return value.__name__
    said = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return value.name if isinstance(value, Path) else said


def is_data(name: str, value: Any) -> bool:
    """Whether a name stands for a constant, not for a type, a function or something of Python's."""
    callables = isinstance(value, type | FunctionType | ModuleType | property | classmethod | staticmethod)
    own = type(value).__module__ in ("builtins", "numpy", "re") or type(value).__module__.startswith("ipuperf.")
    return not name.startswith("__") and not callables and own and not hasattr(value, "__wrapped__")


def defaults(function: Any, name: str) -> Iterator[str]:
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            yield f"{name}({key}={text(parameter.default)})"


def assigned(module: ModuleType) -> set[str]:
    """Names that the module gives a value itself."""
    found = set()
    for node in ast.parse(inspect.getsource(module)).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def told(module: ModuleType) -> Iterator[str]:
    own = assigned(module)
    for name, value in vars(module).items():
        if name in own and is_data(name, value):
            yield f"{name} = {text(value)}"
        elif getattr(value, "__module__", "") != module.__name__:
            continue
        elif inspect.isfunction(value):
            yield from defaults(value, name)
        elif inspect.isclass(value):
            yield from _of_class(value, name)


def _of_class(kind: type, name: str) -> Iterator[str]:
    if issubclass(kind, Enum):
        yield f"{name}: {text([[m.name, m.value] for m in kind])}"
        return
    for key, value in vars(kind).items():
        if inspect.isfunction(value):
            yield from defaults(value, f"{name}.{key}")
        elif is_data(key, value) and not inspect.isdatadescriptor(value):
            yield f"{name}.{key} = {text(value)}"


@pytest.mark.parametrize("name", modules())
def test_constants(name: str, kept_lines: Any) -> None:
    kept_lines(digest.lines(list(told(anew(name)))), HERE / f"{name.removeprefix('ipuperf.')}.txt")
