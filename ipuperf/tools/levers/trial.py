"""What a lever gives: changes that were simulated, and changes that could not be tried."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

from ipuperf.ir import IrError
from ipuperf.machine import MachineError
from ipuperf.simulation import SimulationError
from ipuperf.trace import Trace

from .change import ProgramChange
from .rerun import Rerun, RerunError

REFUSALS = (IrError, MachineError, RerunError, SimulationError)
"""Errors with which the program, the machine or lowering refuse a change."""


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

    @cached_property
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
        moves_work: whether it changes what the IPUs compute, where and when, and keeps the training.
    """

    change: ClassVar[str]
    moves_work: ClassVar[bool] = False

    @abstractmethod
    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        """Simulate changes of this kind one after the other; nothing if the program has no use for them."""

    def untried(self, why: str) -> Untried:
        """This kind of change as one that cannot be tried."""
        return Untried(self.change, why)


def simulated(run: Rerun, change: ProgramChange) -> Trial:
    """The program of a run with one more change, simulated.

    Raises:
        IrError, MachineError, RerunError, SimulationError: the change is refused (:data:`REFUSALS`).
    """
    changed = run.after(change, run.trace)
    return Trial(changed.change, changed.executable.trace)


def each_simulated(run: Rerun, changes: Sequence[ProgramChange]) -> Iterator[Trial | Untried]:
    """Changes simulated one after the other; one that is refused does not end the others."""
    for change in changes:
        try:
            yield simulated(run, change)
        except REFUSALS as error:
            # The program's own error says enough, without its class and the name of the file.
            reason = re.sub(r"^.* fails: [\w.]+: ", "", str(error))
            yield Untried(change.what, f"refused: {reason}")
