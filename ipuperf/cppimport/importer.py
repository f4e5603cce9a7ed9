"""``cppimport.importer``: the steps of ``examples_utils.load_lib`` and of Optimum Graphcore's, which end at the first.

Names: cppimport 22 (PyPI), ``cppimport/importer.py``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from . import refused


def setup_module_data(fullname: str, filepath: str) -> NoReturn:
    """Raises CppOpError: what is loaded step by step is an op for the IPU."""
    raise refused(fullname, filepath)


def is_build_needed(module_data: dict[str, Any]) -> NoReturn:
    """Raises CppOpError."""
    raise refused(str(module_data.get("fullname")))


def build_safely(filepath: str, module_data: dict[str, Any]) -> NoReturn:
    """Raises CppOpError."""
    raise refused(str(module_data.get("fullname")), filepath)


__all__ = ["build_safely", "is_build_needed", "setup_module_data"]
