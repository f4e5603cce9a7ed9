"""A small stand-in for torchvision, for programs that use it only to read MNIST.

:func:`install_standin` puts the modules ``torchvision``, ``torchvision.datasets`` and ``torchvision.transforms`` into
``sys.modules`` when torchvision is not installed, and never otherwise. They offer ``datasets.MNIST`` and
``transforms.Compose``, ``ToTensor``, ``Normalize`` and ``Lambda``. Whatever else is asked of them raises an
``AttributeError`` (or an ``ImportError`` where it is imported) that says so.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ipuperf.tools.datasets import standin_transforms

_NAME = "torchvision"
_VERSION = "0.0.0+ipuperf"
_TRANSFORMS = ("Compose", "ToTensor", "Normalize", "Lambda")
_DATASETS = ("MNIST",)


class StandinModule(ModuleType):
    """One module of the stand-in; it explains itself when asked for something it does not have."""

    def __init__(self, name: str, offered: dict[str, str]) -> None:
        super().__init__(name, doc="Part of ipuperf's stand-in for torchvision.")
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, origin="ipuperf stand-in", is_package=True)
        self.__package__ = name
        self.__path__: list[str] = []  # a package, so that a failing "from ... import X" comes to _MissingSubmodules
        self.__all__ = sorted(offered)
        self._offered = offered  # attribute -> module it is taken from on first use

    def __getattr__(self, name: str) -> Any:
        source = self.__dict__["_offered"].get(name)
        if source is None:
            # Python itself asks for __file__, __wrapped__ ...: for those the short answer is enough.
            message = f"module {self.__name__!r} has no attribute {name!r}"
            raise AttributeError(
                message if name.startswith("__") else f"{message}: {_explanation()}", name=name, obj=self
            )
        value = getattr(importlib.import_module(source), name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})


class _MissingSubmodules(importlib.abc.MetaPathFinder):
    """Says, for any submodule of the stand-in that is imported but does not exist, that this is the stand-in."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith(f"{_NAME}.") and is_standin_installed():
            raise ImportError(f"cannot import {fullname}: {_explanation()}", name=fullname)
        return None


def build_standin() -> dict[str, ModuleType]:
    """The modules of the stand-in by their full names, joined to a tree; nothing is put into ``sys.modules``."""
    datasets = StandinModule(f"{_NAME}.datasets", dict.fromkeys(_DATASETS, "ipuperf.datasets.standin_mnist"))
    transforms = StandinModule(f"{_NAME}.transforms", dict.fromkeys(_TRANSFORMS, standin_transforms.__name__))
    top = StandinModule(_NAME, {})
    top.__all__ = ["datasets", "transforms"]
    top.__dict__.update(datasets=datasets, transforms=transforms, __version__=_VERSION)
    return {module.__name__: module for module in (top, datasets, transforms)}


def install_standin() -> bool:
    """Make ``import torchvision`` find the stand-in, unless torchvision is installed or already imported.

    Returns whether the stand-in is in place afterwards. Calling it again changes nothing.
    """
    if is_standin_installed():
        return True
    # A torchvision that is there offers everything, so the stand-in would only take away.
    if _NAME in sys.modules or importlib.util.find_spec(_NAME) is not None:
        return False
    sys.modules.update(build_standin())
    # Last in the list: only what nothing else found is missing.
    sys.meta_path.append(_MissingSubmodules())
    return True


def uninstall_standin() -> None:
    """Undo :func:`install_standin`; a torchvision that is really installed is left alone."""
    for name in [name for name, module in sys.modules.items() if isinstance(module, StandinModule)]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _MissingSubmodules)]


def is_standin_installed() -> bool:
    """Whether ``torchvision`` in ``sys.modules`` is the stand-in."""
    return isinstance(sys.modules.get(_NAME), StandinModule)


def _explanation() -> str:
    return (
        "this is ipuperf's stand-in for torchvision, which offers only "
        f"{', '.join(f'datasets.{name}' for name in _DATASETS)} and "
        f"{', '.join(f'transforms.{name}' for name in _TRANSFORMS)}; for the rest: pip install torchvision"
    )
