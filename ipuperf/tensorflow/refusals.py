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
