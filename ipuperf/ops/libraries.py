"""The threads of the libraries that compute: one each, as pieces of steps are on many threads already (:mod:`.crew`).

How NumPy's BLAS shares a product among its own threads depends on their number, and so do the last bits of the result.
Where other processes want the cores, the threads of PyTorch and of BLAS spin while they wait for each other. A step of
BERT took 9.3 s of CPU with two threads of PyTorch on two busy cores, 0.34 s with one.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from threading import Lock

import numpy as np

_NAMES = tuple(f"{prefix}openblas_{{}}_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", ""))
"""OpenBLAS's functions, by the names that NumPy's builds give them."""

Threads = tuple[Callable[[], int], Callable[[int], None]]


@cache
def blas() -> Threads | None:
    """How many threads NumPy's OpenBLAS uses, and a function that changes it; None with another BLAS."""
    core = "core" if np.__version__.startswith("1.") else "_core"
    # The library itself is found among those that NumPy's module loads.
    loaded = ctypes.CDLL(import_module(f"numpy.{core}._multiarray_umath").__file__)
    for name in _NAMES:
        if hasattr(loaded, name.format("set")):
            return getattr(loaded, name.format("get")), getattr(loaded, name.format("set"))
    return None


class OneThread:
    """A context in which PyTorch, where it is loaded, and NumPy's BLAS work on the calling thread only.

    The end restores their numbers of threads. That of BLAS is the process's, so it is restored when the last of several
    contexts ends.
    """

    _lock = Lock()
    _open = 0
    _blas_threads = 1

    def __enter__(self) -> None:
        torch = sys.modules.get("torch")
        self._torch = torch if hasattr(torch, "set_num_threads") else None
        if self._torch is not None:
            self._threads = self._torch.get_num_threads()
            if self._threads > 1:
                self._torch.set_num_threads(1)
        functions = blas()
        if functions is None:
            return
        with OneThread._lock:
            OneThread._open += 1
            if OneThread._open == 1:
                OneThread._blas_threads = functions[0]()
                functions[1](1)

    def __exit__(self, *error: object) -> None:
        if self._torch is not None and self._threads > 1:
            self._torch.set_num_threads(self._threads)
        functions = blas()
        if functions is None:
            return
        with OneThread._lock:
            OneThread._open -= 1
            if OneThread._open == 0:
                functions[1](OneThread._blas_threads)
