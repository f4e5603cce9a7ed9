"""The search: Optuna proposes, bounds rule out, what is left around the best is looked at.

A configuration is *ruled out* when its bound (:mod:`.bounds`) says that it cannot be faster than the best one that is
known, or cannot fit; it could not have won, whatever it takes. It is *put off* when one that asks less of the memory in
every respect did not fit: that it will not fit either is likely, not certain, so it only comes last.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .bounds import Bounds, LeastCost
from .errors import TuningError
from .evaluate import Outcome, Outcomes
from .space import ACCUMULATION, Configuration, TuningSpace

_RECOMPUTED = {"checkpoints": 0, "standard": 1, "none": 2}
_STARTS = 0.25
"""Share of the trials in which Optuna proposes at random."""
_RIDGE = 0.1
"""How strongly terms of the memory estimate are held near zero."""
_OVER = "over"
"""Attribute of a trial: the share of a tile that the program needs too much."""


@dataclass
class TuningSearch:
    """A search and what it found.

    Args:
        space, bounds, evaluator: what is searched, and how outcomes are had.
        trials: how many configurations are lowered at the most.
        seed: of Optuna's sampler.
        first: configurations to begin with.

    Attributes:
        outcomes: what is known, by place.
        best: the fastest that fits, None so far.
    """

    space: TuningSpace
    bounds: Bounds
    evaluator: Outcomes
    trials: int
    seed: int = 0
    first: tuple[int, ...] = ()
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    best: Outcome | None = None

    def __post_init__(self) -> None:
        count = len(self.space.configurations)
        self._known = np.zeros(count, dtype=bool)
        self._late = np.zeros(count, dtype=bool)
        self._least = np.zeros(count)
        self._bytes = np.zeros(count, dtype=np.int64)
        self.bounds.expect(self.space.configurations)

    def run(self) -> Iterator[Outcome]:
        """Every outcome as it is there; ends when all others are ruled out or no trials are left."""
        for place in self.first:
            yield from self._tried(place)
        near = bool(self.first)  # somebody knows a good one: less at random, more around it
        yield from self._proposed(max(1, self.trials // (5 if near else 3)))
        while not self.spent and len(self.open):
            yield from self._stepped() if near else self._most_hopeful()
            yield from self._most_hopeful()
            yield from self._stepped()

    # -- what is left ----------------------------------------------------------------------------------------------

    @property
    def limit(self) -> float:
        """Seconds of the best."""
        return math.inf if self.best is None or self.best.seconds is None else self.best.seconds

    @property
    def ruled_out(self) -> np.ndarray:
        """``bool[configurations]``: cannot be faster than the best, or cannot fit."""
        return (self._least >= self.limit) | (self._bytes > self.bounds.machine.chip.bytes_per_tile)

    @property
    def least_bytes(self) -> np.ndarray:
        """Bytes of the fullest tile of each configuration at least, as far as is known."""
        return self._bytes

    @property
    def open(self) -> np.ndarray:
        """The places that nothing is known of and that are not ruled out."""
        return np.flatnonzero(~self._known & ~self.ruled_out)

    @property
    def spent(self) -> bool:
        """Whether no trials are left."""
        return len(self.outcomes) >= self.trials

    def bound(self, place: int) -> LeastCost:
        """What a configuration takes at least."""
        return self.bounds.of(self.space.configurations[place])

    # -- looking at one --------------------------------------------------------------------------------------------

    def _tried(self, place: int) -> Iterator[Outcome]:
        """The outcome of a place that is open after all that can be learnt beforehand; nothing where it is not."""
        if self._known[place] or self.spent:
            return
        if self.bounds.learn(self.space.configurations[place]):
            self._bound_all()
        if self.ruled_out[place]:
            return
        found = self.evaluator.outcome(place, self.space.configurations[place], self.limit)
        self.outcomes[place] = found
        self._known[place] = True
        if found.fits and found.seconds is not None and found.seconds < self.limit:
            self.best = found
        if found.fullest.over:
            self._put_off(place)
        yield found

    def _bound_all(self) -> None:
        for place in self.open:
            bound = self.bounds.of(self.space.configurations[place])
            self._least[place], self._bytes[place] = bound.seconds, bound.bytes

    def _put_off(self, place: int) -> None:
        """What asks at least as much of the memory as a configuration that does not fit."""
        small = self.space.configurations[place]
        for other in self.open:
            if not self._late[other] and _asks_more(small, self.space.configurations[other]):
                self._late[other] = True

    # -- where to look ---------------------------------------------------------------------------------------------

    def _proposed(self, until: int) -> Iterator[Outcome]:
        """What Optuna's sampler proposes, moved to the nearest configuration that is open and not put off."""
        study = _study(self.seed, max(4, int(self.trials * _STARTS)))
        from optuna.trial import TrialState

        for place, outcome in self.outcomes.items():
            self._tell(study, place, outcome)
        while len(self.outcomes) < min(until, self.trials):
            there = self.open
            among = there[~self._late[there]]
            if not len(among):
                return
            asked = study.ask(self._ranges())
            wanted = [asked.params[name] for name in self.space.names]
            study.tell(asked, state=TrialState.FAIL)  # it is told of the one that is tried instead
            place = self.space.nearest(wanted, among, self._least)
            for found in self._tried(place):
                self._tell(study, place, found)
                yield found

    def _ranges(self) -> dict[str, Any]:
        from optuna.distributions import IntDistribution

        factors = self.space.sweep.factors
        return {name: IntDistribution(0, len(factors[name]) - 1) for name in self.space.names}

    def _tell(self, study: Any, place: int, outcome: Outcome) -> None:
        """An outcome in Optuna's words; bytes that are too many are a broken constraint."""
        if outcome.failure:
            return
        study.enqueue_trial(dict(zip(self.space.names, (int(level) for level in self.space.levels[place]))))
        trial = study.ask(self._ranges())
        trial.set_user_attr(_OVER, outcome.fullest.bytes / max(1, outcome.fullest.of) - 1.0)
        study.tell(trial, outcome.least_seconds if outcome.seconds is None else outcome.seconds)

    def _stepped(self) -> Iterator[Outcome]:
        """One step of a factor from the best: of those that are open the one that takes least by its bound, first what
        is not put off."""
        if self.best is None:
            return
        there = set(self.open.tolist())
        around = [place for _, _, place in self.space.steps(self.best.place) if place in there]
        for place in sorted(around, key=lambda each: (self._late[each], self._least[each], each))[:1]:
            yield from self._tried(place)

    def _most_hopeful(self) -> Iterator[Outcome]:
        """Of those that probably fit the one that takes least by its bound; where none probably fits the one whose
        fullest tile is least full. What is put off comes last."""
        there = self.open
        early = there[~self._late[there]]
        among = early if len(early) else there
        share = self._shares()[among]
        likely = among[share <= 1.0]
        order = np.lexsort((likely, self._least[likely])) if len(likely) else np.argsort(share, kind="stable")
        place = int((likely if len(likely) else among)[order[0]])
        if self.bounds.learn(self.space.configurations[place]):
            self._bound_all()
        else:
            yield from self._tried(place)

    def _shares(self) -> np.ndarray:
        """``float64[configurations]``: about what share of its tile the fullest one of each has: the logarithm is a sum
        with a term for each value of each factor, fitted to what is known (ridge regression)."""
        known = [place for place, found in self.outcomes.items() if found.fullest.bytes]
        if not known:
            return np.zeros(len(self.space.configurations))
        levels = self.space.levels
        columns = [(levels[:, [c]] == np.unique(levels[:, c])) for c in range(levels.shape[1])]
        terms = np.concatenate([np.ones((len(levels), 1)), *columns], axis=1)
        given = terms[known]
        full = np.log([self.outcomes[place].fullest.bytes / self.outcomes[place].fullest.of for place in known])
        weights = np.linalg.solve(given.T @ given + _RIDGE * np.eye(terms.shape[1]), given.T @ full)
        return np.asarray(np.exp(terms @ weights))


