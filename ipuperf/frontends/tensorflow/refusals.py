"""Names of the interface that are there to be refused: calling one is one clear error that says what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def refused(name: str, instead: str) -> Callable[..., NoReturn]:
    """A function (or class) of ``tensorflow.python.ipu`` whose call raises NotImplementedError.

    Args:
        name: from ``ipu.`` on.
        instead: why, and what a program can do.
    """

    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"tensorflow.python.ipu.{name} is not simulated: {instead}")

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    call.__doc__ = f"Not simulated: {instead}"
    return call


def absent(module: str, name: str, older: str = "") -> AttributeError:
    """The error of a name that ``module`` does not have.

    Args:
        older: what to use instead of it, for a name that a later release took away.
    """
    since = f": later releases took it away, use {older}" if older else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{since}")
