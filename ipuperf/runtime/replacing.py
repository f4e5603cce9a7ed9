"""Attributes that have another value for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """In the block, ``owner`` (a module, a class, another object) has these attributes; afterwards those it had.

    What a class itself holds comes back as it is held there: a class method is not bound.
    """
    held = vars(owner) if isinstance(owner, type) else {}
    before = {name: held[name] if name in held else getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
