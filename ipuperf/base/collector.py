"""Pauses Python's cyclic garbage collector while a program is exported, built, lowered, simulated or told.

These steps make very many objects that stay, and hardly any garbage. Without the pause the collector walks over all of
them again and again, which can take a quarter of the whole time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 100_000
"""Objects of a section that are worth the trouble: how many a program has frozen is counted one by one."""
_MOST = 3_000_000
"""Objects that no collection has seen, before there is one."""


class _Unseen:
    """How many objects sections have left since the last collection after one."""

    objects = 0


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection inside; afterwards it is on if it was on before. It also works as a decorator.

    The first collection afterwards would walk over all that the section made. So these objects count as old ones, until
    there are very many.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Nested uses leave it off until the outermost one ends.
        if enabled:
            if gc.get_count()[0] > _MANY:
                _settle()
            gc.enable()


def _settle() -> None:
    """Count what is young as old, or collect where there is too much of that."""
    _Unseen.objects += gc.get_count()[0]
    if _Unseen.objects > _MOST:
        gc.collect()
        _Unseen.objects = 0
    # What the user has frozen stays so.
    elif not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
