"""Modules of upstream's interface that only name what stands elsewhere: made from tables, filled on first use.

A name that is there to be refused says on its call what a program can do instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

_FRONT_END = __name__.rpartition(".")[0]


class Names(NamedTuple):
    """What a module offers.

    Attributes:
        doc: its docstring.
        content: by module of this front end (``facade.placing``), names that it has, separated by spaces.
        refused: by the reason, names that are there to be refused.
        removed: by the pattern of names that later releases took away, what to use instead.
    """

    doc: str
    content: dict[str, str]
    refused: dict[str, str]
    removed: dict[str, str]


def table(text: str) -> dict[str, Names]:
    """Read a table of modules (its form: :mod:`.python.ipu.modules`)."""
    modules: dict[str, Names] = {}
    for line in text.replace("\n        ", " ").strip().splitlines():
        key, _, value = line.strip().rpartition(": ")
        if not line.startswith(" "):
            names = Names(value, {}, {}, {})
            modules.update(dict.fromkeys(key.split(", "), names))
        elif key.startswith("refused, "):
            names.refused[key.removeprefix("refused, ")] = value
        elif key.startswith("removed, "):
            names.removed[value] = key.removeprefix("removed, ")
        else:
            names.content[key] = value
    return modules


class NamesModule(ModuleType):
    """A module that imports what it names when a program first asks for it."""

    def __init__(self, name: str, names: Names, refuses_as: str) -> None:
        super().__init__(name, names.doc)
        self._removed = names.removed
        self._sources = {entry: source for source, entries in names.content.items() for entry in entries.split()}
        for instead, entries in names.refused.items():
            vars(self).update({entry: refused(f"{refuses_as}.{entry}", instead) for entry in entries.split()})
        self.__all__ = sorted([*self._sources, *(entry for text in names.refused.values() for entry in text.split())])

    def __getattr__(self, name: str) -> Any:
        """Import the name, which later uses find in the module itself."""
        source = vars(self).get("_sources", {}).get(name)
        if source is None:
            removed = vars(self).get("_removed", {})
            raise absent(self.__name__, name, next((removed[p] for p in removed if fnmatchcase(name, p)), ""))
        value = getattr(import_module(f"{_FRONT_END}.{source}"), name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        """The names, those included that nobody has asked for."""
        return sorted({*super().__dir__(), *self.__all__})


def make_modules(package: str, table: Mapping[str, Names]) -> None:
    """Make the modules of ``table`` below ``package``; modules that are there stay.

    Args:
        package: name of a module that is being imported.
        table: by the modules' names below it, each behind the one that it is in.
    """
    for entry, names in table.items():
        full = f"{package}.{entry}"
        parent, _, short = full.rpartition(".")
        if full not in sys.modules:
            module = NamesModule(full, names, short)
            holds_others = any(name_of_other.startswith(f"{entry}.") for name_of_other in table)
            module.__spec__ = ModuleSpec(full, None, is_package=holds_others)
            module.__package__ = full if holds_others else parent
            if holds_others:
                module.__path__ = []
            sys.modules[full] = module
        holder = sys.modules[parent]
        setattr(holder, short, sys.modules[full])
        if isinstance(holder, NamesModule):
            holder.__all__ = sorted({*holder.__all__, short})


def refused(name: str, instead: str) -> Callable[..., NoReturn]:
    """A function (or class) of ``tensorflow.python.ipu`` whose call raises NotImplementedError.

    Args:
        name: from ``ipu.`` on.
        instead: why, and what a program can do.
    """

    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"tensorflow.python.ipu.{name} is not simulated: {instead}")

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    call.__doc__ = f"Not simulated: {instead}"
    return call


def absent(module: str, name: str, older: str = "") -> AttributeError:
    """The error of a name that ``module`` does not have.

    Args:
        older: what to use instead of it, for a name that a later release took away.
    """
    since = f": later releases took it away, use {older}" if older else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{since}")
