"""What C++ sources compute, as far as text says it: a digest that comments and white space do not change."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_STRING = r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])+'"
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(rf"^[ \t]*#(?:[^\n]|(?<=\\)\n)*|{_STRING}|\w+|[^\w\s]+", re.MULTILINE)
_SUFFIXES = {".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".s"}


def without_comments(text: str) -> str:
    """C++ with a space for each comment."""
    return _COMMENT.sub(lambda match: match[1] or " ", text)


def digest(source: str | Path) -> str:
    """SHA-256 of the C++ files in the folder of ``source``: an op is spread over several, vertices among them."""
    files = sorted(path for path in Path(source).parent.iterdir() if path.suffix.lower() in _SUFFIXES)
    words = [(path.name, _tokens(path.read_text(encoding="utf-8", errors="replace"))) for path in files]
    return hashlib.sha256(repr(words).encode()).hexdigest()


def _tokens(text: str) -> list[str]:
    """Strings as they are, lines of the preprocessor, names and numbers, runs of other characters."""
    tokens = _TOKEN.findall(without_comments(text))
    return [token if token[0] in "\"'" else " ".join(token.split()) for token in tokens]


__all__ = ["digest", "without_comments"]
