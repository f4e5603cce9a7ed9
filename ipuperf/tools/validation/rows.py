"""Predictions beside measurements: one row per case, and statistics by class."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ipuperf.base.kinds import checked
from ipuperf.tools.errors import NotAvailable
from ipuperf.tools.validation.cases import Case
from ipuperf.tools.validation.processes import each
from ipuperf.tools.validation.programs import Figures, figures
from ipuperf.tools.validation.units import QUANTITIES

MISS = 0.25
"""Relative error above which a row is a miss."""


@dataclass(frozen=True)
class Row:
    """A case and its prediction, in the unit of the measurement.

    Attributes:
        others: key, value and prediction of each other value of the case's choices; empty if these were not predicted.
        roofline: the value if each resource at its peak alone bound the run (:mod:`.roofline`); empty: it has none.
    """

    case: Case
    predicted: float
    figures: Figures
    others: tuple[tuple[str, Any, float], ...] = ()
    roofline: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """``predicted / measured - 1``."""
        return self.predicted / self.case.measured.value - 1

    @property
    def slower(self) -> float:
        """The error with the sign of rates reversed: positive if the prediction is too slow (or has too many bytes)."""
        quantity = QUANTITIES[self.case.measured.quantity]
        counts_up = quantity.less_is_faster or quantity.dimension == "bytes"
        # A rate that is too high is a program that is too fast.
        return self.error if counts_up else -self.error

    @property
    def log_error(self) -> float:
        """The logarithm of measured over predicted time (of bytes too); of a rate, of predicted over measured."""
        ratio = math.log(self.case.measured.value / self.predicted)
        return math.copysign(ratio, -self.slower)

    @property
    def calibrated(self) -> bool:
        """Whether a figure was fitted to this very measurement."""
        return bool(self.case.calibrates)

    @property
    def miss(self) -> bool:
        """Whether the error is above :data:`MISS`."""
        return abs(self.error) > MISS

    @property
    def low(self) -> float:
        """The least prediction over all values of the case's choices."""
        return min(self.predicted, *(value for _, _, value in self.others)) if self.others else self.predicted

    @property
    def high(self) -> float:
        """The largest prediction over all values of the case's choices."""
        return max(self.predicted, *(value for _, _, value in self.others)) if self.others else self.predicted

    def as_dict(self) -> dict[str, object]:
        """The row as JSON.

        ``error`` is relative. ``calibrated_on`` says whether a figure was fitted to the row, and ``fits`` whether the
        program fits the memory. ``choices`` lists what is chosen, why, and the predictions with other values.
        ``roofline`` has the value by resource, as above.
        """
        measured = self.case.measured
        # Values may be lists, which cannot be keys, so their texts are.
        predictions = {(key, repr(value)): predicted for key, value, predicted in self.others}
        choices = [
            {
                "key": choice.key,
                "why": choice.why,
                "others": [
                    {"value": value, "predicted": predictions.get((choice.key, repr(value)))} for value in choice.others
                ],
            }
            for choice in self.case.choices
        ]
        return {
            "id": self.case.id,
            "category": self.case.category,
            "class": self.case.group,
            "metric": measured.metric,
            "predicted": self.predicted,
            "measured": measured.value,
            "unit": measured.unit,
            "error": self.error,
            "confidence": self.case.confidence,
            "calibrated_on": self.calibrated,
            "calibrates": list(self.case.calibrates),
            "run": self.case.run_name,
            "model": self.case.model,
            "slower": self.slower,
            "fits": not self.figures.remarks,
            "low": self.low,
            "high": self.high,
            "choices": choices,
            "roofline": dict(self.roofline),
        }


@dataclass(frozen=True)
class Skipped:
    """A case that could not run here, and why."""

    case: Case
    reason: str


@dataclass(frozen=True)
class Run:
    """The rows of one run (:attr:`Case.run <ipuperf.validation.cases.Case.run>`) in a class.

    A run counts once: its error is the mean of its rows' errors.
    """

    name: str
    rows: tuple[Row, ...]

    @property
    def error(self) -> float:
        """Mean absolute error of its rows."""
        return sum(abs(row.error) for row in self.rows) / len(self.rows)

    @property
    def slower(self) -> float:
        """Mean of :attr:`Row.slower`."""
        return sum(row.slower for row in self.rows) / len(self.rows)

    @property
    def calibrated(self) -> bool:
        """Whether a figure was fitted to one of its rows."""
        return any(row.calibrated for row in self.rows)

    @property
    def miss(self) -> bool:
        """Whether its error is above :data:`MISS`."""
        return self.error > MISS


@dataclass(frozen=True)
class ClassSummary:
    """Errors of the runs of a class.

    Attributes:
        count, figures, calibrated: number of runs, of their rows, and of the runs that figures were fitted to.
        mean, largest: mean and largest absolute error of a run.
        bias: mean of :attr:`Run.slower`; positive is too slow (memory: too much).
        misses: number of runs above :data:`MISS`.
    """

    name: str
    count: int
    figures: int
    calibrated: int
    mean: float
    largest: float
    bias: float
    misses: int


