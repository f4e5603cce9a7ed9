"""Printing during a run that the environment variable ``MODEL_LOG_LEVEL`` (TRACE, DEBUG, INFO, WARN) switches on.

Source: popxl-addons: popxl_addons/debugging.py.
"""

from __future__ import annotations

import os
from typing import Any, Literal

from ipuperf.base.near_names import instead_of
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments

Level = Literal["TRACE", "DEBUG", "INFO", "WARN"]
LEVELS = ("TRACE", "DEBUG", "INFO", "WARN")


def _wanted(level: str) -> bool:
    """Whether ``level`` is at least that of the environment (default: INFO); KeyError for one that does not exist."""
    known = {name: number for number, name in enumerate(LEVELS)}
    for name in (level, chosen := os.environ.get("MODEL_LOG_LEVEL", "INFO")):
        if name not in known:
            raise KeyError(f"level {name!r}{instead_of(name, LEVELS)}")
    return known[chosen] <= known[level]


@checked_arguments
def print_tensor(t: popxl.Tensor, *args: Any, level: Level = "DEBUG", **kwargs: Any) -> popxl.Tensor:
    """:func:`popxl.ops.print_tensor` at this level; ``t`` itself where it is switched off."""
    return popxl.ops.print_tensor(t, *args, **kwargs) if _wanted(level) else t


@checked_arguments
def print_text(text: str, num: popxl.Tensor | None = None, level: Level = "DEBUG") -> None:
    """Print ``text``, and the value of ``num`` if given, at this place of a sequence of ops."""
    if _wanted(level):
        popxl.ops.print_tensor(popxl.constant(0, popxl.int32) if num is None else num, text)


__all__ = ["print_tensor", "print_text"]
