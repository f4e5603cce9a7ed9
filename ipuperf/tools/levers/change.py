"""A change of a program: what each part of the road from the user's model to the lowered program does to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ipuperf.ir import Ir
from ipuperf.lowering import DeviceProgram
from ipuperf.pipelines import BuildRequest
from ipuperf.runtime.executable import Executable
from ipuperf.runtime.model_revision import ModelRequest


@dataclass(frozen=True)
class ProgramChange:
    """A change of a program.

    Attributes:
        what: the change in words, as advice.
        work: how many times as many samples as the run it processes.
        more_bytes: bytes on the fullest tile that its trace does not count.
        trades_memory: whether it undoes something that the program does to save memory.
        training: what it changes of the training itself, in words; "" if results stay the same but for rounding.
        diff: lines of the user's program, without (``- ...``) and with (``+ ...``) the change.
        scaled: factors of keyword arguments in these lines; a change that follows multiplies them.
        of_model: changes the model that a front end is asked for.
        of_pipeline: changes pipelines before they are built.
        of_ir: changes the program before it is lowered.
        of_executable: gives the program with other options.
        of_program: gives another lowered program.
    """

    what: str
    work: Fraction = Fraction(1)
    more_bytes: int = 0
    trades_memory: bool = False
    training: str = ""
    diff: tuple[str, ...] = ()
    scaled: Mapping[str, Fraction] = field(default_factory=dict)
    of_model: Callable[[ModelRequest], None] | None = None
    of_pipeline: Callable[[BuildRequest], BuildRequest] | None = None
    of_ir: Callable[[Ir], None] | None = None
    of_executable: Callable[[Executable], Executable] | None = None
    of_program: Callable[[DeviceProgram], DeviceProgram] | None = None

    @property
    def from_program(self) -> bool:
        """Whether the user's program has to start again for it."""
        return bool(self.of_model or self.of_pipeline or self.of_ir)

    def scale(self, name: str) -> Fraction:
        """The factor of a keyword argument, 1 if it stays as it is."""
        return self.scaled.get(name, Fraction(1))

    def then(self, other: ProgramChange) -> ProgramChange:
        """Both changes as one. The other one was chosen for the program with this one."""
        return ProgramChange(
            "; and ".join(filter(None, (self.what, other.what))),
            self.work * other.work,
            self.more_bytes + other.more_bytes,
            self.trades_memory or other.trades_memory,
            "; ".join(filter(None, (self.training, other.training))),
            _one_diff(self.diff, other),
            {**self.scaled, **{name: self.scale(name) * factor for name, factor in other.scaled.items()}},
            _in_turn(self.of_model, other.of_model),
            _in_turn(self.of_pipeline, other.of_pipeline),
            _in_turn(self.of_ir, other.of_ir),
            _in_turn(self.of_executable, other.of_executable),
            _in_turn(self.of_program, other.of_program),
        )


def _in_turn(first: Callable[[Any], Any] | None, second: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """Both functions, one after the other; the second gets what the first returns, or else the same object."""
    if first is None or second is None:
        return first or second

    def both(thing: Any) -> Any:
        result = first(thing)
        return second(thing if result is None else result)

    return both


def _one_diff(first: Sequence[str], other: ProgramChange) -> tuple[str, ...]:
    """The lines of two diffs of the same text. Where both are about one place, those of the second one stand."""
    replaced = {_place(line) for line in other.diff} | {f"{sign} {name}=" for name in other.scaled for sign in "-+"}
    return (*(line for line in first if _place(line) not in replaced), *other.diff)


def _place(line: str) -> str:
    """What a line of a diff is about: a keyword, the line that goes, or the call that comes (with the key it sets)."""
    if keyword := re.match(r"[-+] \w+=", line):
        return keyword[0]
    if line.startswith("+ #"):
        return re.sub(r"(?<![\w.])\d+", "", line)  # names of layers keep theirs
    if line.startswith("- ") or "(" not in line:
        return line
    call, arguments = line.split("(", 1)
    return f"{call}({arguments.split(',')[0]}" if call.endswith(".set") else call
