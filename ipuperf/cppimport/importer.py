"""``cppimport.importer``: the steps of ``examples_utils.load_lib`` and of Optimum Graphcore's, which end at the first
but for a source whose op is built in: its library is this process (``ctypes.CDLL(None)``).

Names: cppimport 22 (PyPI), ``cppimport/importer.py``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from . import is_built_in, refused


def setup_module_data(fullname: str, filepath: str) -> dict[str, Any]:
    """What there is of a source whose op is built in. Raises CppOpError: what is loaded step by step is an op for the
    IPU."""
    if not is_built_in(filepath):
        raise refused(fullname, filepath)
    return {"fullname": fullname, "filepath": filepath, "ext_path": None}


def is_build_needed(module_data: dict[str, Any]) -> bool:
    """Never of a built-in op. Raises CppOpError."""
    if is_built_in(module_data.get("filepath", "")):
        return False
    raise refused(str(module_data.get("fullname")))


def build_safely(filepath: str, module_data: dict[str, Any]) -> NoReturn:
    """Raises CppOpError."""
    raise refused(str(module_data.get("fullname")), filepath)


__all__ = ["build_safely", "is_build_needed", "setup_module_data"]
