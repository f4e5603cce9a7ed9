"""The families of random programs by name; each is a module with ``draw``, ``check`` and ``Program``."""

from __future__ import annotations

import importlib
from types import ModuleType

FAMILIES = {
    "popxl": "popxl_programs",
    "autodiff": "autodiff_programs",
    "torch": "torch_programs",
    "statements": "torch_statements",
    "tensorflow": "tensorflow_programs",
    "keras": "keras_programs",
}


def family(name: str) -> ModuleType:
    """The module of a family (which needs PyTorch or not, so it is imported when it is asked for)."""
    return importlib.import_module(f".{FAMILIES[name]}", __package__)