@checked()
def predict(
    cases: Iterable[Case],
    *,
    slow: bool = False,
    choices: bool = False,
    simulate: Callable[[Case], Figures] = figures,
    progress: Callable[[Case], None] = lambda case: None,
    jobs: int = 1,
) -> tuple[list[Row], list[Skipped]]:
    """Predict each case, in order. A program that several cases measure is simulated once.

    Args:
        slow: also run the slow cases; otherwise they are skipped.
        choices: also run the programs with other values of the cases' choices.
        simulate: gives the figures of a case.
        progress: called with every case that is skipped or whose figures are known.
        jobs: number of processes that simulate; above 1, ``simulate`` must be a function of a module.

    Raises:
        CaseError: a model does not support its case.
        IrError, MachineError: a program cannot be built.
    """
    all_cases = tuple(cases)
    cases_to_run = [case for case in all_cases if slow or not case.slow]
    for case in all_cases:
        # Skipped cases count as progress, so that a bar reaches its end.
        if case.slow and not slow:
            progress(case)
    known = simulated(programs_of(cases_to_run, choices), simulate, jobs, _Finished(cases_to_run, choices, progress))
    return _sorted(all_cases, known, choices)


def programs_of(cases: Iterable[Case], choices: bool) -> list[Case]:
    """Return one case for each program that these cases need, the slow ones first."""
    programs: dict[str, Case] = {}
    for case in cases:
        for program in _needed(case, choices):
            programs.setdefault(program.program_key, program)
    # With several processes, the longest programs must start first, or one process ends last alone.
    return sorted(programs.values(), key=lambda case: not case.slow)


def simulated(
    programs: Sequence[Case],
    simulate: Callable[[Case], Figures],
    jobs: int,
    done: Callable[[str], None] = lambda key: None,
) -> dict[str, Figures | NotAvailable]:
    """Return the figures of programs, or why there are none here, by :attr:`program_key`; ``done`` gets each key."""
    known: dict[str, Figures | NotAvailable] = {}
    for number, outcome in each(partial(_outcome, simulate), programs, jobs):
        key = programs[number].program_key
        known[key] = outcome
        done(key)
    return known


class _Finished:
    """Reports every case once all its programs are simulated."""

    def __init__(self, cases: Sequence[Case], choices: bool, progress: Callable[[Case], None]) -> None:
        self.progress = progress
        self.waiting = [(case, {program.program_key for program in _needed(case, choices)}) for case in cases]

    def __call__(self, key: str) -> None:
        left = []
        # Several cases may wait for one program, and one case for several.
        for case, keys in self.waiting:
            keys.discard(key)
            if keys:
                left.append((case, keys))
            else:
                self.progress(case)
        self.waiting = left


def _needed(case: Case, choices: bool) -> tuple[Case, ...]:
    # A difference always needs both of its programs.
    return case.programs if choices or case.minus else (case,)


def _outcome(simulate: Callable[[Case], Figures], case: Case) -> Figures | NotAvailable:
    """Return the figures, or why there are none here."""
    try:
        return simulate(case)
    except NotAvailable as reason:
        return reason


def _sorted(
    cases: Iterable[Case], known: Mapping[str, Figures | NotAvailable], choices: bool
) -> tuple[list[Row], list[Skipped]]:
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for case in cases:
        outcome = known.get(case.program_key)
        if outcome is None:
            skipped.append(Skipped(case, "slow, runs with --all"))
        elif isinstance(outcome, NotAvailable):
            skipped.append(Skipped(case, str(outcome)))
        else:
            rows.append(row_of(case, known, choices))
    return rows, skipped


def row_of(case: Case, known: Mapping[str, Figures | NotAvailable], choices: bool = False) -> Row:
    """Make the row of a case whose programs' figures are known."""

    def predicted(program: Case) -> float:
        program_figures = known[program.program_key]
        assert isinstance(program_figures, Figures), program.id
        return program_figures.predicted(program)

    case_figures = known[case.program_key]
    assert isinstance(case_figures, Figures), case.id
    others = tuple(
        (choice.key, value, predicted(alternative))
        for choice in (case.choices if choices else ())
        for value, alternative in zip(choice.others, choice.cases, strict=True)
    )
    # A published difference of two programs is predicted as one. A difference of bounds bounds nothing.
    value = predicted(case) - (predicted(case.minus) if case.minus else 0.0)
    return Row(case, value, case_figures, others, {} if case.minus else case_figures.bounds(case))


def runs(rows: Sequence[Row]) -> list[Run]:
    """Group the rows by run and class, in order of first appearance."""
    rows_by_run: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        rows_by_run.setdefault((row.case.group, row.case.run_name), []).append(row)
    return [Run(name, tuple(alike)) for (_, name), alike in rows_by_run.items()]


def summarise(name: str, rows: Sequence[Row]) -> ClassSummary:
    """Return statistics of rows, which must not be empty; each run counts once."""
    class_runs = runs(rows)
    return ClassSummary(
        name,
        len(class_runs),
        len(rows),
        sum(run.calibrated for run in class_runs),
        sum(run.error for run in class_runs) / len(class_runs),
        max(run.error for run in class_runs),
        sum(run.slower for run in class_runs) / len(class_runs),
        sum(run.miss for run in class_runs),
    )


def by_class(rows: Sequence[Row]) -> list[ClassSummary]:
    """Summarise each class, in order of first appearance."""
    names = dict.fromkeys(row.case.group for row in rows)
    return [summarise(name, [row for row in rows if row.case.group == name]) for name in names]
