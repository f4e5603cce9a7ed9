"""Packages whose functions share their names with submodules (``popxl.ops.call`` is a function and a module).

The import system sets a submodule as attribute of its package when the submodule is imported; under the upstream name
(``import popxl.ops.call``) that happens again, after the functions are in place, and would hide them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipuperf.runtime.aliases import functions_win

from .errors import unsupported


def refuse(package: str, names: list[str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package`` (its ``__name__``): the error for other names, which lists ``names``.

    Functions of the package win over submodules.
    """

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise unsupported(f"{package.removeprefix('ipuperf.frontends.')}.{name}", names)

    functions_win(package)
    return __getattr__
