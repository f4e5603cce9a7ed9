"""Estimates of the time and memory of configurations, from the probes (:mod:`.probes`) and from known outcomes.

An estimate says which configuration to look at next. It rules nothing out, and a figure of an answer is an estimate
only if it says so. A *forecast* adds up the probes' figures over the units of each IPU and lays them out by the
schedule. A Gaussian process of scikit-learn learns how far forecasts are off.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.pipelines.schedules import timetable_of

from .bounds import Bounds, StageCost
from .probes import schedule_of
from .space import ACCUMULATION, TuningSpace

if TYPE_CHECKING:
    from sklearn.gaussian_process import GaussianProcessRegressor

_ERROR = 0.1
"""The standard deviation, in logarithms, that errors of forecasts are taken to have until outcomes say more."""
_FEWEST = 3
"""The number of outcomes from which the deviations are fitted to them. Fewer fit any."""
_EXACT = 1e-6
"""The variance of a simulated figure, in logarithms. It has no noise, but the covariance must be invertible."""


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
        levels = space.levels
        # One column for each value of each factor: configurations are the farther apart the more factors differ.
        alike = [levels[:, [column]] == np.unique(levels[:, column]) for column in range(levels.shape[1])]
        self._features = np.hstack([np.ones((len(levels), 1)), *alike])
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
        figures = np.array([self._outcomes[place][column] for place in known])
        base = self._base(column, figures)
        learnt = self._process(known, figures - base[known])
        errors, deviations = learnt.predict(self._features, return_std=True)
        unfinished = [place for place in pending if place not in known]
        if unfinished:
            # They leave the mean as it is, but make configurations like them less uncertain.
            both = [*known, *unfinished]
            waiting = self._process(both, np.zeros(len(both)), learnt)
            deviations = waiting.predict(self._features, return_std=True)[1]
        return base + errors, deviations

    def _base(self, column: int, figures: np.ndarray) -> np.ndarray:
        """The figure expected before anything is learnt.

        Without a forecast of its own, a configuration gets the median forecast, or else the mean of the outcomes.
        """
        forecasts = self._forecasts[:, column]
        lacking = np.isnan(forecasts)
        if not lacking.all():
            return np.where(lacking, np.median(forecasts[~lacking]), forecasts)
        return np.full(len(forecasts), figures.mean() if len(figures) else 0.0)

    def _process(
        self, places: Sequence[int], errors: np.ndarray, fitted: GaussianProcessRegressor | None = None
    ) -> GaussianProcessRegressor:
        """A Gaussian process that knows the errors of the forecasts at some places.

        One part of an error is common to all configurations. The other part is the more alike the more factors two
        configurations share. How large both are is fitted to the errors, or taken from the process ``fitted``.
        """
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel

        kernel = ConstantKernel(_ERROR**2) + ConstantKernel(_ERROR**2) * RBF()
        if fitted is not None:
            kernel = getattr(fitted, "kernel_", fitted.kernel)
        is_fitted_here = fitted is None and len(places) >= _FEWEST
        process = GaussianProcessRegressor(kernel, alpha=_EXACT, optimizer="fmin_l_bfgs_b" if is_fitted_here else None)
        if len(places):
            with warnings.catch_warnings():
                # A deviation at a bound is no fault: errors may all be the same.
                warnings.simplefilter("ignore", ConvergenceWarning)
                process.fit(self._features[places], errors)
        return process


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
