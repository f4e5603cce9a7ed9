"""Fits figures of a machine to measured steps.

Unknown are the logarithms of the factors by which the figures are multiplied. A residual is the logarithm of predicted
over measured, over the noise of a measurement. Each figure has one more: its own logarithm over the width of its prior
(:data:`PRIORS`). ``scipy.optimize.least_squares`` finds the least sum of squares, so with Gaussian noise and priors the
most probable figures. Derivatives are central differences: figures that are whole numbers are rounded, so a figure is
moved by :data:`_STEP` or until it really moves, and the difference is divided by what it moved.

After the fit, the covariance of the logarithms follows from the derivatives there. It assumes that predictions are
straight within a deviation. Where the residuals are larger than the noise, the noise is taken to be as large as they
are. The interval of a prediction after the fit follows from both: what the figures leave open, and the noise. Unlike
:mod:`ipuperf.report.intervals` it knows nothing of other programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipuperf.base.kinds import checked
from ipuperf.base.near_names import did_you_mean, instead_of
from ipuperf.base.requirements import pip_install
from ipuperf.machine import Machine, load_machine, load_scaled
from ipuperf.machine.figures import UNITS, Figure
from ipuperf.tools.errors import CalibrationError
from ipuperf.tools.validation.sensitivity import KINDS, moves_bytes_only

from .measurements import Measurement, read_measurements
from .programs import NamedPrograms, OnMachine, predicted

PRIORS: Mapping[str, float] = MappingProxyType({"measured": 0.03, "calibrated": 0.15, "assumed": 0.4})
"""Relative standard deviation of a figure before the fit, by its kind. A figure of a data sheet is not fitted."""

NOISE = 0.02
"""Relative standard deviation of a measurement, unless stated."""

CORRELATED = 0.9
"""Correlation above which two figures are not told apart."""

NARROWER = 0.9
"""Share of its prior's width from which the fit says next to nothing of a figure."""

LARGEST_FACTOR = 10.0
"""A figure stays between one over this factor and the factor times its value."""

_NINE_OF_TEN = 1.6449
"""Standard deviations on each side that hold nine tenths of a normal distribution."""

_STEP = 0.05
_WIDEST = 1.0
"""Logarithms of the factors with which derivatives are taken, the usual and the largest one."""
_TOLERANCE = 1e-4
_MOST_STEPS = 40


@dataclass(frozen=True)
class Fitted:
    """A figure before and after.

    Attributes:
        figure, kind, unit, source: as in the machine's file.
        before, after: its value.
        prior, deviation: relative standard deviation before and after the fit.
    """

    figure: str
    kind: str
    unit: str
    source: str
    before: float
    after: float
    prior: float
    deviation: float

    @property
    def moved(self) -> float:
        """``after / before - 1``."""
        return self.after / self.before - 1

    @property
    def told(self) -> bool:
        """Whether the measurements say something of it: the fit is clearly narrower than the prior."""
        return self.deviation < NARROWER * self.prior


@dataclass(frozen=True)
class Pair:
    """Two figures that the measurements cannot tell apart."""

    first: str
    second: str
    correlation: float


@dataclass(frozen=True)
class Fit:
    """A row of the measurements with its predictions, in the unit of the measurement.

    Attributes:
        interval: between these values a new measurement of the program lies nine times of ten, after the fit.
    """

    measurement: Measurement
    before: float
    after: float
    interval: tuple[float, float]

    @property
    def errors(self) -> tuple[float, float]:
        """``predicted / measured - 1``, before and after."""
        return self.before / self.measurement.value - 1, self.after / self.measurement.value - 1


@dataclass(frozen=True)
class Calibration:
    """What became of the figures of a machine.

    Attributes:
        machine: preset or absolute path of its file.
        file: the measurements.
        figures, pairs, rows: the figures, those that are not told apart, and the measurements.
        noise: relative standard deviation of a measurement, as stated.
        spread: the residuals over that noise, at least 1.
    """

    machine: str
    file: str
    figures: tuple[Fitted, ...]
    pairs: tuple[Pair, ...]
    rows: tuple[Fit, ...]
    noise: float
    spread: float

    def as_dict(self) -> dict[str, Any]:
        """The calibration as JSON."""
        figures = [{**asdict(known), "moved": known.moved, "told": known.told} for known in self.figures]
        rows = [
            {"program": row.measurement.program, "quantity": row.measurement.quantity, "unit": row.measurement.unit,
             "measured": row.measurement.value, "before": row.before, "after": row.after,
             "error_before": row.errors[0], "error_after": row.errors[1], "interval": list(row.interval)}
            for row in self.rows
        ]  # fmt: skip
        return {"machine": self.machine, "measurements": self.file, "noise": self.noise, "spread": self.spread,
                "figures": figures, "not_told_apart": [asdict(pair) for pair in self.pairs], "rows": rows}  # fmt: skip


