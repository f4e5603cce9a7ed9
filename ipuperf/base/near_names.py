"""Names that are near to one that does not exist, for the errors of every room."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LEAST_RATIO = 0.7
"""How alike two names are at least, as `difflib` counts it: 1 for equal ones, 0 for those that share nothing."""

_LESS = 0.1
"""How much less alike than the nearest name others may be."""


def near_names(name: object, names: Iterable[object], most: int = 3, least_ratio: float = _LEAST_RATIO) -> list[str]:
    """Return the names that are spelled nearly like ``name``, the nearest first.

    Upper case, ``-``, ``_``, ``.`` and spaces make no difference. A name that is no text has no near names.
    """
    # `import ipuperf` loads this module, and only errors need difflib.
    from difflib import SequenceMatcher, get_close_matches

    if not isinstance(name, str):
        return []
    spelled: dict[str, str] = {}
    for known in names:
        spelled.setdefault(_plain(str(known)), str(known))
    typed = _plain(name)
    matches = get_close_matches(typed, spelled, most, least_ratio)
    best = SequenceMatcher(None, matches[0], typed).ratio() if matches else 0.0
    return [spelled[match] for match in matches if SequenceMatcher(None, match, typed).ratio() > best - _LESS]


def did_you_mean(name: object, names: Iterable[object]) -> str:
    """Return `` (did you mean A or B?)`` for the names near ``name``; empty if there are none."""
    near = near_names(name, names)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def instead_of(name: object, names: Iterable[object]) -> str:
    """Return the end of an error about an unknown ``name``: those near to it, then all that are allowed."""
    known = [str(known) for known in names]
    return f"{did_you_mean(name, known)}; allowed: {', '.join(known)}"


def _plain(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()
