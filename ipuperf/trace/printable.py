"""Texts from outside (names, paths, messages) in a form that is safe in a terminal, Markdown or a spreadsheet."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters other than new lines and tabs, and those that change the direction of writing."""
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|&])")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def printable(text: str) -> str:
    """``text`` with control characters as escapes (ESC is ``\\x1b``), so that none acts on a terminal.

    >>> printable("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def in_markdown(text: str) -> str:
    """``text`` for a line of Markdown, which then shows it unchanged.

    >>> in_markdown("<b>a|b")
    '\\\\<b\\\\>a\\\\|b'
    """
    return _MARKDOWN.sub(r"\\\1", printable(" ".join(text.split())))


def in_cell(text: object) -> object:
    """A text as a cell of CSV that no spreadsheet takes for a formula: with a quote before it, as OWASP advises
    ("CSV Injection"). Numbers and all else stay as they are.

    >>> in_cell("=1+2"), in_cell("-5"), in_cell("a")
    ("'=1+2", '-5', 'a')
    """
    # A number with a sign is no formula and has to stay a number.
    return f"'{text}" if isinstance(text, str) and _FORMULA.match(text) and not _is_number(text) else text


def of_cell(text: object) -> object:
    """The text that :func:`in_cell` made a cell of.

    >>> of_cell("'=1+2"), of_cell("'a")
    ('=1+2', "'a")
    """
    return text[1:] if isinstance(text, str) and text.startswith("'") and _FORMULA.match(text) else text


def with_texts(table: pd.DataFrame, change: Callable[[object], object]) -> pd.DataFrame:
    """``table`` with ``change`` (:func:`in_cell` or :func:`of_cell`) applied to each cell of its text columns."""
    return table.assign(**{name: table[name].map(change) for name in table if table[name].dtype.kind == "O"})


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return text[0] in "+-"
    return False
