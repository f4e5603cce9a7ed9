"""Estimates of the time and memory of configurations, from the probes (:mod:`.probes`) and from known outcomes.

An estimate says which configuration to look at next. It rules nothing out, and a figure of an answer is an estimate
only if it says so. A *forecast* adds up the probes' figures over the units of each IPU and lays them out by the
schedule. A Gaussian process learns how far forecasts are off: by a factor common to all, and by factors of single
configurations. The more two configurations have in common, the more alike these factors are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ipuperf.pipelines.schedules import timetable_of

from .bounds import Bounds, StageCost
from .probes import schedule_of
from .space import ACCUMULATION, TuningSpace

_COMMON, _SHARED, _OWN, _NOISE = 0.15, 0.05, 0.05, 0.002
"""Standard deviations of the error of a forecast, in logarithms: the part that all configurations share, the part that
grows with each shared factor, the part that only nearly equal configurations share, and the noise of one figure."""
_UNKNOWN = 10.0
"""How many times larger those standard deviations are where there is no forecast."""
_PRIOR = 3.0
"""How many outcomes the assumed standard deviations weigh as much as, when outcomes say what they should be."""
_TOGETHER = 4
"""The power with which :data:`_OWN` falls as the share of common factors falls."""


@dataclass(frozen=True)
class Forecast:
    """About how many seconds a weight update takes, and the bytes of the fullest tile; NaN: nothing is known."""

    seconds: float = math.nan
    bytes: float = math.nan


def forecast(bounds: Bounds, configuration: Mapping[str, Any]) -> Forecast:
    """The forecast of a configuration."""
    stages = bounds.stages(configuration)
    if not stages:
        return Forecast()
    chip = bounds.machine.chip
    cycles = [_cycles(stage, configuration) for stage in stages]
    count = int(configuration.get(ACCUMULATION, 1))
    # The weight update comes once, after all micro-batches, and lasts as long as that of the slowest stage.
    seconds = _scheduled(configuration, cycles, count) + max(sum(u.update for u in stage.units) for stage in stages)
    return Forecast(chip.seconds(seconds), max(_bytes(stage, configuration, chip.tiles) for stage in stages))


def _cycles(stage: StageCost, configuration: Mapping[str, Any]) -> float:
    """Cycles of a stage for one micro-batch."""
    again = stage.again or (configuration.get("recompute", "none") != "none" and not any(stage.flows))
    compute_cycles = sum(unit.local + again * unit.local_again for unit in stage.units)
    activations_in, gradients_out, activations_out, gradients_in = stage.flows
    # All stages copy activations at the same time, and gradients at the same time: what comes and what goes overlap.
    return compute_cycles + max(activations_in, activations_out) + max(gradients_out, gradients_in)


def _bytes(stage: StageCost, configuration: Mapping[str, Any], tiles: int) -> float:
    """Bytes of the fullest tile of a stage, with variables and stashes spread evenly over all tiles."""
    units = stage.units
    fixed = stage.state + sum(unit.variables + unit.accumulators for unit in units)
    # Recomputation keeps the input of the first unit alone.
    stash = [unit.stash for unit in units]
    if configuration.get("recompute") == "standard":
        stash = stash[:1]
    # Without a stash depth the activations of the current micro-batch exist all the same. Those of one unit are
    # left out, because its ``rest`` already counts them.
    waiting = stage.depth * sum(stash) if stage.depth else sum(stash) - max(stash)
    return (fixed + waiting) / tiles + max(unit.rest for unit in units)


def _scheduled(configuration: Mapping[str, Any], cycles: Sequence[float], count: int) -> float:
    """Cycles of ``count`` micro-batches under the schedule. Each step takes as long as its slowest IPU."""
    stages, again = len(cycles), configuration.get("recompute", "none") != "none"
    if stages == 1:
        return cycles[0] * count
    # Every further micro-batch of the steady part takes the same time. So two short timetables give its length, and
    # a straight line through both gives any count without a timetable of that length.
    few, more = 4 * stages, 6 * stages
    name = schedule_of(configuration)
    cycles_of_both = [
        float((_cells(name, stages, number, again) * np.asarray(cycles)).max(axis=1).sum()) for number in (few, more)
    ]
    return cycles_of_both[0] + (count - few) * (cycles_of_both[1] - cycles_of_both[0]) / (more - few)


@cache
def _cells(name: str, stages: int, count: int, again: bool) -> np.ndarray:
    """``float64[steps, IPUs]``: the share of a micro-batch's work that an IPU does in each step.

    A backward pass counts as two thirds of a micro-batch. Schedules with cells for gradients of weights (``W``)
    divide those in two.
    """
    table = timetable_of(name, stages, count, recompute=again)
    shares = {"F": 1 / 3, "B": 1 / 3, "W": 1 / 3} if table.last_kind(0) == "W" else {"F": 1 / 3, "B": 2 / 3}
    return np.array([[sum(shares.get(cell.kind, 0.0) for cell in cells) for cells in step] for step in table.steps])


class Estimates:
    """Estimates of all configurations of a space, in logarithms.

    Args:
        space: what is searched.
    """

    def __init__(self, space: TuningSpace) -> None:
        self._levels = space.levels
        self._forecasts = np.full((len(space.configurations), 2), math.nan)
        self._outcomes: dict[int, tuple[float, float]] = {}

    def expect(self, place: int, expected: Forecast) -> None:
        """Take the forecast of the configuration at index ``place``."""
        if expected.seconds > 0:
            self._forecasts[place] = math.log(expected.seconds), math.log(expected.bytes)

    def tell(self, place: int, seconds: float | None, tile_bytes: int) -> None:
        """Take the outcome of the configuration at index ``place``; ``None`` and 0 stand for an unknown figure."""
        self._outcomes[place] = (
            math.log(seconds) if seconds else math.nan,
            math.log(tile_bytes) if tile_bytes else math.nan,
        )

    @property
    def known(self) -> bool:
        """Whether there is any forecast."""
        return not bool(np.isnan(self._forecasts[:, 0]).all())

    def seconds(self, pending: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the logarithm of the seconds, for all configurations.

        The configurations at ``pending`` are being evaluated. Until their outcomes are known, they count as if they
        took what is expected of them.
        """
        return self._about(0, pending)

    def bytes(self, pending: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the logarithm of the bytes of the fullest tile, for all configurations."""
        return self._about(1, pending)

    def _about(self, column: int, pending: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the logarithm of a figure: column 0 is seconds, column 1 is bytes."""
        known = [place for place, outcome in self._outcomes.items() if not math.isnan(outcome[column])]
        base, trust = self._base(column, known)
        variance = trust * self._alike(np.array([0]), np.array([0]))[0, 0]
        unfinished = [place for place in pending if place not in known]
        mean, scale = base, 1.0
        if known:
            errors = np.array([self._outcomes[place][column] - base[place] for place in known])
            inverse, across = self._solved(known, trust)
            mean = base + across @ (inverse @ errors)
            # The errors seen so far, measured in assumed standard deviations, widen or narrow the assumed ones.
            scale = (_PRIOR + float(errors @ inverse @ errors)) / (_PRIOR + len(known))
        # A pending configuration leaves the mean as it is but makes those like it less uncertain.
        if unfinished:
            inverse, across = self._solved([*known, *unfinished], trust)
        if known or unfinished:
            variance = variance - np.einsum("ij,jk,ik->i", across, inverse, across)
        return mean, np.sqrt(scale * np.maximum(variance, _NOISE**2))

    def _base(self, column: int, known: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The figure expected before anything is learnt, and the factor on the variance of each.

        Without a forecast of its own, a configuration gets the median forecast, or else the mean of the outcomes.
        """
        forecasts = self._forecasts[:, column]
        lacking = np.isnan(forecasts)
        default = 0.0
        if not lacking.all():
            default = float(np.median(forecasts[~lacking]))
        elif known:
            default = float(np.mean([self._outcomes[place][column] for place in known]))
        return np.where(lacking, default, forecasts), np.where(lacking, _UNKNOWN**2, 1.0)

    def _solved(self, places: Sequence[int], trust: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The inverse covariance of the errors of some configurations, and their covariance with those of all."""
        chosen = np.array(places, dtype=np.int64)
        deviation_factors = np.sqrt(trust)
        covariance = self._alike(chosen, chosen) * np.outer(deviation_factors[chosen], deviation_factors[chosen])
        inverse = np.linalg.inv(covariance + np.diag(_NOISE**2 * trust[chosen]))
        return inverse, self._alike(chosen) * np.outer(deviation_factors, deviation_factors[chosen])

    def _alike(self, places: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
        """``float64[others, places]``: the covariance of two configurations' errors (``others``: all by default)."""
        rows, chosen = self._levels if others is None else self._levels[others], self._levels[places]
        shared_factors = np.zeros((len(rows), len(chosen)))
        for column in range(rows.shape[1]):
            shared_factors += rows[:, [column]] == chosen[:, column]
        shared_fraction = shared_factors / max(1, rows.shape[1])
        return np.asarray(_COMMON**2 + _SHARED**2 * shared_fraction + _OWN**2 * shared_fraction**_TOGETHER)


def worth(
    seconds: tuple[np.ndarray, np.ndarray], tile_bytes: tuple[np.ndarray, np.ndarray], best: float, limit: int
) -> np.ndarray:
    """Expected improvement of each configuration over ``best`` seconds, times the probability that it fits a tile.

    Improvements are differences of logarithms. An infinite ``best`` stands for the slowest configuration; ``limit``
    is in bytes.
    """
    mean, spread = seconds
    target = math.log(best) if math.isfinite(best) else float(mean.max())
    normalised = (target - mean) / spread
    gain = spread * (normalised * _normal(normalised) + np.exp(-0.5 * normalised**2) / math.sqrt(2 * math.pi))
    return np.asarray(np.maximum(gain, 0.0) * _normal((math.log(limit) - tile_bytes[0]) / tile_bytes[1]))


def _normal(deviations: np.ndarray) -> np.ndarray:
    """The cumulative distribution function of the standard normal distribution."""
    return np.array([0.5 * math.erfc(-deviation / math.sqrt(2)) for deviation in deviations])
