"""The module that ``import cppimport`` finds: ops in C++ are known, recorded, or refused by one error.

On the device, cppimport compiles a custom op of PopART when its module is imported. The ops of popxl.addons are built
in under its names. Those of some programs are known by their source (:mod:`.bindings`). Others are compiled with
headers that record what they ask for (:mod:`.recorder`), where there is a compiler. What that cannot record is
described in Python (``docs/how-to/adding-a-custom-op.md``). C++ without the vendor's headers is passed to the
real cppimport if that is installed.
Names: cppimport 22 (PyPI).
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ipuperf.runtime.custom_ops import CppOpError
from ipuperf.runtime.install import as_installed

from .bindings import binding_of
from .recorder import is_vendors, records, with_headers
from .recorder.modules import recorded_module
from .sources import digest

#: Digests of sources (:mod:`.sources`) whose op ``poptorch.custom_op`` finds by its name, so that loading them does
#: nothing: ``optimum/graphcore/custom_ops/group_quantize_decompress`` of Optimum Graphcore 0.7.1 (PyPI).
BUILT_IN_SOURCES = frozenset({"50151d4f02d691334729441a3fe79dfa2f4860e02781b5645552531d547ba5a5"})

#: Settings of the real cppimport; ``load_lib`` sets how long it waits for a lock.
settings: dict[str, Any] = {}


def is_built_in(filepath: str | Path) -> bool:
    """Whether a C++ file computes the same as a built-in op, so that no library is needed.

    Names do not decide: ops of the same name compute different things.
    """
    return Path(filepath).is_file() and digest(filepath) in BUILT_IN_SOURCES


def refused(fullname: str, file: str = "") -> CppOpError:
    """Return the error for the C++ module ``fullname``, with its source ``file`` if that is known."""
    module = f"{fullname!r} ({file})" if file else repr(fullname)
    return CppOpError(
        f"{module} is C++, which ipuperf cannot record here (that needs g++, or the compiler that CXX names, and "
        "a source of ops without codelets); describe its op in Python as a class with shape rule, NumPy "
        "value, gradient and cost, and add it with popxl.custom_ops.custom_op (in PopTorch with "
        "ipuperf.poptorch.custom_ops.register, before the library is loaded): "
        "docs/how-to/adding-a-custom-op.md shows how"
    )


def imp(fullname: str, opt_in: bool = False) -> ModuleType:
    """Import ``fullname``'s source from ``sys.path``. :class:`CppOpError` if it is not found, and as below."""
    return imp_from_filepath(_source(fullname, opt_in), fullname)


def imp_from_filepath(filepath: str | Path, fullname: str | None = None) -> ModuleType:
    """Import a known op of the vendor's (:mod:`.bindings`) or one that is recorded (:mod:`.recorder`). C++ that is not
    the vendor's is imported through the real cppimport.

    Raises:
        CppOpError: the source does not compile. Or nothing records it, and it includes the vendor's headers, cannot be
            read, or there is no real cppimport.
    """
    if (binding := binding_of(filepath)) is not None:
        return _loaded(fullname or Path(filepath).stem, binding)
    if is_recorded(filepath):
        recorded = recorded_module(fullname or Path(filepath).stem, Path(filepath))
        sys.modules[recorded.__name__] = recorded
        return recorded
    with _real(fullname, filepath) as cppimport:
        # Within the block the name cppimport means the installed package again.
        module: ModuleType = cppimport.imp_from_filepath(str(filepath), fullname)
        return module


def _loaded(fullname: str, file: Path) -> ModuleType:
    """Import a Python file under the name of the module for which it stands."""
    spec = importlib.util.spec_from_file_location(fullname, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[fullname] = module
    return module


def build(fullname: str) -> str:
    """Return the file that :func:`build_filepath` builds from ``fullname``'s source on ``sys.path``."""
    return build_filepath(_source(fullname), fullname)


def build_filepath(filepath: str | Path, fullname: str | None = None) -> str:
    """Return the path of the file that the real cppimport compiles; errors as :func:`imp_from_filepath`."""
    with _real(fullname, filepath) as cppimport:
        return str(cppimport.build_filepath(str(filepath), fullname))


def build_all(root_directory: str | Path, **_options: Any) -> None:
    """Call :func:`build_filepath` for every module below ``root_directory`` that cppimport would compile."""
    for path in sorted(Path(root_directory).rglob("*.cpp")):
        if is_module(path):
            build_filepath(path)


def is_recorded(source: str | Path) -> bool:
    """Whether a source is a module of ops for the IPU that can record themselves here."""
    path = Path(source)
    if not path.is_file():
        return False
    texts = [each.read_text(encoding="utf-8", errors="replace") for each in with_headers([path])]
    return "PYBIND11_MODULE" in texts[0] and any(map(is_vendors, texts)) and records(path)


def refuse_vendors(fullname: str, source: str | Path) -> None:
    """Raise :class:`CppOpError` for a source that includes the vendor's headers or cannot be read."""
    path = Path(source)
    if not path.is_file() or is_vendors(path.read_text(encoding="utf-8", errors="replace")):
        raise refused(fullname, str(source))


@contextlib.contextmanager
def _real(fullname: str | None, source: str | Path) -> Iterator[Any]:
    """Give the real cppimport under its own name, for a source that is not the vendor's; else :class:`CppOpError`."""
    name = fullname or Path(source).stem
    refuse_vendors(name, source)
    with as_installed("cppimport") as real:
        if real is None:
            raise refused(name, str(source))
        yield real


def _source(fullname: str, opt_in: bool = False) -> Path:
    """Return the C++ file of ``fullname`` on ``sys.path``; :class:`CppOpError` if there is none."""
    for folder in sys.path:
        path = Path(folder or ".", *fullname.split(".")).with_suffix(".cpp")
        if path.is_file() and (is_module(path) or not opt_in):
            return path
    raise refused(fullname)


def is_module(path: Path) -> bool:
    """Whether cppimport compiles this file: its first line says ``cppimport``."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return "cppimport" in file.readline()


__all__ = ["CppOpError", "build", "build_all", "build_filepath", "imp", "imp_from_filepath", "settings"]
