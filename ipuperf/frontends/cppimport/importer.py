"""``cppimport.importer``: the steps of ``examples_utils.load_lib`` and of Optimum Graphcore's loader.

They end at the first step, except for a source whose op is built in: its library is this process
(``ctypes.CDLL(None)``).

Names: cppimport 22 (PyPI), ``cppimport/importer.py``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from . import is_built_in, refused


def setup_module_data(fullname: str, filepath: str) -> dict[str, Any]:
    """Return the facts about a source whose op is built in.

    Raises CppOpError for any other source: programs load ops for the IPU step by step.
    """
    if not is_built_in(filepath):
        raise refused(fullname, filepath)
    return {"fullname": fullname, "filepath": filepath, "ext_path": None}


def is_build_needed(module_data: dict[str, Any]) -> bool:
    """Return False for a built-in op. Raises CppOpError for any other."""
    if is_built_in(module_data.get("filepath", "")):
        return False
    raise refused(str(module_data.get("fullname")))


def build_safely(filepath: str, module_data: dict[str, Any]) -> NoReturn:
    """Raises CppOpError."""
    raise refused(str(module_data.get("fullname")), filepath)


__all__ = ["build_safely", "is_build_needed", "setup_module_data"]
