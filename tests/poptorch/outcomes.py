"""What calls come to, as text: for tests of many small calls."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any


def outcome(call: Callable[[], Any], show: Callable[[Any], str] = repr) -> str:
    """What a call gives, as ``show`` says it, or the kind and the text of its error; then what it warns of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            text = show(call())
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
    return " | ".join([text, *dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in told)])


def by_subject(calls: Iterable[str]) -> dict[str, list[str]]:
    """Calls by what they call: a test for each subject takes milliseconds."""
    found: dict[str, list[str]] = {}
    for call in calls:
        words = (word for word in re.findall(r"[A-Za-z_]\w*", call) if word not in _AROUND)
        found.setdefault(next(words), []).append(call)
    return found


_AROUND = ("list", "poptorch", "sorted", "seeded")
