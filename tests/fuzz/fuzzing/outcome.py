"""What the check of one program found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """``problems``: one sentence each, empty if all is well; ``compared``: numbers that were compared."""

    problems: list[str] = field(default_factory=list)
    compared: int = 0
