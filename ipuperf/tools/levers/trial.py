"""What a lever gives: changes that were simulated, and changes that could not be tried."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from ipuperf.ir import IrError
from ipuperf.machine import MachineError
from ipuperf.simulation import SimulationError

from .rerun import Rerun, RerunError

if TYPE_CHECKING:
    from ipuperf.ir import Ir
    from ipuperf.lowering import DeviceProgram
    from ipuperf.pipelines import BuildRequest
    from ipuperf.runtime.executable import Executable
    from ipuperf.runtime.model_revision import ModelRequest
    from ipuperf.trace import Trace

REFUSALS = (IrError, MachineError, RerunError, SimulationError)
"""Errors with which the program, the machine or lowering refuse a change."""


@dataclass(frozen=True)
class ProgramChange:
    """A change of a program.

    Attributes:
        what: the change in words, as advice.
        touches: subjects that it changes. Two changes of one subject exclude each other.
        work: how many times as many samples as the run it processes.
        more_bytes: bytes on the fullest tile that its trace does not count.
        trades_memory: whether it undoes something that the program does to save memory.
        training: what it changes of the training itself, in words; "" if results stay the same but for rounding.
        diff: lines of the user's program, without (``- ...``) and with (``+ ...``) the change.
        of_model: changes the model that a front end is asked for.
        of_pipeline: changes pipelines before they are built.
        of_ir: changes the program before it is lowered.
        of_executable: gives the program with other options.
        of_program: gives another lowered program.
    """

    what: str
    touches: frozenset[str] = frozenset()
    work: Fraction = Fraction(1)
    more_bytes: int = 0
    trades_memory: bool = False
    training: str = ""
    diff: tuple[str, ...] = ()
    of_model: Callable[[ModelRequest], None] | None = None
    of_pipeline: Callable[[BuildRequest], BuildRequest] | None = None
    of_ir: Callable[[Ir], None] | None = None
    of_executable: Callable[[Executable], Executable] | None = None
    of_program: Callable[[DeviceProgram], DeviceProgram] | None = None

    def with_other(self, other: ProgramChange) -> ProgramChange:
        """Both changes as one."""
        return ProgramChange(
            f"{self.what}; and {other.what}",
            self.touches | other.touches,
            self.work * other.work,
            self.more_bytes + other.more_bytes,
            self.trades_memory or other.trades_memory,
            "; ".join(filter(None, (self.training, other.training))),
            (*self.diff, *other.diff),
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


@dataclass(frozen=True)
class Trial:
    """A change that was simulated.

    Attributes:
        change: the change.
        trace: the trace of the changed program.
    """

    change: ProgramChange
    trace: Trace

    @property
    def what(self) -> str:
        """The change in words, as advice."""
        return self.change.what

    @property
    def cycles(self) -> Fraction:
        """Cycles for as many samples as the run has."""
        return int(self.trace.columns("runs")["dur"][-1]) / self.change.work

    @property
    def fullest(self) -> int:
        """Bytes on the fullest tile."""
        max_tile = self.trace.summary()["memory"]["max_tile"]
        return (max_tile["bytes"] if max_tile else 0) + self.change.more_bytes

    @property
    def fits(self) -> bool:
        """Whether the changed program fits the tiles."""
        return not self.trace.meta["oom"] and self.fullest <= int(self.trace.meta["bytes_per_tile"])


@dataclass(frozen=True)
class Untried:
    """A change that could not be tried.

    Attributes:
        what: the change in words.
        why: the reason.
    """

    what: str
    why: str


class Lever(ABC):
    """A kind of change.

    Class attributes:
        change: the kind of change in words, for changes that could not be tried.
    """

    change: ClassVar[str]

    @abstractmethod
    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        """Simulate changes of this kind one after the other; nothing if the program has no use for them."""

    def untried(self, why: str) -> Untried:
        """This kind of change as one that cannot be tried."""
        return Untried(self.change, why)


def simulated(run: Rerun, change: ProgramChange) -> Trial:
    """The program of a run with a change, simulated.

    Raises:
        IrError, MachineError, RerunError, SimulationError: the change is refused (:data:`REFUSALS`).
    """

    def of_model(request: ModelRequest) -> None:
        # Models of the other kind, such as one for validation, stay as they are.
        if change.of_model and run.model and request.training == run.model.training:
            change.of_model(request)

    executable = run.executable
    if change.of_model or change.of_pipeline or change.of_ir:
        executable = run.fresh(change.of_pipeline, of_model)
    if change.of_ir:
        change.of_ir(executable.ir)
    if change.of_executable:
        executable = change.of_executable(executable)
    if change.of_program:
        program = change.of_program(executable.device_program)
        executable = executable.on(executable.machine)
        # `cached_property` looks into the instance first, so this program is simulated instead of a lowered one.
        vars(executable)["device_program"] = program
    return Trial(change, executable.trace)


def each_simulated(run: Rerun, changes: Sequence[ProgramChange]) -> Iterator[Trial | Untried]:
    """Changes simulated one after the other; one that is refused does not end the others."""
    for change in changes:
        try:
            yield simulated(run, change)
        except REFUSALS as error:
            # The program's own error says enough, without its class and the name of the file.
            reason = re.sub(r"^.* fails: [\w.]+: ", "", str(error))
            yield Untried(change.what, f"refused: {reason}")
