"""``import cppimport.import_hook``: afterwards, importing a module that only has a ``.cpp`` file asks cppimport."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from . import build_filepath, is_module, is_recorded
from .bindings import binding_of
from .recorder.modules import RecordedLoader

_HASH = Path(__file__).with_name("sdk_version_hash_lib.py")


class CppFinder(importlib.abc.MetaPathFinder):
    """Stands last in ``sys.meta_path``: finds modules that nothing else found and that cppimport would compile."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of the module that the real cppimport builds from the C++ file of that name; None without a
        file.

        Raises:
            CppOpError: it is an op for the IPU that is not known, or there is no real cppimport. The hash of the SDK is
                built in.
        """
        stem = fullname.rpartition(".")[2]
        for folder in sys.path if path is None else path:
            source = Path(folder or ".") / f"{stem}.cpp"
            if source.is_file() and is_module(source):
                known = binding_of(source)
                if known is None and stem != _HASH.stem and is_recorded(source):
                    return importlib.util.spec_from_file_location(fullname, source, loader=RecordedLoader(source))
                built = _HASH if stem == _HASH.stem else known or build_filepath(source, fullname)
                return importlib.util.spec_from_file_location(fullname, built)
        return None


if not any(isinstance(finder, CppFinder) for finder in sys.meta_path):
    sys.meta_path.append(CppFinder())

__all__ = ["CppFinder"]