@checked()
def calibrate(
    file: str | Path,
    programs: Sequence[Path] = (),
    *,
    machine: str | None = None,
    figures: Sequence[str] = (),
    noise: float = NOISE,
    progress: Callable[[], None] = lambda: None,
) -> Calibration:
    """Fit figures of a machine to the measured steps of a file. No file is written.

    Args:
        file: see :mod:`.measurements`.
        programs: scripts and files of cases that its rows name, see :mod:`.programs`.
        machine: preset or machine file; None: the one that all rows name.
        figures: dotted keys; by default all that are assumed or calibrated and that change a prediction.
        noise: relative standard deviation of a measurement.
        progress: called for each machine on which all programs are simulated; their number is not known beforehand.

    Raises:
        CalibrationError: an input is wrong, or SciPy is missing. Errors of machines and of case files pass through.
    """
    _need_scipy()
    if not 0 < noise < 1:
        raise CalibrationError(f"noise {noise!r}, allowed: above 0, below 1 (0.02 is two percent)")
    measurements = read_measurements(file)
    name = machine_of(measurements, machine)
    there = load_machine(name)
    keys = _keys(there, name, figures)
    named = NamedPrograms(Path(file), programs)
    simulated: dict[str, OnMachine] = {}
    for measurement in measurements:
        # Rows that measure one program share it.
        if measurement.program not in simulated:
            simulated[measurement.program] = named.on_machines(measurement, name)
    named.check_used()
    predictions = _Predictions(name, there, keys, measurements, simulated, progress)
    if not figures:
        predictions = predictions.with_effect()
    return _fitted(predictions, str(file), noise)


def machine_of(measurements: Sequence[Measurement], machine: str | None) -> str:
    """Return the machine to fit, as a preset's name or an absolute path.

    Raises:
        CalibrationError: none is named, or rows name another one.
    """
    for measurement in measurements:
        machine = machine or measurement.machine
        if measurement.machine not in ("", machine):
            raise CalibrationError(
                f"{measurement.where}: machine: {measurement.machine!r}, but {machine!r} is fitted; one file of "
                "measurements is about one machine"
            )
    if not machine:
        raise CalibrationError("no machine: name one with --machine, or in a column 'machine'")
    return str(Path(machine).resolve()) if machine.endswith(".toml") else machine


def _need_scipy() -> None:
    try:
        import scipy.optimize  # noqa: F401
    except ImportError as error:
        raise CalibrationError(f"the fit needs SciPy: {pip_install('calibrate')}") from error


def _keys(machine: Machine, name: str, figures: Sequence[str]) -> list[str]:
    """Return the figures to fit: the named ones, or all that may be."""
    if not figures:
        return [key for key, figure in machine.figures.items() if figure.kind in KINDS and _problem(key, figure) == ""]
    keys = list(dict.fromkeys(figures))
    fitted = [key for key, figure in machine.figures.items() if _problem(key, figure) == ""]
    for key in keys:
        if key not in machine.figures:
            raise CalibrationError(f"figure {key!r}: {name} has no such figure{instead_of(key, fitted)}")
        problem = _problem(key, machine.figures[key])
        if problem:
            raise CalibrationError(f"figure {key!r}: {problem}{did_you_mean(key, fitted)}")
    return keys


def _problem(key: str, figure: Figure) -> str:
    """Say why a figure cannot be fitted; empty if it can."""
    if figure.kind not in PRIORS:
        return f"{figure.kind}, which is fixed, allowed: figures of the kinds {', '.join(PRIORS)}"
    if key.startswith("system."):
        return "the composition of a system is fixed"
    if moves_bytes_only(key):
        return "changes memory alone, and time is measured"
    return "" if figure.value > 0 else f"{figure.value} {figure.unit} cannot be multiplied"


