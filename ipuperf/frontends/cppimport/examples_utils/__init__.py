"""``examples_utils`` where that package is not installed: ``load_lib``, ``parse_yaml_config`` and ``parsing``.

PopTorch applications load custom ops and patterns of PopART this way. A custom op computes something: it is known by
its source, described in Python, recorded, or refused with :mod:`ipuperf.cppimport`'s error. A pattern rewrites
PopART's graph into another that computes the same (in place, in another order, with fewer copies). ipuperf's graphs are
not PopART's, so a library of patterns alone has no effect, and a note says so.
Names: graphcore/examples-utils, ``load_lib_utils``. An installed or nearer package of that name is found first.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from ipuperf.frontends.cppimport import is_module
from ipuperf.frontends.cppimport.libraries import load

from .parsing.file_argparse import parse_yaml_config


def load_lib(filepath: str | Path, timeout: int = 300) -> ctypes.PyDLL:
    """Return a library without functions; the ops of its source are found by name (:mod:`..libraries`).

    Args:
        filepath: the C++ source.
        timeout: seconds to wait for another process that compiles it; unused, as files appear whole.

    Raises:
        FileNotFoundError: there is no such file.
        CppOpError: it may compute something.
    """
    path = Path(filepath)
    if not path.exists():
        raise FileNotFoundError(f"File does not exist: {filepath}")
    load(path)
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
