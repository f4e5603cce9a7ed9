"""About what a configuration takes, from the probes (:mod:`.probes`) and the outcomes that are known.

An estimate says which configuration to look at next. It rules nothing out and no figure of an answer is one unless it
says so. A *forecast* sums what the probes say over the units of each IPU and lets the schedule run with it. A Gaussian
process learns how far forecasts are off: by a common factor, and by factors that are the more alike the more two
configurations have in common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ipuperf.schedules import timetable_of

from .bounds import Bounds, StageCost
from .probes import schedule_of
from .space import ACCUMULATION, TuningSpace

_COMMON, _SHARED, _OWN, _NOISE = 0.15, 0.05, 0.05, 0.002
"""By how much the logarithm of a figure is off its forecast (standard deviations): in common, by what single factors
share, by what nearly all share, and by itself. :data:`_UNKNOWN`: how many times that where there is no forecast."""
_UNKNOWN = 10.0
_PRIOR = 3.0
"""How many outcomes those standard deviations count for when outcomes say that they are too large or too small."""
_TOGETHER = 4
"""The power of the share of common factors that :data:`_OWN` falls with."""


@dataclass(frozen=True)
class Forecast:
    """Seconds of a weight update and bytes of the fullest tile, about; NaN: nothing is known."""

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
    seconds = _scheduled(configuration, cycles, count) + max(sum(u.update for u in stage.units) for stage in stages)
    return Forecast(chip.seconds(seconds), max(_bytes(stage, configuration, chip.tiles) for stage in stages))


def _cycles(stage: StageCost, configuration: Mapping[str, Any]) -> float:
    """Of a micro-batch. Forwards of all stages are copied at once, and so are backwards."""
    again = stage.again or (configuration.get("recompute", "none") != "none" and not any(stage.flows))
    own = sum(unit.local + again * unit.local_again for unit in stage.units)
    comes, back, goes, brought = stage.flows
    return own + max(comes, goes) + max(back, brought)


def _bytes(stage: StageCost, configuration: Mapping[str, Any], tiles: int) -> float:
    """Of the fullest tile. Where no micro-batch waits, its activations are there all the same, but for one unit whose
    they are in ``rest``."""
    units = stage.units
    fixed = stage.state + sum(unit.variables + unit.accumulators for unit in units)
    stash = [unit.stash for unit in units]
    if configuration.get("recompute") == "standard":
        stash = stash[:1]
    waiting = stage.depth * sum(stash) if stage.depth else sum(stash) - max(stash)
    return (fixed + waiting) / tiles + max(unit.rest for unit in units)


def _scheduled(configuration: Mapping[str, Any], cycles: Sequence[float], count: int) -> float:
    """Cycles of ``count`` micro-batches under the schedule, in which every step takes as long as its longest IPU."""
    stages, again = len(cycles), configuration.get("recompute", "none") != "none"
    if stages == 1:
        return cycles[0] * count
    few, more = 4 * stages, 6 * stages
    name = schedule_of(configuration)
    taken = [
        float((_cells(name, stages, number, again) * np.asarray(cycles)).max(axis=1).sum()) for number in (few, more)
    ]
    return taken[0] + (count - few) * (taken[1] - taken[0]) / (more - few)


@cache
def _cells(name: str, stages: int, count: int, again: bool) -> np.ndarray:
    """``float64[steps, IPUs]``: what share of its micro-batch an IPU computes in each step; two thirds are backward."""
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
        self._told: dict[int, tuple[float, float]] = {}

    def expect(self, place: int, expected: Forecast) -> None:
        """The forecast of a configuration."""
        if expected.seconds > 0:
            self._forecasts[place] = math.log(expected.seconds), math.log(expected.bytes)

    def tell(self, place: int, seconds: float | None, size: int) -> None:
        """What was found out."""
        self._told[place] = (math.log(seconds) if seconds else math.nan, math.log(size) if size else math.nan)

    @property
    def known(self) -> bool:
        """Whether there is any forecast."""
        return not bool(np.isnan(self._forecasts[:, 0]).all())

    def seconds(self, pending: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Of all configurations the mean of the logarithm of the seconds, and its standard deviation. ``pending``
        are under way; as long as nothing is known of them they are what they are expected to be."""
        return self._about(0, pending)

    def bytes(self, pending: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
        """The same of the bytes of the fullest tile."""
        return self._about(1, pending)

    def _about(self, column: int, pending: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The mean and the standard deviation of the logarithm of a figure."""
        known = [place for place, told in self._told.items() if not math.isnan(told[column])]
        base, trust = self._base(column, known)
        own = trust * self._alike(np.array([0]), np.array([0]))[0, 0]
        waiting = [place for place in pending if place not in known]
        mean, scale = base, 1.0
        if known:
            off = np.array([self._told[place][column] - base[place] for place in known])
            inverse, across = self._solved(known, trust)
            mean = base + across @ (inverse @ off)
            scale = (_PRIOR + float(off @ inverse @ off)) / (_PRIOR + len(known))
        if waiting:
            inverse, across = self._solved([*known, *waiting], trust)
        if known or waiting:
            own = own - np.einsum("ij,jk,ik->i", across, inverse, across)
        return mean, np.sqrt(scale * np.maximum(own, _NOISE**2))

    def _base(self, column: int, known: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """What is expected before anything is learnt, and how many times the variance of a forecast it has."""
        forecasts = self._forecasts[:, column]
        lacking = np.isnan(forecasts)
        usual = 0.0
        if not lacking.all():
            usual = float(np.median(forecasts[~lacking]))
        elif known:
            usual = float(np.mean([self._told[place][column] for place in known]))
        return np.where(lacking, usual, forecasts), np.where(lacking, _UNKNOWN**2, 1.0)

    def _solved(self, places: Sequence[int], trust: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The inverse covariance of what some configurations are off, and its covariance with all others'."""
        chosen = np.array(places, dtype=np.int64)
        far = np.sqrt(trust)
        among = self._alike(chosen, chosen) * np.outer(far[chosen], far[chosen])
        inverse = np.linalg.inv(among + np.diag(_NOISE**2 * trust[chosen]))
        return inverse, self._alike(chosen) * np.outer(far, far[chosen])

    def _alike(self, places: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
        """``float64[others, places]``: how much of what they are off two configurations have in common; all are the
        others unless these are said."""
        rows, chosen = self._levels if others is None else self._levels[others], self._levels[places]
        alike = np.zeros((len(rows), len(chosen)))
        for column in range(rows.shape[1]):
            alike += rows[:, [column]] == chosen[:, column]
        share = alike / max(1, rows.shape[1])
        return np.asarray(_COMMON**2 + _SHARED**2 * share + _OWN**2 * share**_TOGETHER)


def worth(
    seconds: tuple[np.ndarray, np.ndarray], size: tuple[np.ndarray, np.ndarray], best: float, limit: int
) -> np.ndarray:
    """By how much each configuration is expected to be faster than ``best`` seconds (in logarithms; infinity: than the
    slowest), times how likely it is that it fits ``limit`` bytes of a tile."""
    mean, spread = seconds
    target = math.log(best) if math.isfinite(best) else float(mean.max())
    z = (target - mean) / spread
    gain = spread * (z * _normal(z) + np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi))
    return np.asarray(np.maximum(gain, 0.0) * _normal((math.log(limit) - size[0]) / size[1]))


def _normal(z: np.ndarray) -> np.ndarray:
    """The normal distribution function."""
    return np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in z])
