"""What the check of one program found, and how checks are run, told and kept."""

import json
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass
class Outcome:
    """``problems``: one sentence each, empty if all is well; ``compared``: numbers that were compared; ``refused``: why
    nothing was; ``ill_conditioned``: differences that the oracle alone has as well."""

    problems: list[str] = field(default_factory=list)
    compared: int = 0
    refused: str = ""
    ill_conditioned: str = ""

    @property
    def kind(self) -> str:
        """By what a smaller program counts as failing likewise: the exception, or that values differ."""
        return self.problems[0].partition(":")[0] if self.problems and self.problems[0].startswith("!") else "values"


def guarded(family: ModuleType, program: Any, *, trace: bool = False) -> Outcome:
    """The family's check; an exception is a problem too."""
    try:
        outcome: Outcome = family.check(program, trace=trace)
        return outcome
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        return Outcome([f"!{type(error).__name__}: {error} ({where})"])


def shrunk(family: ModuleType, program: Any, outcome: Outcome, *, trace: bool = False) -> Any:
    """A smaller program that fails in the same way, where the family can make programs smaller."""
    shrink: Callable[..., Any] | None = getattr(family, "shrink", None)

    def fails(smaller: Any) -> bool:
        found = guarded(family, smaller, trace=trace)
        return bool(found.problems) and found.kind == outcome.kind

    return program if shrink is None else shrink(program, fails)


def save(path: Path, name: str, program: Any, outcome: Outcome) -> None:
    """Keep a failing program; :func:`load` reads it."""
    kept = {"family": name, "found": outcome.problems[0], "program": json.loads(program.to_json())}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept) + "\n", encoding="utf-8")


def load(path: Path) -> tuple[str, str]:
    """Family and program (as JSON) of a kept failure."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    return kept["family"], json.dumps(kept["program"])
