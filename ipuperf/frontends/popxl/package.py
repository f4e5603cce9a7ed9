"""Packages whose functions share their names with submodules (``popxl.ops.call`` is a function and a module).

The import system sets a submodule as attribute of its package when the submodule is imported; under the upstream name
(``import popxl.ops.call``) that happens again, after the functions are in place, and would hide them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .errors import unsupported


class _FunctionsWin(ModuleType):
    """A package in which a submodule never replaces a function of the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        present = self.__dict__.get(name)
        if isinstance(value, ModuleType) and present is not None and not isinstance(present, ModuleType):
            return
        super().__setattr__(name, value)


def functions_win(package: str) -> None:
    """Protect the functions of ``package`` (its ``__name__``) against submodules of the same name."""
    sys.modules[package].__class__ = _FunctionsWin


def refuse(package: str, names: list[str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package`` (its ``__name__``): the error for other names, which lists ``names``.

    Functions of the package win over submodules.
    """

    def missing(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise unsupported(f"{package.removeprefix('ipuperf.frontends.')}.{name}", names)

    functions_win(package)
    return missing
