"""Try all levers on one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tqdm import tqdm

from ipuperf.base.kinds import checked
from ipuperf.base.progress import shows_progress
from ipuperf.report.advice import LEAST_GAIN

from .change import ProgramChange
from .global_batch import MicroBatches, MoreReplicas, MoreStages, Replicas
from .host import CallbackThreads, HostProcesses, PrefetchDepth, SyncPatterns
from .io_tiles import IoTileCount, OverlappedIo
from .loops import CallLength, MoreMicroBatches
from .precision import HalfModel, HalfPart
from .proportion import MemoryProportion
from .recomputation import KeptPart, RecomputationSwitch
from .remote import OnChip, Sharding
from .rerun import Rerun
from .stages import StageDivision
from .trial import REFUSALS, Lever, Trial, Untried

LEVERS: tuple[Lever, ...] = (
    Sharding(),
    OnChip(),
    StageDivision(),
    Replicas(),
    MoreReplicas(),
    MoreStages(),
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

FIRST = 2
"""The number of changes that others are tried after: the best ones that keep the training."""

TOGETHER = 3
"""The largest number of changes together."""


@dataclass(frozen=True)
class LeverResults:
    """The gains of all levers.

    Attributes:
        cycles: cycles of the run as it is.
        fullest: bytes on its fullest tile.
        fits: whether it fits the tiles.
        trials: the changes that were simulated and fit, the largest gain first.
        together: two or three changes together, likewise, that gain more than their first ones alone.
        untried: the changes that could not be tried or do not fit, with the reason.
    """

    cycles: int
    fullest: int
    trials: tuple[Trial, ...]
    untried: tuple[Untried, ...]
    fits: bool = True
    together: tuple[Trial, ...] = ()

    def gain(self, trial: Trial) -> Fraction:
        """Cycles that a change saves, for as many samples as the run has."""
        return self.cycles - trial.cycles

    def worth(self, trial: Trial) -> bool:
        """Whether a change is listed. Where the run does not fit, each one with which it does is."""
        return not self.fits or self.gain(trial) >= LEAST_GAIN * self.cycles


@dataclass(frozen=True)
class _Sequence:
    """Changes one after the other, with the levers that made them."""

    trial: Trial
    levers: tuple[Lever, ...]

    def __lt__(self, other: _Sequence) -> bool:
        return self.trial.cycles < other.trial.cycles


@checked()
def measure(run: Rerun, levers: Sequence[Lever] = LEVERS) -> LeverResults:
    """Try all levers on the program of a run, one after the other, then others after the best ones.

    On a terminal a line shows which. If a lever has several changes that fit, the best one stands for it. A change
    that the program, the machine or lowering refuses counts as one that could not be tried.
    """
    unchanged = Trial(ProgramChange("as it is"), run.trace)
    alone: list[_Sequence] = []
    untried: list[Untried] = []
    with tqdm(levers, desc="levers", leave=False, disable=not shows_progress()) as line:
        for lever in line:
            line.set_postfix_str(lever.change)
            fitting, refused = _fitting(_outcomes(lever, run))
            # One trial stands for a lever: the fastest one that fits.
            alone += [_Sequence(trial, (lever,)) for trial in sorted(fitting, key=lambda trial: trial.cycles)[:1]]
            untried += refused
    alone.sort()
    trials = tuple(one.trial for one in alone)
    results = LeverResults(int(unchanged.cycles), unchanged.fullest, trials, tuple(untried), unchanged.fits)
    return replace(results, together=_together(run, results, alone, levers))


def _together(
    run: Rerun, results: LeverResults, alone: Sequence[_Sequence], levers: Sequence[Lever]
) -> tuple[Trial, ...]:
    """The best changes with one or two more after them, the largest gain first.

    A lever that gained nothing alone may gain after another one: larger micro-batches cost a pipeline its overlap, and
    not a model on one IPU. So levers that move work are always tried again, the others where they gained alone.
    """
    worth = [one for one in alone if results.worth(one.trial)]
    gained = {lever for one in worth for lever in one.levers}
    again = [lever for lever in levers if lever.moves_work or lever in gained]
    keeping = [one for one in worth if not one.trial.change.training]
    longest = keeping[:FIRST] or worth[:1]
    together: list[_Sequence] = []
    for _ in range(TOGETHER - 1):
        longer = [after for one in longest for after in _followed(run, one, again)]
        together += longer
        # Of the longer ones, only the best that keeps the training goes on.
        longest = sorted(longer, key=lambda after: (bool(after.trial.change.training), after.trial.cycles))[:1]
    # Of the orders of the same levers the fastest one is named.
    fastest: dict[frozenset[Lever], Trial] = {}
    for after in sorted(together):
        fastest.setdefault(frozenset(after.levers), after.trial)
    return tuple(fastest.values())


def _followed(run: Rerun, first: _Sequence, levers: Sequence[Lever]) -> Iterator[_Sequence]:
    """A change with one more after it, the best one of each lever that gains."""
    changed = run.after(first.trial.change, first.trial.trace)
    for lever in levers:
        # What moves work may move more of it once another change has made room.
        if lever is not first.levers[-1] and (lever.moves_work or lever not in first.levers):
            fitting, _ = _fitting(_outcomes(lever, changed))
            best = min(fitting, key=lambda trial: trial.cycles, default=first.trial)
            if (1 - LEAST_GAIN) * first.trial.cycles >= best.cycles:
                yield _Sequence(best, (*first.levers, lever))


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
