"""Small helpers that addons programs import. (The module name is upstream's.)"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

null_context = nullcontext


@contextmanager
def timer(desc: str = "") -> Iterator[None]:
    """Print how long the block took, in seconds of wall time."""
    start = time.perf_counter()
    yield
    print(f"{desc}: {time.perf_counter() - start:.3f} s")


__all__ = ["OrderedDict", "null_context", "timer"]
