"""A digest of C++ sources that comments and white space do not change, to recognise an op by its text."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_STRING = r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])+'"
# Strings come first, so that comment marks within them are text.
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(rf"^[ \t]*#(?:[^\n]|(?<=\\)\n)*|{_STRING}|\w+|[^\w\s]+", re.MULTILINE)
_SUFFIXES = {".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".s"}


def without_comments(text: str) -> str:
    """Replace each comment of C++ by a space."""
    return _COMMENT.sub(lambda match: match[1] or " ", text)


def digest(source: str | Path) -> str:
    """Return the SHA-256 of the C++ files in the folder of ``source``: an op's parts, its vertices too, lie in several
    files.
    """
    files = sorted(path for path in Path(source).parent.iterdir() if path.suffix.lower() in _SUFFIXES)
    words = [(path.name, _tokens(path.read_text(encoding="utf-8", errors="replace"))) for path in files]
    return hashlib.sha256(repr(words).encode()).hexdigest()


def _tokens(text: str) -> list[str]:
    """Split C++ into strings, lines of the preprocessor, names and numbers, and runs of other characters."""
    tokens = _TOKEN.findall(without_comments(text))
    return [token if token[0] in "\"'" else " ".join(token.split()) for token in tokens]


__all__ = ["digest", "without_comments"]
