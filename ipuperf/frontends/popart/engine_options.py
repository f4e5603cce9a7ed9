"""Poplar's engine options that have an effect here: they choose the host threads that run the callbacks of streams.

Names: Poplar's ``streamCallbacks.multiThreadMode`` and ``streamCallbacks.numWorkerThreads``, as programs of
graphcore/examples set them (``applications/popart/bert/bert.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

from ipuperf.base.near_names import instead_of

MODE, THREADS = "streamCallbacks.multiThreadMode", "streamCallbacks.numWorkerThreads"
CALLBACK_OPTIONS = (MODE, THREADS)
_MODES = ("single", "dedicated", "collaborative")


def check_callback_option(key: str, value: str) -> None:
    """Raise ``ValueError`` for a value that an option of :data:`CALLBACK_OPTIONS` does not accept."""
    if key == MODE and value not in _MODES:
        raise ValueError(f"{key} = {value!r}{instead_of(value, _MODES)}")
    if key == THREADS and value != "auto" and not (value.isascii() and value.isdigit()):
        raise ValueError(f"{key} = {value!r}, allowed: 'auto' or a whole number of 0 or more")


def callback_threads(options: Mapping[str, str]) -> int | None:
    """Return the number of threads that run the callbacks of streams; None: as many as there are replicas.

    Poplar's default is one thread. In a mode of several threads, the workers (``numWorkerThreads``, 0 by default) are
    added to it; ``auto`` counts as enough workers. How Poplar distributes callbacks in the two modes is not public, so
    both are modelled alike.
    """
    if options.get(MODE, "single") == "single":
        return 1
    workers = options.get(THREADS, "0")
    # Poplar's one thread, and the workers beside it.
    return None if workers == "auto" else 1 + int(workers)
