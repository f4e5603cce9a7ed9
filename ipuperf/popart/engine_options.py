"""Poplar's engine options that mean something here: which threads of the host run the callbacks of streams.

Names: Poplar's ``streamCallbacks.multiThreadMode`` and ``streamCallbacks.numWorkerThreads``, as programs of
graphcore/examples set them (``applications/popart/bert/bert.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

MODE, THREADS = "streamCallbacks.multiThreadMode", "streamCallbacks.numWorkerThreads"
CALLBACK_OPTIONS = (MODE, THREADS)
_MODES = ("single", "dedicated", "collaborative")


def check_callback_option(key: str, value: str) -> None:
    """``ValueError`` for a value that an option of :data:`CALLBACK_OPTIONS` does not take."""
    if key == MODE and value not in _MODES:
        raise ValueError(f"{key} = {value!r}, allowed: {', '.join(_MODES)}")
    if key == THREADS and value != "auto" and not (value.isascii() and value.isdigit()):
        raise ValueError(f"{key} = {value!r}, allowed: 'auto' or a whole number of 0 or more")


def callback_threads(options: Mapping[str, str]) -> int | None:
    """Threads that run the callbacks of streams; None: as many as there are replicas.

    One, which is Poplar's default; in a mode of several threads the workers (``numWorkerThreads``, 0 by default) come
    to it, ``auto`` is taken for enough of them. How Poplar shares callbacks in the two modes is not public: they are
    alike here.
    """
    if options.get(MODE, "single") == "single":
        return 1
    workers = options.get(THREADS, "0")
    return None if workers == "auto" else 1 + int(workers)
