"""A module under a second name: front ends under upstream's, front ends and tools under short ones.

Both names stand for one object, so ``ipuperf.popxl.ops is ipuperf.frontends.popxl.ops``.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object  # importlib.abc imports much that nobody here needs


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


class _AliasLoader(Loader):
    """Loads a module by importing another and standing aside for it."""

    def __init__(self, target: str) -> None:
        self._name = target
        self._target: ModuleType | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Import the target, but answer ``None``: an empty module holds its place until :meth:`exec_module`.

        If the target itself were given here, the import system would overwrite its ``__spec__``.
        """
        self._target = importlib.import_module(self._name)
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Put the target where the import system looks for the result of the import."""
        assert self._target is not None
        parent, _, name = module.__name__.rpartition(".")
        # The import system sets the module as an attribute of its package, where a function may have the same name.
        if not isinstance(getattr(sys.modules.get(parent), name, self._target), ModuleType):
            functions_win(parent)
        sys.modules[module.__name__] = self._target


def alias_spec(fullname: str, targets: Mapping[str, str]) -> importlib.machinery.ModuleSpec | None:
    """A spec that leads from ``fullname`` to the module that stands for it, or ``None`` if there is none."""
    known = next((name for name in targets if fullname == name or fullname.startswith(f"{name}.")), None)
    if known is None:
        return None
    name = targets[known] + fullname[len(known) :]
    loaded = sys.modules.get(name)
    if loaded is not None:
        # Only packages have a search path for submodules.
        is_package = hasattr(loaded, "__path__")
    else:
        module_spec = importlib.util.find_spec(name)
        if module_spec is None:
            return None
        is_package = module_spec.submodule_search_locations is not None
    return importlib.machinery.ModuleSpec(
        fullname, _AliasLoader(name), origin=f"ipuperf: {name}", is_package=is_package
    )


class ShortNames(MetaPathFinder):
    """Finds modules of a package under names shorter than their own.

    Args:
        package: what the short names begin with.
        rooms: folders of the package, and the packages in each whose names are shortened.
    """

    def __init__(self, package: str, rooms: Mapping[str, Sequence[str]]) -> None:
        self._prefix = f"{package}."
        self._targets = {
            f"{package}.{name}": f"{package}.{room}.{name}" for room, names in rooms.items() for name in names
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec that leads to the module, or ``None`` for all other names."""
        return alias_spec(fullname, self._targets) if fullname.startswith(self._prefix) else None
