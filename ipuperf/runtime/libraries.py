"""Libraries of C++ ops that a program loads with ``ctypes``: without the vendor's own libraries no linker takes them.

While :func:`~ipuperf.runtime.install.install` holds, a shared library that is not there, or that the linker does not
take, is answered with the ops of its C++ sources (``ipuperf.cppimport.libraries``). Any other is loaded as ever.
"""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path
from typing import Any

_LOAD = ctypes.CDLL.__init__
_ANSWERS = "ipuperf.frontends.cppimport.libraries"


def watch(watching: bool) -> None:
    """Answer libraries that cannot be loaded, or leave them to ``ctypes`` again."""
    ctypes.CDLL.__init__ = _load if watching else _LOAD  # type: ignore[method-assign]


def _load(self: ctypes.CDLL, name: Any, *args: Any, **kwargs: Any) -> None:
    try:
        _LOAD(self, name, *args, **kwargs)
    except OSError:
        # A name without a folder is looked up by the system, so it is no library of the program's own.
        is_of_program = isinstance(name, str | Path) and "/" in str(name) and Path(name).suffix == ".so"
        if not is_of_program or not importlib.import_module(_ANSWERS).answer(Path(name)):
            raise
        # The process itself is a library without the functions of an op.
        _LOAD(self, None, *args, **kwargs)


__all__ = ["watch"]
