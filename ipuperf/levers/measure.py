"""All levers tried on one run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tqdm import tqdm

from ipuperf.ir import IrError
from ipuperf.kinds import checked
from ipuperf.machine import MachineError
from ipuperf.simulation import SimulationError

from .host import CallbackThreads, HostProcesses, PrefetchDepth, SyncPatterns
from .io_tiles import IoTileCount, OverlappedIo
from .loops import CallLength, MoreMicroBatches
from .remote import OnChip, Sharding
from .rerun import Rerun, RerunError
from .stages import StageDivision
from .trial import Lever, Trial, Untried

LEVERS: tuple[Lever, ...] = (
    Sharding(),
    OnChip(),
    StageDivision(),
    MoreMicroBatches(),
    CallLength(),
    OverlappedIo(),
    IoTileCount(),
    SyncPatterns(),
    PrefetchDepth(),
    HostProcesses(),
    CallbackThreads(),
)
"""Every lever; of two with one gain the earlier is named first."""


@dataclass(frozen=True)
class LeverResults:
    """What the levers gave.

    Attributes:
        cycles: of the run as it is.
        fullest: bytes on its fullest tile.
        trials: what was simulated and fits, the largest gain first.
        untried: what could not be tried, with the reason; what does not fit among it.
    """

    cycles: int
    fullest: int
    trials: tuple[Trial, ...]
    untried: tuple[Untried, ...]

    def gain(self, trial: Trial) -> Fraction:
        """Cycles that a change saves, for the samples of the run."""
        return self.cycles - trial.cycles


@checked()
def measure(run: Rerun, levers: Sequence[Lever] = LEVERS) -> LeverResults:
    """Try all levers on the program of a run, one after the other; on a terminal a line shows which.

    Of several changes by one lever the best that fits stands for it. A change that the program, the machine or lowering
    refuses is one that could not be tried.
    """
    now = Trial("as it is", run.trace)
    trials: list[Trial] = []
    untried: list[Untried] = []
    with tqdm(levers, desc="levers", leave=False, disable=not sys.stderr.isatty()) as line:
        for lever in line:
            line.set_postfix_str(lever.what)
            found, refused = _tried(lever, run)
            trials += sorted(found, key=lambda trial: trial.cycles)[:1]
            untried += refused
    trials.sort(key=lambda trial: trial.cycles)
    return LeverResults(int(now.cycles), now.fullest, tuple(trials), tuple(untried))


def _tried(lever: Lever, run: Rerun) -> tuple[list[Trial], list[Untried]]:
    """The changes of a lever that fit, and what could not be tried."""
    trials: list[Trial] = []
    untried: list[Untried] = []
    try:
        for found in lever.tries(run):
            if isinstance(found, Untried):
                untried.append(found)
            elif found.fits:
                trials.append(found)
            else:
                limit = int(found.trace.meta["bytes_per_tile"])
                why = f"does not fit: {found.fullest:,} B on the fullest tile of {limit:,}"
                untried.append(Untried(found.what, why))
    except (IrError, MachineError, RerunError, SimulationError) as error:
        untried.append(lever.untried(f"refused: {error}"))
    return trials, untried
