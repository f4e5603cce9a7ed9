"""The search: forecasts and outcomes say where to look, bounds rule out.

A configuration is *ruled out* when its bound (:mod:`.bounds`) says that it cannot be faster than the best one that is
known, or cannot fit; it could not have won, whatever it takes. Of the others the next is that which is worth most
(:func:`.estimates.worth`). Where no probe says anything Optuna proposes the first ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .bounds import Bounds, LeastCost
from .estimates import Estimates, forecast, worth
from .evaluate import Outcome, Outcomes
from .proposals import Proposals, check_installed
from .space import TuningSpace

_PROPOSED = 3
"""Without forecasts one in so many trials is what Optuna proposes."""
_FAILED = 2.0
"""What fails to be built is taken for so many times too large, so that configurations like it come late."""


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
        estimates: what is expected of the others.

    Raises:
        TuningError: Optuna is missing and needed.
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
        self.estimates = Estimates(self.space)
        self._learnt = False
        self._known = np.zeros(count, dtype=bool)
        self._least = np.zeros(count)
        self._bytes = np.zeros(count, dtype=np.int64)
        if not any(map(self.bounds.covers, self.space.configurations)):
            check_installed()

    def run(self) -> Iterator[Outcome]:
        """Every outcome as it is there; ends when all others are ruled out or no trials are left."""
        if not self._learnt:
            for _ in self.learn():
                pass
        while len(self.outcomes) < self.trials and len(self.open):
            places = self._next(min(self.evaluator.workers.jobs, self.trials - len(self.outcomes)))
            configurations = {place: self.space.configurations[place] for place in places}
            for found in self.evaluator.of(configurations, self.limit):
                self._add(found)
                yield found

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

    def bound(self, place: int) -> LeastCost:
        """What a configuration takes at least."""
        return self.bounds.of(self.space.configurations[place])

    def expected(self, place: int) -> float | None:
        """Seconds that a configuration is estimated to take; None where no probe says anything."""
        return float(math.exp(self.estimates.seconds()[0][place])) if self.estimates.known else None

    # -- what becomes known ----------------------------------------------------------------------------------------

    def learn(self) -> Iterator[int]:
        """Build the probes, and say each time how many are left; then bounds and forecasts of all configurations are
        known. A run begins with it unless it is done."""
        yield from self.bounds.learn(self.space.configurations, self.evaluator.workers)
        self._learnt = True
        for place, configuration in enumerate(self.space.configurations):
            bound = self.bounds.of(configuration)
            self._least[place], self._bytes[place] = bound.seconds, bound.bytes
            if not bound.refused:
                self.estimates.expect(place, forecast(self.bounds, configuration))

    def _add(self, found: Outcome) -> None:
        """Take down an outcome."""
        self.outcomes[found.place] = found
        self._known[found.place] = True
        if found.fits and found.seconds is not None and found.seconds < self.limit:
            self.best = found
        limit = self.bounds.machine.chip.bytes_per_tile
        self.estimates.tell(found.place, found.seconds, int(_FAILED * limit) if found.failure else found.fullest.bytes)
        if self._asks_optuna:
            self._proposals.tell(found)

    # -- where to look ---------------------------------------------------------------------------------------------

    @cached_property
    def _proposals(self) -> Proposals:
        return Proposals(self.space, self.seed)

    @property
    def _asks_optuna(self) -> bool:
        return not self.estimates.known and len(self.outcomes) * _PROPOSED <= self.trials

    def _next(self, count: int) -> list[int]:
        """Up to ``count`` different places that are open: those to begin with, proposed, or worth most."""
        found: list[int] = [place for place in self.first if place not in self.outcomes][:count]
        there = self.open
        while len(found) < count:
            among = np.setdiff1d(there, found)
            if not len(among):
                break
            if self._asks_optuna:
                found.append(self.space.nearest(self._proposals.levels(), among, self._least))
            else:
                found.append(self._worth_most(among, found))
        return found

    def _worth_most(self, among: np.ndarray, pending: list[int]) -> int:
        """Of the places ``among`` the one that is worth most while ``pending`` are under way; where none is worth
        anything the one that needs the least memory."""
        seconds, size = self.estimates.seconds(pending), self.estimates.bytes(pending)
        gains = worth(
            (seconds[0][among], seconds[1][among]), (size[0][among], size[1][among]),
            self.limit, self.bounds.machine.chip.bytes_per_tile,
        )  # fmt: skip
        return int(among[np.lexsort((among, size[0][among], -gains))[0]])
