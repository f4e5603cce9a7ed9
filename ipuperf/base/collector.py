"""Pauses Python's cyclic garbage collector while a program is exported, built, lowered, simulated or told.

These steps make very many objects that stay, and hardly any garbage. Without the pause the collector walks over all of
them again and again, which can take a quarter of the whole time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection inside; afterwards it is on if it was on before. It also works as a decorator."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Nested uses leave it off until the outermost one ends.
        if enabled:
            gc.enable()
