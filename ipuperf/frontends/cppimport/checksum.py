"""``cppimport.checksum``: a name that ``load_lib`` replaces by its own, with the SDK's version; nothing here calls it.

Names: cppimport 22 (PyPI), ``cppimport/checksum.py``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from . import refused


def _calc_cur_checksum(_files: list[str], module_data: dict[str, Any]) -> NoReturn:
    """Raises CppOpError."""
    raise refused(str(module_data.get("fullname")))