def _asks_more(small: Configuration, large: Configuration) -> bool:
    """Whether ``large`` asks at least as much of the memory as ``small`` in every factor, as far as is known."""
    for name, value in small.items():
        other = large[name]
        if name == ACCUMULATION or value == other:
            continue
        if not _more(name, value, other):
            return False
    return True


def _more(name: str, value: Any, other: Any) -> bool:
    if name == "micro_batch":
        return bool(other > value)
    if name == "recompute":
        return _RECOMPUTED.get(other, -1) > _RECOMPUTED.get(value, 3)
    if name == "offload":
        return {*other} < {*value}
    if name == "sharding":
        return bool(value) and not other
    if name == "config.memory_proportions":
        length = max(len(value), len(other))
        pairs = zip(_long(value, length), _long(other, length))
        return all(before <= after for before, after in pairs)
    return False


def _long(values: Any, length: int) -> list[Any]:
    return [values[min(number, len(values) - 1)] for number in range(length)]


def check_installed() -> None:
    """Raise :class:`TuningError` without Optuna."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise TuningError("a tuning needs Optuna: pip install 'ipuperf[tune]'") from error


def _study(seed: int, starts: int) -> Any:
    """A study of Optuna's whose sampler (TPE) draws from ``seed`` alone."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed,
            n_startup_trials=starts,
            multivariate=True,
            constraints_func=lambda trial: (trial.user_attrs.get(_OVER, 0.0),),
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=sampler)
