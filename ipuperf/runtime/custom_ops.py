"""Ops that a program brings along, by the identifiers with which it asks for them: a name, a domain and a version.

A user registers a description in Python; a C++ library that is known registers the op that stands for it.
"""

from __future__ import annotations

from ipuperf.ops import CustomOp
from ipuperf.ops.base import Op

#: What ``poptorch.custom_op`` and PopART call an op by.
Identifier = tuple[str, str, int]

_CLASSES: dict[Identifier, type[Op]] = {}


class CppOpError(ImportError):
    """A program asked for a custom op in C++; an ImportError, so that a program can fall back on a description."""


def register(identifier: Identifier, op_class: type[Op]) -> None:
    """Let an op be of ``op_class`` from now on."""
    _CLASSES[identifier] = op_class


def described(op_class: object) -> type[CustomOp]:
    """Return ``op_class``. TypeError unless it is a subclass of :class:`CustomOp`."""
    if not (isinstance(op_class, type) and issubclass(op_class, CustomOp)):
        raise TypeError(f"register: {op_class!r} is no subclass of CustomOp")
    return op_class


def registered(identifier: Identifier) -> type[Op] | None:
    """Return the class of an op, or None where nobody registered one."""
    return _CLASSES.get(identifier)


__all__ = ["CppOpError", "Identifier", "described", "register", "registered"]
