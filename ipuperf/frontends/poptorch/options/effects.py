"""What each option does here: the rows of :mod:`ipuperf.frontends.options`, by the options' names.

Options are set long before they matter and may be set again, so a :class:`Ledger` remembers which are set in vain, and
the executor tells it when it compiles.
"""

from __future__ import annotations

from typing import Any

from ipuperf.frontends.options import NO_EFFECT, UNSUPPORTED, Option

from ..effects import EFFECTS as _ROWS
from ..errors import UnsupportedError

EFFECTS = {name: option for name, option in _ROWS.below("Options.").items() if "(" not in name}
"""The options by their names below ``poptorch.Options()``; those of ``_Popart.set`` are in :data:`POPART_EFFECTS`."""

POPART_EFFECTS = _ROWS.below("Options._Popart.set(", ")")
"""Known keys of ``_Popart.set``; other keys have the row ``other keys``."""

LOCATION_EFFECTS = _ROWS.below("TensorLocationSettings.")
"""The members of a ``TensorLocationSettings``; sharding is applied to optimiser state only."""


class Ledger:
    """The options a program has set, and what is to be said about them. ``Options`` and its members share one."""

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}

    def record(self, option: str, value: Any, row: Option | None = None) -> None:
        """Check ``option`` (a key of :data:`EFFECTS`, unless its ``row`` is given) and remember its note, if any.

        The last value counts. Raises :class:`~ipuperf.poptorch.errors.UnsupportedError`.
        """
        row = EFFECTS[option] if row is None else row
        shown = _shown(option, value)
        if row.status == UNSUPPORTED and row.asked_for(value):
            raise UnsupportedError(f"poptorch.Options().{shown} is not supported: {row.reason}")
        self._notes.pop(option, None)
        if row.status == NO_EFFECT and row.asked_for(value):
            self._notes[option] = f"poptorch.Options().{shown} is without effect: {row.reason}"

    def notes(self) -> list[str]:
        """One sentence per option that was set and is without effect, in the order of setting."""
        return list(self._notes.values())


def _shown(option: str, value: Any) -> str:
    if option.startswith("_Popart.set "):
        return f"_Popart.set({option.removeprefix('_Popart.set ')!r}, {value!r})"
    values = value if isinstance(value, tuple) else (value,)
    return f"{option}({', '.join(str(v) if hasattr(v, 'name') else repr(v) for v in values)})"
