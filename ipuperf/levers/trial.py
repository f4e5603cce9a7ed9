"""What every lever gives: changes that were simulated, and what could not be tried."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ipuperf.runtime.executable import Executable
    from ipuperf.trace import Trace

    from .rerun import Rerun


@dataclass(frozen=True)
class Trial:
    """A change that was simulated.

    Attributes:
        what: the change in words, as advice.
        trace: of the changed program.
        work: how many times the samples of the run it takes.
        more_bytes: what it keeps on the fullest tile that the trace does not know of.
        trades_memory: it undoes what the program does for the sake of memory.
    """

    what: str
    trace: Trace
    work: Fraction = Fraction(1)
    more_bytes: int = 0
    trades_memory: bool = False

    @property
    def cycles(self) -> Fraction:
        """Cycles for the samples of the run."""
        return int(self.trace.columns("runs")["dur"][-1]) / self.work

    @property
    def fullest(self) -> int:
        """Bytes on the fullest tile."""
        found = self.trace.summary()["memory"]["max_tile"]
        return (found["bytes"] if found else 0) + self.more_bytes

    @property
    def fits(self) -> bool:
        """Whether it fits the tiles."""
        return not self.trace.meta["oom"] and self.fullest <= int(self.trace.meta["bytes_per_tile"])


@dataclass(frozen=True)
class Untried:
    """What could not be tried.

    Attributes:
        what: the change in words.
        why: what stands in the way.
    """

    what: str
    why: str


class Lever(ABC):
    """A kind of change.

    Class attributes:
        what: it in words, for what could not be tried.
    """

    what: ClassVar[str]

    @abstractmethod
    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        """Changes of this kind, simulated one after the other; nothing where the program has no use for it."""

    def untried(self, why: str) -> Untried:
        """It cannot be tried."""
        return Untried(self.what, why)


def changed(executable: Executable, **options: object) -> Executable:
    """The same lowered program with other host options (attributes of :class:`Executable`)."""
    other = executable.on(executable.machine, lowered_alike=True)
    vars(other).update(options)
    return other
