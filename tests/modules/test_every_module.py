"""What modules say when they are imported: their constants, the defaults of their functions, the fields of classes.

Each module is executed once more, beside the one that programs use; each package has a golden row. A
default that nobody gives and a row of a table that no program asks for are otherwise seen by no test.
"""

import ast
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import reduce
from pathlib import Path
from typing import Any, get_origin

import numpy as np
import pytest
from answers import together
from programtext import checksum
from rows import Golden

import ipuperf
from ipuperf.base.kinds import Kinds
from ipuperf.base.version import __version__

PACKAGE = Path(ipuperf.__file__).parent
ONCE = {"cppimport.import_hook", "poptorch.aten.collective_ops", "poptorch.aten.marks", "poptorch.custom_ops"}
ONCE |= {"poptorch.executor.host_calls", "poptorch.executor.popart_ir", "poptorch.log", "poptorch.ops"}
"""Modules of front ends that register something when they are imported, which a second would replace."""
FILES = [file for file in PACKAGE.rglob("*.py") if file.name not in ("sitecustomize.py", "__main__.py")]
"""All but what would run this machine's own, and the program."""
NAMES = {".".join(f.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for f in FILES}
MODULES = sorted(NAMES - {f"ipuperf.frontends.{name}" for name in ONCE})
LIBRARIES = {
    "frontends.cppimport.examples_utils.parsing.simple_parsing_tools": ["simple_parsing", "yaml"],
    "frontends.poptorch": ["torch"],
    "frontends.poptorch_geometric": ["torch", "torch_geometric"],
    "frontends.popdist": ["torch"],
    "frontends.tensorflow": ["tensorflow", "tf_keras"],
    "tools.datasets.standin_mnist": ["torch"],  # it imports without, and has another base then
}
"""What rooms need, and modules that say something else without it."""
LONGEST = 100
"""Characters of a text; of a longer one there is a checksum."""
OPAQUE = ""
"""Of values that have no text of their own."""


PATCHED = {
    "tensorflow.python.autograph.core.config": ["CONVERSION_RULES"],
    "tensorflow.python.client.session": ["BaseSession.run", "BaseSession.__init__"],
    "tensorflow.python.eager.polymorphic_function.polymorphic_function": ["Function.__call__"],
}
"""What modules put something else in place of, in libraries that are there."""


def room(name: str) -> str:
    """The package of a module, and the libraries that the module needs beyond those of all tests."""
    package = name.rpartition(".")[0] or name
    return " ".join([package, *_libraries(name)])


def _libraries(name: str) -> list[str]:
    places = (place for place in LIBRARIES if f"{name}.".startswith(f"ipuperf.{place}."))
    return [library for place in places for library in LIBRARIES[place]]


@pytest.mark.heavy
@together(MODULES, room)
def test_what_it_says(cases: list[str], golden: Golden) -> None:
    for library in _libraries(cases[0]):
        pytest.importorskip(library)
    lines = [f"{name} {line}" for name in cases for line in _said_alone(name)]
    golden([line.replace(str(PACKAGE.parent), "").replace(repr(__version__), "VERSION") for line in lines])


def _said_alone(name: str) -> list[str]:
    """What a module says; what it puts in place of other things is taken back."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
        with suppress(ImportError):
            importlib.import_module(name)
        for place, names in PATCHED.items():
            for attribute in names if place in sys.modules else ():
                *owner, last = attribute.split(".")
                holder = reduce(getattr, owner, sys.modules[place])
                monkeypatch.setattr(holder, last, getattr(holder, last))
        with _tables_restored():
            return list(_said(name))


@contextmanager
def _tables_restored() -> Iterator[None]:
    """Take back what a second execution registers in the tables of modules and classes: its classes are others."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "ipuperf"]
    owners = [*modules, *{id(c): c for m in modules for c in list(vars(m).values()) if isinstance(c, type)}.values()]
    values = [value for owner in owners for name, value in list(vars(owner).items()) if not name.startswith("__")]
    copies = [(value, value.copy()) for value in values if type(value) in (dict, list, set)]
    yield
    for table, copy in copies:
        table.clear()
        (table.extend if isinstance(table, list) else table.update)(copy)


def _said(name: str) -> Iterator[str]:
    """The module's own names and their values, in order."""
    try:
        known = importlib.import_module(name)
        spec = known.__spec__
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with warnings.catch_warnings():
            warnings.resetwarnings()
            spec.loader.exec_module(module)
            filters = [(action, category.__name__) for action, _, category, *_ in warnings.filters]
    except ImportError as error:
        yield f"ImportError: {error}"
        return
    yield from (f"{action} {category}" for action, category in filters)
    for own in _names(Path(spec.origin or "")):
        text = _text(vars(module).get(own), name)
        if text != OPAQUE:
            yield f"{own}={text}"


def _names(file: Path) -> list[str]:
    """What a module assigns and defines at its top."""
    found: list[str] = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    return list(dict.fromkeys(found))


def _text(value: Any, module: str = "") -> str:
    """A value without anything that differs between machines; :data:`OPAQUE` where nothing is left. Classes and
    functions of ``module`` are told with their defaults, others by name."""
    if "site-packages" in str(value):
        return OPAQUE
    if isinstance(value, str) and len(value) > LONGEST:
        return checksum(value)
    if isinstance(value, bool | int | float | str | bytes | None) and not isinstance(value, Enum):
        return repr(value)
    if value is Any or get_origin(value) is not None:
        return OPAQUE
    if isinstance(value, type) and value.__module__ == module:
        return _of_class(value)
    if inspect.isfunction(value) and value.__module__ == module:
        return _defaults(value)
    if isinstance(value, type) or inspect.isroutine(value):
        return _name(value) + _cells(value)
    if type(value).__name__ == "dtype" or isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, Kinds):
        return _text(vars(value))
    if is_dataclass(value):
        return (
            f"{type(value).__name__}({', '.join(f'{f.name}={_text(getattr(value, f.name))}' for f in fields(value))})"
        )
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if isinstance(value, list | tuple):
        items = [item for item in value if not str(item).startswith("@py")]  # names that pytest's rewriting adds
        return f"{type(value).__name__}({', '.join(map(_text, items))})"
    return OPAQUE


def _name(value: Any) -> str:
    """Of what is ours where it stands, of others the last part alone."""
    module = getattr(value, "__module__", None) or ""
    return str(getattr(value, "__qualname__" if module.startswith("ipuperf") else "__name__", OPAQUE))


def _cells(function: Any) -> str:
    """What a function was made with: a pooling of three axes is no pooling of two."""
    held = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) and function.__closure__ else {}
    told = {name: _name(value) if callable(value) else _text(value) for name, value in sorted(held.items())}
    said = ", ".join(f"{name}={text}" for name, text in told.items() if text != OPAQUE)
    return f"[{said}]" if said else ""


def _defaults(function: Any) -> str:
    parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
    given = [f"{p.name}={_text(p.default)}" for p in parameters if p.default is not p.empty]
    return f"({', '.join(given)})" if given else OPAQUE


def _of_class(value: type) -> str:
    """Bases, plain attributes and the defaults of methods; of an enumeration its members."""
    if issubclass(value, Enum):
        return "{" + ", ".join(f"{member.name}: {_text(member.value)}" for member in value) + "}"
    said = [base.__name__ for base in value.__bases__]
    for name, member in vars(value).items():
        function = getattr(member, "__func__", member)
        if name == "__init__" or not name.startswith("__"):
            text = _defaults(function) if inspect.isfunction(function) else f"={_text(member)}".removesuffix("=")
            said += [f"{name}{text}"] if text else []
    return f"class({', '.join(said)})"
