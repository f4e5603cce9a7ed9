"""Rows of ``catalogue.csv`` and their views.

An argument that changes what is computed works or is refused. Only an argument that changes speed, memory, names or
rounding noise of the real device may be without effect. The effects are:

* *applied*: works as upstream.
* *no effect*: a :class:`~ipuperf.runtime.effects.WithoutEffectWarning` at the program's line, once for each argument.
* *no difference*: the argument does nothing upstream, or all its values give the same; no message appears.
* *unsupported*: an error that names the argument, the value and the remedy.

A ``neutral`` value asks for what happens anyway: it never gives a warning or an error.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ipuperf.frontends.catalogue.arguments import ARGUMENTS
from ipuperf.runtime.effects import tell

APPLIED, NO_EFFECT, NO_DIFFERENCE, UNSUPPORTED = "applied", "no effect", "no difference", "unsupported"
VOCABULARIES = ("popxl", "popxl_addons", "popart", "poptorch", "tensorflow")
"""The front ends, each with its own names of options."""


class Member(str):
    """The text of a value that only its front end can make: ``Enumeration.MEMBER``, or ``Settings()``."""

    __repr__ = str.__str__

    def value(self, scope: Mapping[str, Any]) -> Any:
        """Make the value of the classes in ``scope``."""
        owner, _, member = self.partition(".")
        return getattr(scope[owner], member) if member else scope[owner.removesuffix("()")]()


class Option(NamedTuple):
    """One row.

    Attributes:
        status: one of the four effects.
        reason: why an option is not applied, or what to use instead.
        neutral: values that ask for what happens anyway.
        accepts: types of values, ``int >= N``, a key of :data:`VALUES`, or the values by number; empty: the default's
            type.
        default: the value that the option starts with; None where its function states it.
    """

    status: str
    reason: str = ""
    neutral: tuple[Any, ...] = ()
    accepts: str = ""
    default: Any = None

    def asked_for(self, value: Any) -> bool:
        """Whether ``value`` asks for anything else than what happens anyway (``True`` is not 1)."""
        if isinstance(value, Enum):
            return Member(f"{type(value).__name__}.{value.name}") not in self.neutral
        # The types are compared first, because True == 1 and False == 0 in Python.
        return not any(type(value) is type(neutral) and bool(value == neutral) for neutral in self.neutral)

    @property
    def least(self) -> int | None:
        """The smallest integer that the row accepts; None: it has no such limit."""
        return int(self.accepts.removeprefix("int >= ")) if self.accepts.startswith("int >= ") else None

    def refusal(self, value: Any) -> str:
        """Return the values that the row accepts, in words, unless ``value`` is one of them."""
        if self.least is not None:
            accepted, words = _is_whole(value) and value >= self.least, f"an int of at least {self.least}"
        elif self.accepts.startswith("0 "):
            count = len(self.accepts.split(", "))
            accepted, words = _is_whole(value) and 0 <= value < count, f"one of {self.accepts}"
        else:
            holds, words = VALUES[self.accepts]
            accepted = holds(value)
        return "" if accepted else words


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "": (lambda value: True, "anything"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "number": (lambda value: (_is_whole(value) or isinstance(value, float)) and value == value, "a number"),
    "share": (lambda value: isinstance(value, float) and 0 < value < 1, "a number between 0 and 1"),
    "half|float": (lambda value: value in ("half", "float"), "'half' or 'float'"),
    "path": (lambda value: isinstance(value, str) or hasattr(value, "__fspath__"), "a path"),
}
"""Kinds of values by their name in the catalogue: the test of a value, and its words in errors."""


class Effects(Mapping[str, Option]):
    """The rows of one front end.

    Args:
        front_end: one of :data:`VOCABULARIES`, which begins every message.
        error: what an unsupported argument raises.
    """

    def __init__(self, front_end: str, error: type[Exception] = NotImplementedError) -> None:
        self.front_end = front_end
        self._rows = _rows()[front_end]
        self._error = error

    def given(self, argument: str, value: Any) -> None:
        """Apply the row of ``argument``, which the program has given this value.

        Raises:
            KeyError: there is no such row.
            The table's error: the argument is not supported.
        """
        option = self[argument]
        if not option.asked_for(value):
            return
        if option.status == UNSUPPORTED:
            raise self._error(f"{self.front_end}.{_with_value(argument, value)} is not supported: {option.reason}")
        if option.status == NO_EFFECT:
            tell(f"{self.front_end}.{argument} is without effect: {option.reason}")

    def below(self, start: str, end: str = "") -> dict[str, Option]:
        """Return the rows whose name has this start and end, by the name between them."""
        return {
            name.removeprefix(start).removesuffix(end): option
            for name, option in self.items()
            if name.startswith(start) and name.endswith(end)
        }

    def __getitem__(self, argument: str) -> Option:
        return self._rows[argument]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _with_value(argument: str, value: Any) -> str:
    return f"{argument[:-1]}={value!r})" if argument.endswith(")") else f"{argument} = {value!r}"


def _read(text: str) -> Any:
    """Return the Python value of a cell; what is no literal is a :class:`Member`."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return Member(text)


@cache
def _rows() -> Mapping[str, Mapping[str, Option]]:
    """Return the rows by front end and name."""
    tables: dict[str, dict[str, Option]] = {front_end: {} for front_end in VOCABULARIES}
    with Path(__file__).with_name("catalogue.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            neutral = tuple(_read(text) for text in row["neutral"].split("; ") if text)
            default = _read(row["default"]) if row["default"] else None
            option = Option(row["effect"], row["reason"], neutral, row["type"], default)
            for front_end, table in tables.items():
                table.update((name, option) for name in row[front_end].split("; ") if name)
    for a in ARGUMENTS:
        if a.status != APPLIED:
            # An argument with a place is compared with its neutral values where the function is called.
            neutral = a.neutral if a.place is None else ()
            tables[a.vocabulary][f"ops.{a.function}({a.name})"] = Option(a.status, a.reason, neutral)
    return tables


POPXL = Effects("popxl", ValueError)
ADDONS = Effects("popxl_addons")
POPART = Effects("popart", ValueError)
TENSORFLOW = Effects("tensorflow")
