"""Attributes that have another value within a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Give ``owner`` (a module, a class or another object) these attributes within the block, then restore the old
    ones.

    An attribute of a class is restored as the class holds it: a class method comes back unbound.
    """
    # ``getattr`` on a class would give a bound method or a descriptor's value.
    class_attributes = vars(owner) if isinstance(owner, type) else {}
    old_values = {name: class_attributes[name] if name in class_attributes else getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in old_values.items():
            setattr(owner, name, value)
