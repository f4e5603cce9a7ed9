"""``examples_utils`` where that package is not installed: ``load_lib``, ``parse_yaml_config`` and ``parsing``.

C++ libraries are not compiled here. PopTorch applications load custom ops and patterns of PopART this way. A custom op
computes something, so asking for one raises :mod:`ipuperf.cppimport`'s error, which points to the description in
Python. A pattern rewrites PopART's graph into another that computes the same (in place, in another order, with fewer
copies). ipuperf's graphs are not PopART's, so a library of patterns alone has no effect, and a note says so.
Names: graphcore/examples-utils, ``load_lib_utils``. An installed or nearer package of that name is found first.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from ipuperf.frontends.cppimport import is_module, refused
from ipuperf.frontends.cppimport.sources import without_comments
from ipuperf.runtime.effects import tell

from .parsing.file_argparse import parse_yaml_config

_REGISTERED = {"op": r"\bOpCreator\s*<|\bOpxCreator\s*<|\bPYBIND11_MODULE\b", "pattern": r"\bPatternCreator\s*<"}


def load_lib(filepath: str | Path, timeout: int = 300) -> ctypes.PyDLL:
    """Return a library without functions for a source file that registers only patterns.

    Args:
        filepath: the C++ source.
        timeout: seconds to wait for another process that compiles it; unused, as nothing is compiled.

    Raises:
        FileNotFoundError: there is no such file.
        CppOpError: it may compute something.
    """
    path = Path(filepath)
    if not path.exists():
        raise FileNotFoundError(f"File does not exist: {filepath}")
    source = without_comments(path.read_text(encoding="utf-8", errors="replace"))
    kinds = {kind for kind, words in _REGISTERED.items() if re.search(words, source)}
    if kinds != {"pattern"}:
        raise refused(path.stem, str(path))
    tell(
        f"examples_utils.load_lib({path.name!r}) is without effect: it is a pattern of PopART, which rewrites PopART's "
        "graph and computes the same"
    )
    return ctypes.PyDLL(None)


def load_lib_all(
    dir_path: str | Path, timeout: int = 300, load: bool = True
) -> list[tuple[str, ctypes.PyDLL]] | list[str]:
    """Call :func:`load_lib` for each ``.cpp`` below ``dir_path`` whose first line says ``cppimport``.

    Returns:
        Pairs of path and library; with ``load=False`` the paths. Raises CppOpError for the first that may compute
        something.
    """
    files = [path for path in sorted(Path(dir_path).rglob("*.cpp")) if path.name[0] != "." and is_module(path)]
    loaded = [(str(path), load_lib(path, timeout)) for path in files]
    return loaded if load else [path for path, _ in loaded]


__all__ = ["load_lib", "load_lib_all", "parse_yaml_config"]
