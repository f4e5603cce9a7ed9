"""Predictions beside measurements: one row per case, and statistics by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ipuperf.validation.cases import Case
from ipuperf.validation.errors import NotAvailable
from ipuperf.validation.processes import each
from ipuperf.validation.programs import Figures, figures
from ipuperf.validation.units import QUANTITIES

MISS = 0.25
"""Relative error from which on a row is a miss."""


@dataclass(frozen=True)
class Row:
    """A case and what is predicted for it, in the unit of the measurement."""

    case: Case
    predicted: float
    figures: Figures

    @property
    def error(self) -> float:
        """``predicted / measured - 1``."""
        return self.predicted / self.case.measured.value - 1

    @property
    def slower(self) -> float:
        """The error with the sign of rates turned: positive when the prediction is too slow (or too many bytes)."""
        quantity = QUANTITIES[self.case.measured.quantity]
        counts_up = quantity.less_is_faster or quantity.dimension == "bytes"
        return self.error if counts_up else -self.error

    @property
    def calibrated(self) -> bool:
        """Whether a figure was fitted to this very measurement."""
        return bool(self.case.calibrates)

    @property
    def miss(self) -> bool:
        """Whether the error is above :data:`MISS`."""
        return abs(self.error) > MISS

    def as_dict(self) -> dict[str, object]:
        """The row as JSON; ``error`` is relative, ``calibrated_on`` says whether a figure was fitted to it."""
        measured = self.case.measured
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
        }


@dataclass(frozen=True)
class Skipped:
    """A case that could not run here, and why."""

    case: Case
    reason: str


@dataclass(frozen=True)
class ClassSummary:
    """Errors of the rows of a class.

    Attributes:
        count, calibrated: rows, and how many of them figures were fitted to.
        mean, largest: mean and largest absolute error.
        bias: mean of :attr:`Row.slower`: positive is too slow (memory: too much).
        misses: rows above :data:`MISS`.
    """

    name: str
    count: int
    calibrated: int
    mean: float
    largest: float
    bias: float
    misses: int


def predict(
    cases: Iterable[Case],
    *,
    slow: bool = False,
    simulate: Callable[[Case], Figures] = figures,
    progress: Callable[[Case], None] = lambda case: None,
    jobs: int = 1,
) -> tuple[list[Row], list[Skipped]]:
    """A row for each case, in their order; a program that several cases measure is simulated once.

    Args:
        slow: also those that are slow; else they are skipped.
        simulate: figures of a case.
        progress: told every case whose figures are known, or that is skipped.
        jobs: processes that simulate; ``simulate`` is then a function of a module.

    Raises:
        CaseError: a model does not support its case. IrError, MachineError: a program cannot be built.
    """
    programs: dict[str, list[Case]] = {}
    every = tuple(cases)
    for case in every:
        if case.slow and not slow:
            progress(case)
        else:
            programs.setdefault(case.program_key, []).append(case)
    shared = sorted(programs.values(), key=lambda alike: not alike[0].slow)
    known: dict[str, Figures | NotAvailable] = {}
    for number, found in each(partial(_outcome, simulate), [alike[0] for alike in shared], jobs):
        known[shared[number][0].program_key] = found
        for case in shared[number]:
            progress(case)
    return _sorted(every, known)


def _outcome(simulate: Callable[[Case], Figures], case: Case) -> Figures | NotAvailable:
    """Figures, or why there are none here."""
    try:
        return simulate(case)
    except NotAvailable as reason:
        return reason


def _sorted(cases: Iterable[Case], known: Mapping[str, Figures | NotAvailable]) -> tuple[list[Row], list[Skipped]]:
    rows: list[Row] = []
    skipped: list[Skipped] = []
    for case in cases:
        found = known.get(case.program_key)
        if found is None:
            skipped.append(Skipped(case, "slow, runs with --all"))
        elif isinstance(found, NotAvailable):
            skipped.append(Skipped(case, str(found)))
        else:
            rows.append(Row(case, found.predicted(case), found))
    return rows, skipped


def summarise(name: str, rows: Sequence[Row]) -> ClassSummary:
    """Statistics of rows, which must not be empty."""
    errors = [abs(row.error) for row in rows]
    return ClassSummary(
        name,
        len(rows),
        sum(row.calibrated for row in rows),
        sum(errors) / len(rows),
        max(errors),
        sum(row.slower for row in rows) / len(rows),
        sum(row.miss for row in rows),
    )


def by_class(rows: Sequence[Row]) -> list[ClassSummary]:
    """One summary per class, in order of first appearance."""
    names = dict.fromkeys(row.case.group for row in rows)
    return [summarise(name, [row for row in rows if row.case.group == name]) for name in names]
