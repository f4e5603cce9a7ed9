"""The public names of a package, read from its imports so that no list has to repeat them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def offered(package: str, modules: str = "") -> list[str]:
    """Return the public names that ``package`` (its ``__name__``) has so far, sorted.

    The import system makes every submodule a name of its package; only the submodules in ``modules`` (separated by
    spaces) are included. Names that begin with an underscore are private.
    """
    module_names = modules.split()
    # Called at the end of a package's imports, when its names are complete.
    return sorted(n for n, value in vars(sys.modules[package]).items() if n in module_names or _is_public(n, value))


def _is_public(name: str, value: Any) -> bool:
    """Whether a name of a package is neither private, nor a module, nor a feature of ``__future__``."""
    return not name.startswith("_") and not isinstance(value, ModuleType) and type(value).__module__ != "__future__"
