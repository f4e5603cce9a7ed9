"""Try all levers on one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations

from tqdm import tqdm

from ipuperf.kinds import checked
from ipuperf.progress import shows_progress
from ipuperf.report.advice import LEAST_GAIN

from .global_batch import MicroBatches, Replicas
from .host import CallbackThreads, HostProcesses, PrefetchDepth, SyncPatterns
from .io_tiles import IoTileCount, OverlappedIo
from .loops import CallLength, MoreMicroBatches
from .precision import HalfModel, HalfPart
from .proportion import MemoryProportion
from .recomputation import KeptPart, RecomputationSwitch
from .remote import OnChip, Sharding
from .rerun import Rerun
from .stages import StageDivision
from .trial import REFUSALS, Lever, ProgramChange, Trial, Untried, each_simulated

LEVERS: tuple[Lever, ...] = (
    Sharding(),
    OnChip(),
    StageDivision(),
    Replicas(),
    MicroBatches(),
    MemoryProportion(),
    RecomputationSwitch(),
    KeptPart(),
    HalfModel(),
    HalfPart(),
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

PAIRED = 3
"""The number of levers of each kind (training unchanged, changed) that pairs are made of."""

PAIRS = 6
"""The largest number of pairs that are simulated."""


@dataclass(frozen=True)
class LeverResults:
    """The gains of all levers.

    Attributes:
        cycles: cycles of the run as it is.
        fullest: bytes on its fullest tile.
        fits: whether it fits the tiles.
        trials: the changes that were simulated and fit, the largest gain first.
        pairs: two changes together, likewise, of those that gain more than each alone.
        untried: the changes that could not be tried or do not fit, with the reason.
    """

    cycles: int
    fullest: int
    trials: tuple[Trial, ...]
    untried: tuple[Untried, ...]
    fits: bool = True
    pairs: tuple[Trial, ...] = ()

    def gain(self, trial: Trial) -> Fraction:
        """Cycles that a change saves, for as many samples as the run has."""
        return self.cycles - trial.cycles

    def worth(self, trial: Trial) -> bool:
        """Whether a change is listed. Where the run does not fit, each one with which it does is."""
        return not self.fits or self.gain(trial) >= LEAST_GAIN * self.cycles


@checked()
def measure(run: Rerun, levers: Sequence[Lever] = LEVERS) -> LeverResults:
    """Try all levers on the program of a run, one after the other, then the best ones in pairs.

    On a terminal a line shows which. If a lever has several changes that fit, the best one stands for it. A change
    that the program, the machine or lowering refuses counts as one that could not be tried.
    """
    unchanged = Trial(ProgramChange("as it is"), run.trace)
    trials: list[Trial] = []
    untried: list[Untried] = []
    with tqdm(levers, desc="levers", leave=False, disable=not shows_progress()) as line:
        for lever in line:
            line.set_postfix_str(lever.change)
            fitting, refused = _fitting(_outcomes(lever, run))
            # One trial stands for a lever: the fastest one that fits.
            trials += sorted(fitting, key=lambda trial: trial.cycles)[:1]
            untried += refused
    trials.sort(key=lambda trial: trial.cycles)
    results = LeverResults(int(unchanged.cycles), unchanged.fullest, tuple(trials), tuple(untried), unchanged.fits)
    return replace(results, pairs=_pairs(run, results))


def _pairs(run: Rerun, results: LeverResults) -> tuple[Trial, ...]:
    """The best pairs of changes that do not exclude each other, the largest gain first."""
    worth = [trial for trial in results.trials if results.worth(trial)]
    same = [trial for trial in worth if not trial.change.training][:PAIRED]
    other = [trial for trial in worth if trial.change.training][:PAIRED]
    compatible = [
        (first, second)
        for first, second in combinations(sorted((*same, *other), key=lambda trial: trial.cycles), 2)
        if first.change.touches.isdisjoint(second.change.touches)
    ]
    # Pairs that leave the training as it is are simulated before others.
    compatible.sort(key=lambda pair: (any(one.change.training for one in pair), -sum(map(results.gain, pair))))
    pairs: list[Trial] = []
    for first, second in compatible[:PAIRS]:
        fitting, _ = _fitting(each_simulated(run, [first.change.with_other(second.change)]))
        pairs += [trial for trial in fitting if trial.cycles < min(first.cycles, second.cycles)]
    return tuple(sorted(pairs, key=lambda trial: trial.cycles))


def _outcomes(lever: Lever, run: Rerun) -> Iterator[Trial | Untried]:
    """The outcomes of a lever; an error with which the program refuses it is one."""
    try:
        yield from lever.tries(run)
    except REFUSALS as error:
        yield lever.untried(f"refused: {error}")


def _fitting(outcomes: Iterable[Trial | Untried]) -> tuple[list[Trial], list[Untried]]:
    """The changes that fit, and those that could not be tried or do not fit."""
    trials: list[Trial] = []
    untried: list[Untried] = []
    for outcome in outcomes:
        if isinstance(outcome, Untried):
            untried.append(outcome)
        elif outcome.fits:
            trials.append(outcome)
        else:
            limit = int(outcome.trace.meta["bytes_per_tile"])
            why = f"does not fit: {outcome.fullest:,} B on the fullest tile of {limit:,}"
            untried.append(Untried(outcome.what, why))
    return trials, untried
