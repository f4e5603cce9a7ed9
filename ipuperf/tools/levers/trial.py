"""What a lever gives: changes that were simulated, and changes that could not be tried."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from ipuperf.runtime.executable import Executable
    from ipuperf.trace import Trace

    from .rerun import Rerun


@dataclass(frozen=True)
class Trial:
    """A change that was simulated.

    Attributes:
        what: the change in words, as advice.
        trace: the trace of the changed program.
        work: how many times as many samples as the run it processes.
        more_bytes: bytes on the fullest tile that the trace does not count.
        trades_memory: whether the change undoes something that the program does to save memory.
    """

    what: str
    trace: Trace
    work: Fraction = Fraction(1)
    more_bytes: int = 0
    trades_memory: bool = False

    @property
    def cycles(self) -> Fraction:
        """Cycles for as many samples as the run has."""
        return int(self.trace.columns("runs")["dur"][-1]) / self.work

    @property
    def fullest(self) -> int:
        """Bytes on the fullest tile."""
        max_tile = self.trace.summary()["memory"]["max_tile"]
        return (max_tile["bytes"] if max_tile else 0) + self.more_bytes

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


def changed(executable: Executable, **options: Any) -> Executable:
    """The same lowered program with other host options (:class:`~ipuperf.runtime.executable.HostOptions`)."""
    # Host options do not change what lowering does, so the lowered program is shared and not made again.
    host = replace(executable.host, **options)
    return executable.on(executable.machine, lowered_alike=True, host=host)
