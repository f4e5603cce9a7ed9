"""The search: forecasts and outcomes say where to look, and bounds rule configurations out.

A configuration is *ruled out* if its bound (:mod:`.bounds`) says that it cannot be faster than the best known one, or
that it cannot fit. Such a configuration could not have won. Of the others the one that is worth most
(:func:`.estimates.worth`) comes next. Without probes, Optuna proposes the first ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec

import numpy as np

from .bounds import Bounds, LeastCost
from .estimates import Estimates, forecast, worth
from .evaluate import Outcome, Outcomes, check_options
from .proposals import Proposals, check_installed
from .space import TuningSpace

_PROPOSED = 3
"""Without forecasts, Optuna proposes the first of the trials: one in so many."""
_FAILED = 2.0
"""A configuration that cannot be built counts as so many times too large, so that others like it come late."""


@dataclass
class TuningSearch:
    """A search and its outcomes.

    Args:
        space: the configurations that are searched.
        bounds: bounds of these configurations.
        evaluator: gives the outcomes.
        trials: how many configurations are lowered at most.
        seed: the seed of Optuna's sampler.
        first: places of the configurations to begin with.

    Attributes:
        outcomes: the known outcomes by place.
        best: the fastest outcome that fits; None: none so far.
        estimates: the estimates of all configurations.

    Raises:
        TuningError: scikit-learn is missing, or Optuna where it is needed.
    """

    space: TuningSpace
    bounds: Bounds
    evaluator: Outcomes
    trials: int
    seed: int = 0
    start_places: tuple[int, ...] = ()
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    best: Outcome | None = None

    def __post_init__(self) -> None:
        count = len(self.space.configurations)
        self.estimates = Estimates(self.space)
        self._learnt = False
        self._known = np.zeros(count, dtype=bool)
        self._least = np.zeros(count)
        self._bytes = np.zeros(count, dtype=np.int64)
        check_installed("sklearn", "a tuning needs scikit-learn")
        if not any(map(self.bounds.covers, self.space.configurations)):
            # A mistyped option shows before the user is asked to install something for it.
            if find_spec("optuna") is None:
                check_options(self.space.sweep, self.space.configurations[0])
            check_installed("optuna", "a tuning without probes needs Optuna")

    def run(self) -> Iterator[Outcome]:
        """Yield each outcome as soon as it is known, until all others are ruled out or no trials are left."""
        if not self._learnt:
            for _ in self.learn():
                pass
        while len(self.outcomes) < self.trials and len(self.open):
            # As many are chosen at a time as the workers evaluate at a time.
            places = self._next(min(self.evaluator.workers.jobs, self.trials - len(self.outcomes)))
            configurations = {place: self.space.configurations[place] for place in places}
            for outcome in self.evaluator.of(configurations, self.limit):
                self._add(outcome)
                yield outcome

    # -- what is left ----------------------------------------------------------------------------------------------

    @property
    def limit(self) -> float:
        """Seconds of the best outcome; infinity without one."""
        return math.inf if self.best is None or self.best.seconds is None else self.best.seconds

    @property
    def ruled_out(self) -> np.ndarray:
        """``bool[configurations]``: whether each cannot be faster than the best, or cannot fit."""
        return (self._least >= self.limit) | (self._bytes > self.bounds.machine.chip.bytes_per_tile)

    @property
    def least_bytes(self) -> np.ndarray:
        """Lower bounds of the bytes of the fullest tile of each configuration; 0 if nothing is known."""
        return self._bytes

    @property
    def open(self) -> np.ndarray:
        """The places without an outcome that are not ruled out."""
        return np.flatnonzero(~self._known & ~self.ruled_out)

    def bound(self, place: int) -> LeastCost:
        """The bound of a configuration."""
        return self.bounds.of(self.space.configurations[place])

    def expected(self, place: int) -> float | None:
        """The estimated seconds of a configuration; None without forecasts."""
        return float(math.exp(self.estimates.seconds()[0][place])) if self.estimates.known else None

    # -- what becomes known ----------------------------------------------------------------------------------------

    def learn(self) -> Iterator[int]:
        """Build the probes and yield each time how many are left; then compute all bounds and forecasts.

        :meth:`run` begins with this unless it is done.
        """
        yield from self.bounds.learn(self.space.configurations, self.evaluator.workers)
        self._learnt = True
        for place, configuration in enumerate(self.space.configurations):
            bound = self.bounds.of(configuration)
            self._least[place], self._bytes[place] = bound.seconds, bound.bytes
            if not bound.refused:
                self.estimates.expect(place, forecast(self.bounds, configuration))

    def _add(self, outcome: Outcome) -> None:
        """Record an outcome."""
        self.outcomes[outcome.place] = outcome
        self._known[outcome.place] = True
        if outcome.fits and outcome.seconds is not None and outcome.seconds < self.limit:
            self.best = outcome
        limit = self.bounds.machine.chip.bytes_per_tile
        self.estimates.tell(
            outcome.place, outcome.seconds, int(_FAILED * limit) if outcome.failure else outcome.fullest.bytes
        )
        if self._asks_optuna:
            self._proposals.tell(outcome)

    # -- where to look ---------------------------------------------------------------------------------------------

    @cached_property
    def _proposals(self) -> Proposals:
        return Proposals(self.space, self.seed)

    @property
    def _asks_optuna(self) -> bool:
        return not self.estimates.known and len(self.outcomes) * _PROPOSED <= self.trials

    def _next(self, count: int) -> list[int]:
        """Up to ``count`` different open places: those to begin with, then those proposed or worth most."""
        places: list[int] = [place for place in self.start_places if place not in self.outcomes][:count]
        open_places = self.open
        while len(places) < count:
            among = np.setdiff1d(open_places, places)
            if not len(among):
                break
            if self._asks_optuna:
                places.append(self.space.nearest(self._proposals.levels(), among, self._least))
            else:
                places.append(self._worth_most(among, places))
        return places

    def _worth_most(self, among: np.ndarray, pending: list[int]) -> int:
        """The place of ``among`` that is worth most while those of ``pending`` are being evaluated.

        If none is worth anything, it is the one that needs the least memory.
        """
        seconds, size = self.estimates.seconds(pending), self.estimates.bytes(pending)
        gains = worth(
            (seconds[0][among], seconds[1][among]),
            (size[0][among], size[1][among]),
            self.limit,
            self.bounds.machine.chip.bytes_per_tile,
        )
        # Ties end with the place, so that the same tuning always makes the same choices.
        return int(among[np.lexsort((among, size[0][among], -gains))[0]])
