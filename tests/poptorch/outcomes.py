"""What calls come to, as text, and tables of such texts in files: for tests of many small calls."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ipuperf.testing import tables

KEYS = ("call", "arguments")


def outcome(call: Callable[[], Any], show: Callable[[Any], str] = repr) -> str:
    """What a call gives, as ``show`` says it, or the kind and the text of its error; then what it warns of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            text = show(call())
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
    return " | ".join([text, *dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in told)])


def folded(found: Iterable[tuple[str, str, str]]) -> list[dict[str, str]]:
    """A row for all arguments of a call that come to the same; ``…`` stands for the arguments themselves.

    Args:
        found: name of the call, its arguments, and what they come to.
    """
    rows: dict[tuple[str, str], list[str]] = {}
    for call, arguments, text in found:
        word = rf"(?<![\w.]){re.escape(arguments)}(?![\w.])"
        shown = re.sub(word, "…", text) if arguments else text
        rows.setdefault((call, " ".join(shown.split())), []).append(arguments)
    return [{"call": call, "arguments": "; ".join(each), "outcome": text} for (call, text), each in rows.items()]


def by_subject(calls: Iterable[str]) -> dict[str, list[str]]:
    """Calls by what they call: a test for each subject takes milliseconds."""
    found: dict[str, list[str]] = {}
    for call in calls:
        words = (word for word in re.findall(r"[A-Za-z_]\w*", call) if word not in _AROUND)
        found.setdefault(next(words), []).append(call)
    return found


_AROUND = ("list", "poptorch", "sorted", "seeded")


def check_rows(file: Path, rows: list[Mapping[str, str]], update: bool) -> None:
    """Compare rows with those of a file that are of the same calls; ``update`` writes them into it."""
    calls = {row["call"] for row in rows}
    kept = tables.read(file, KEYS) if file.is_file() else []
    now = tables.normalised(rows, KEYS)
    if update:
        merged = [row for row in kept if row["call"] not in calls] + now
        file.write_text(tables.text_of(sorted(merged, key=lambda row: row["call"])), encoding="utf-8")
        return
    moved = tables.moved([row for row in kept if row["call"] in calls], now, KEYS)
    assert not moved, tables.report(f"{file.name} (--update-baselines writes it again)", moved, 40)
