"""``import cppimport.import_hook``: from then on an import of a module that only has a ``.cpp`` file is the error."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from . import is_module, refused


class CppFinder(importlib.abc.MetaPathFinder):
    """Stands last: raises for modules that nothing else found and cppimport would compile."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """None unless there is a C++ file of that name where the module is looked for.

        Raises:
            CppOpError: there is one.
        """
        for folder in sys.path if path is None else path:
            source = Path(folder or ".") / f"{fullname.rpartition('.')[2]}.cpp"
            if source.is_file() and is_module(source):
                raise refused(fullname, str(source))
        return None


if not any(isinstance(finder, CppFinder) for finder in sys.meta_path):
    sys.meta_path.append(CppFinder())

__all__ = ["CppFinder"]