class _Predictions:
    """Logarithms of the predictions of all measurements, as a function of the logarithms of factors of figures."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        keys: Sequence[str],
        measurements: Sequence[Measurement],
        programs: Mapping[str, OnMachine],
        progress: Callable[[], None],
    ) -> None:
        self.name, self.machine, self.keys = name, machine, tuple(keys)
        # All that :meth:`at` has simulated, by the values of all figures that ever moved.
        self._every = self.keys
        self.measurements, self.programs, self.progress = measurements, programs, progress
        self.figures = [machine.figures[key] for key in keys]
        # A derivative asks for each of its two machines twice.
        self._loaded = lru_cache(maxsize=4)(lambda factors: load_scaled(name, dict(factors)))
        self._known: dict[tuple[float, ...], NDArray[np.float64]] = {}

    @property
    def start(self) -> NDArray[np.float64]:
        """No figure moved."""
        return np.zeros(len(self.keys))

    @property
    def largest(self) -> NDArray[np.float64]:
        """Logarithms of the largest factors. Ratios stay at most 1."""
        most = [
            min(LARGEST_FACTOR, float(1 / UNITS["ratio"][known.unit]) / known.value)
            if known.unit in UNITS["ratio"]
            else LARGEST_FACTOR
            for known in self.figures
        ]
        # A ratio of 1 may only shrink; the optimiser wants room on both sides.
        return np.maximum(np.log(most), 1e-6)

    def values(self, logs: NDArray[np.float64]) -> list[float]:
        """The values of the figures, rounded as the machine has them."""
        figures = self._scaled(logs).figures
        return [figures[key].value for key in self.keys]

    def at(self, logs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithms of the predictions, in base units."""
        machine = self._scaled(logs)
        known = tuple(machine.figures[key].value for key in self._every)
        if known not in self._known:
            values = {program: on(machine) for program, on in self.programs.items()}
            rows = [math.log(predicted(row, values[row.program])) for row in self.measurements]
            self._known[known] = np.array(rows)
            self.progress()
        return self._known[known]

    def derivatives(self, logs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the derivative of each prediction (row) by each figure (column)."""
        columns = [self._derivative(logs, number) for number in range(len(self.keys))]
        return np.stack(columns, axis=1) if columns else np.empty((len(self.measurements), 0))

    def _derivative(self, logs: NDArray[np.float64], number: int) -> NDArray[np.float64]:
        step, most = _STEP, self.largest[number]
        while step <= _WIDEST:
            low, high = logs.copy(), logs.copy()
            low[number], high[number] = logs[number] - step, min(logs[number] + step, most)
            moved = math.log(self.values(high)[number] / self.values(low)[number])
            # A whole number moves only when the step is large enough.
            if moved > step / 2:
                difference: NDArray[np.float64] = (self.at(high) - self.at(low)) / moved
                return difference
            step *= 2
        return np.zeros(len(self.measurements))

    def with_effect(self) -> _Predictions:
        """The same for the figures that change a prediction.

        Raises:
            CalibrationError: there is none.
        """
        moves = np.abs(self.derivatives(self.start)).max(axis=0, initial=0.0) > 0
        keys = [key for key, is_moving in zip(self.keys, moves) if is_moving]
        if not keys:
            raise CalibrationError(
                f"{self.name}: no figure that is assumed or calibrated changes one of these programs"
            )
        narrower = copy(self)
        narrower.keys, narrower.figures = tuple(keys), [self.machine.figures[key] for key in keys]
        return narrower

    def _scaled(self, logs: NDArray[np.float64]) -> Machine:
        return self._loaded(tuple((key, math.exp(log)) for key, log in zip(self.keys, logs)))


def _fitted(predictions: _Predictions, file: str, noise: float) -> Calibration:
    from scipy.optimize import least_squares

    priors = np.array([PRIORS[known.kind] for known in predictions.figures])
    measured = np.log([row.base for row in predictions.measurements])
    best = least_squares(
        lambda logs: np.concatenate([(predictions.at(logs) - measured) / noise, logs / priors]),
        predictions.start,
        jac=lambda logs: np.concatenate([predictions.derivatives(logs) / noise, np.diag(1 / priors)]),
        bounds=(np.full(len(priors), -math.log(LARGEST_FACTOR)), predictions.largest),
        x_scale=priors,
        xtol=_TOLERANCE,
        ftol=_TOLERANCE,
        max_nfev=_MOST_STEPS,
    ).x
    residuals = (predictions.at(best) - measured) / noise
    spread = max(1.0, float(np.sqrt(np.mean(residuals**2))))
    derivatives = predictions.derivatives(best)
    covariance = _covariance(derivatives / (noise * spread), priors)
    deviations = np.sqrt(np.diag(covariance))
    fitted = [
        Fitted(key, known.kind, known.unit, known.source, known.value, _short(after), float(prior), float(deviation))
        for key, known, after, prior, deviation in zip(
            predictions.keys, predictions.figures, predictions.values(best), priors, deviations
        )
    ]
    correlations = covariance / np.outer(deviations, deviations)
    pairs = [
        Pair(predictions.keys[one], predictions.keys[other], float(correlations[one, other]))
        for one in range(len(priors))
        for other in range(one + 1, len(priors))
        if abs(correlations[one, other]) > CORRELATED
    ]
    # In the unit of each measurement.
    scales = np.array([row.value / row.base for row in predictions.measurements])
    before, after = (scales * np.exp(predictions.at(logs)) for logs in (predictions.start, best))
    known_to = np.sqrt(np.einsum("ri,ij,rj->r", derivatives, covariance, derivatives) + (noise * spread) ** 2)
    intervals = after * np.exp(np.array([[-_NINE_OF_TEN], [_NINE_OF_TEN]]) * known_to)
    rows = [
        Fit(row, float(old), float(new), (float(low), float(high)))
        for row, old, new, low, high in zip(predictions.measurements, before, after, *intervals)
    ]
    return Calibration(predictions.name, file, tuple(fitted), tuple(pairs), tuple(rows), noise, spread)


def _short(value: float) -> float:
    """A value with six digits, more than any fit knows; whole numbers as they are."""
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _covariance(derivatives: NDArray[np.float64], priors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the covariance of the logarithms; ``derivatives`` are over the noise."""
    covariance: NDArray[np.float64] = np.linalg.inv(derivatives.T @ derivatives + np.diag(1 / priors**2))
    return covariance
