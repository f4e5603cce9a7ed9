"""Errors for the names of libpva that a trace has no value for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NoReturn


class ReportPart:
    """An object of a report, read only. A missing name is an ``AttributeError`` that says what there is instead.

    ``ABSENT`` maps names that libpva has and a trace does not hold to the place of a similar fact.
    """

    ABSENT: ClassVar[Mapping[str, str]] = {}

    def _why(self, name: str) -> str:
        """Say why there is no ``name``, and what there is instead; "" if nothing is known."""
        return self.ABSENT.get(name, "")

    def __getattr__(self, name: str) -> NoReturn:
        # Python itself asks for such names (``copy``, ``pickle``) and needs no explanation.
        if name.startswith("__"):
            raise AttributeError(name)
        there = [known for known in dir(self) if not known.startswith("_") and known not in ("ABSENT", name)]
        why = f"; {reason}" if (reason := self._why(name)) else ""
        raise AttributeError(
            f"{type(self).__name__}.{name}: not in a trace of ipuperf{why} (there is: {', '.join(there)})",
            name=name,
            obj=None,
        )
