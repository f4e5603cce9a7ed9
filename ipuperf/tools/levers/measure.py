"""Try all levers on one run."""

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
"""All levers. If two gain the same, the earlier one is named first."""


@dataclass(frozen=True)
class LeverResults:
    """The gains of all levers.

    Attributes:
        cycles: cycles of the run as it is.
        fullest: bytes on its fullest tile.
        trials: the changes that were simulated and fit, the largest gain first.
        untried: the changes that could not be tried or do not fit, with the reason.
    """

    cycles: int
    fullest: int
    trials: tuple[Trial, ...]
    untried: tuple[Untried, ...]

    def gain(self, trial: Trial) -> Fraction:
        """Cycles that a change saves, for as many samples as the run has."""
        return self.cycles - trial.cycles


@checked()
def measure(run: Rerun, levers: Sequence[Lever] = LEVERS) -> LeverResults:
    """Try all levers on the program of a run, one after the other. On a terminal a line shows which.

    If a lever has several changes that fit, the best one stands for it. A change that the program, the machine or
    lowering refuses counts as one that could not be tried.
    """
    unchanged = Trial("as it is", run.trace)
    trials: list[Trial] = []
    untried: list[Untried] = []
    with tqdm(levers, desc="levers", leave=False, disable=not sys.stderr.isatty()) as line:
        for lever in line:
            line.set_postfix_str(lever.change)
            fitting, refused = _tried(lever, run)
            # One trial stands for a lever: the fastest one that fits.
            trials += sorted(fitting, key=lambda trial: trial.cycles)[:1]
            untried += refused
    trials.sort(key=lambda trial: trial.cycles)
    return LeverResults(int(unchanged.cycles), unchanged.fullest, tuple(trials), tuple(untried))


def _tried(lever: Lever, run: Rerun) -> tuple[list[Trial], list[Untried]]:
    """The changes of a lever that fit, and those that could not be tried or do not fit."""
    trials: list[Trial] = []
    untried: list[Untried] = []
    try:
        for outcome in lever.tries(run):
            if isinstance(outcome, Untried):
                untried.append(outcome)
            elif outcome.fits:
                trials.append(outcome)
            else:
                limit = int(outcome.trace.meta["bytes_per_tile"])
                why = f"does not fit: {outcome.fullest:,} B on the fullest tile of {limit:,}"
                untried.append(Untried(outcome.what, why))
    except (IrError, MachineError, RerunError, SimulationError) as error:
        untried.append(lever.untried(f"refused: {error}"))
    return trials, untried
