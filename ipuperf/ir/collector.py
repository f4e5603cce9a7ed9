"""Python's cyclic garbage collector stands still while a program is exported, built, lowered or simulated.

All of these make very many objects that stay, and hardly any garbage; without this the collector walks over all of them
again and again, a quarter of the whole time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside (also as a decorator); afterwards it is on if it was on before."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
