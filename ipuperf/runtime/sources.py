"""The pieces of a user's program, and the error for a program that cannot be started."""

from __future__ import annotations

from dataclasses import dataclass


class ScriptError(RuntimeError):
    """A program cannot be started: it does not exist, is of no known kind, or is a notebook that cannot be read."""


@dataclass(frozen=True)
class Source:
    """A piece of a program that is compiled by itself: a whole script, or one cell of a notebook."""

    filename: str
    text: str | bytes
