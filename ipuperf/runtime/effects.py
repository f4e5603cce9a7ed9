"""The effect of each argument of a front end here (applied, without effect, or refused) and the reason.

A front end has one table, argument -> :class:`Effect`. It calls :meth:`Effects.given` when a program has given an
argument. An argument that changes what is computed works or is refused. Only an argument that changes speed, memory,
names or rounding noise of the real device may be without effect.

* *applied*: works as upstream; only tables that list every option have such rows.
* *no effect*: a :class:`WithoutEffectWarning` at the program's line, once for each argument in a run.
* *no difference*: the argument does nothing upstream, or all its values give the same; no message appears.
* *unsupported*: an error that names the argument, the value and the remedy.

A ``neutral`` value asks for what happens anyway: it never gives a warning or an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ipuperf.ir.location import user_location
from ipuperf.trace.printable import printable

APPLIED, NO_EFFECT, NO_DIFFERENCE, UNSUPPORTED = "applied", "no effect", "no difference", "unsupported"


class Effect(NamedTuple):
    """One row of a table; ``reason`` says why an argument is not applied, or what to use instead."""

    status: str
    reason: str = ""
    neutral: tuple[Any, ...] = ()

    def asked_for(self, value: Any) -> bool:
        """Whether ``value`` asks for anything else than what happens anyway (``True`` is not 1)."""
        # The types are compared first, because True == 1 and False == 0 in Python.
        return not any(type(value) is type(neutral) and bool(value == neutral) for neutral in self.neutral)


def rows(effect: Effect, names: str) -> dict[str, Effect]:
    """Make a row for each of these arguments (separated by spaces), which all have the same effect."""
    return dict.fromkeys(names.split(), effect)


class WithoutEffectWarning(UserWarning):
    """A program has given an argument that has no effect here."""


warnings.filterwarnings("once", category=WithoutEffectWarning, append=True)  # filters of the program come first


def tell(note: str) -> None:
    """Show ``note`` as a warning at the innermost line outside ipuperf, once in a run."""
    # The number of frames between differs from call to call, so no ``stacklevel`` of ``warnings.warn`` fits.
    file, _, line = user_location().rpartition(":")
    warnings.warn_explicit(printable(note), WithoutEffectWarning, file or "ipuperf", int(line or 0))


class Effects(Mapping[str, Effect]):
    """The table of a front end.

    Args:
        front_end: name of the package, which begins every message.
        rows: by argument: ``function(argument)`` below the package, or ``Class.attribute``.
        error: what an unsupported argument raises.
    """

    def __init__(
        self, front_end: str, rows: Mapping[str, Effect], error: type[Exception] = NotImplementedError
    ) -> None:
        self.front_end = front_end
        self._rows = dict(rows)
        self._error = error

    def given(self, argument: str, value: Any) -> None:
        """Apply the row of ``argument``, which the program has given this value.

        Raises:
            KeyError: there is no such row.
            The table's error: the argument is not supported.
        """
        effect = self[argument]
        if not effect.asked_for(value):
            return
        if effect.status == UNSUPPORTED:
            raise self._error(f"{self.front_end}.{_with_value(argument, value)} is not supported: {effect.reason}")
        if effect.status == NO_EFFECT:
            tell(f"{self.front_end}.{argument} is without effect: {effect.reason}")

    def __getitem__(self, argument: str) -> Effect:
        return self._rows[argument]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _with_value(argument: str, value: Any) -> str:
    return f"{argument[:-1]}={value!r})" if argument.endswith(")") else f"{argument} = {value!r}"
