"""Completion in Bash of words with ``=`` and ``:`` in them, which Bash takes for several words."""

from __future__ import annotations

import re
from typing import Any

from click.shell_completion import BashComplete, CompletionItem, add_completion_class

_BREAKS = re.compile(r"[=:]+")


class Bash(BashComplete):
    """Bash's words joined where it broke them: ``--machine=pod4``, ``--set NAME=VALUE``, ``--plot lines:X,Y``."""

    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one that is completed, and that one."""
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for word in (*args, incomplete):
            is_joined = words and (_BREAKS.fullmatch(word) or _BREAKS.fullmatch(words[-1][-1:]))
            if is_joined and word:
                words[-1] += word
            elif not is_joined:
                words.append(word)
        *args, incomplete = words
        # Bash replaces only what stands behind the last break.
        self._before = (
            incomplete[: incomplete.rindex(breaks[-1]) + 1] if (breaks := _BREAKS.findall(incomplete)) else ""
        )
        return args, incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return type and value as the script in the shell reads them."""
        return f"{item.type},{item.value.removeprefix(self._before)}"


def register() -> None:
    """Let click complete with this class; its classes for other shells stay."""
    add_completion_class(Bash)
