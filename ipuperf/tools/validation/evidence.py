"""The validated runs that intervals of predictions rest on, and how often intervals hold for runs they do not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ipuperf.report.intervals import BY_HOST, Evidence, group_of, interval_from, validated
from ipuperf.tools.validation.rows import Row, runs
from ipuperf.tools.validation.units import QUANTITIES

_WITH_HOST = ("time", "rate", "run rate")
"""Quantities that include the host's part of a run."""


def evidence_of(rows: Sequence[Row]) -> list[Evidence]:
    """The runs of these rows that have a time or a rate, and a profile of what they measured."""
    evidence = []
    for run in runs([row for row in rows if row.case.category != "memory"]):
        first = run.rows[0]
        profile = first.figures.profile
        if profile is None:
            continue
        if first.case.measured.quantity not in _WITH_HOST:
            profile = profile.without_host()
        if not profile.shares:
            continue
        # The trace of a script cannot say that Python took most of the measured time; the case file does.
        group = BY_HOST if first.case.host_bound else group_of(profile)
        error = sum(row.log_error for row in run.rows) / len(run.rows)
        evidence.append(Evidence(run.name, first.case.model, group, profile, error))
    return evidence


def interval_of(row: Row) -> tuple[float, float] | None:
    """The interval of a row's prediction, in its unit, from all other validated runs; None for bytes."""
    profile, case = row.figures.profile, row.case
    if profile is None or case.category == "memory":
        return None
    if case.measured.quantity not in _WITH_HOST:
        profile = profile.without_host()
    others = [run for run in validated() if run.run != case.run_name]
    low, high = interval_from(profile, others, BY_HOST if case.host_bound else "").around(1.0)
    # A rate is low where the time is high.
    bounds = (low, high) if QUANTITIES[case.measured.quantity].less_is_faster else (1 / high, 1 / low)
    return row.predicted * bounds[0], row.predicted * bounds[1]


@dataclass(frozen=True)
class Coverage:
    """How intervals of a kind of runs hold for runs that they do not rest on.

    Attributes:
        kind: first word of the group (:func:`ipuperf.report.intervals.group_of`).
        runs: the number of validated runs.
        holds: the share of runs whose measured time lies in the interval from all other runs.
        width: the mean half width of these intervals, relative.
        family_holds: the share where all runs of the same model are left out.
        family_width: the mean half width then.
    """

    kind: str
    runs: int
    holds: float
    width: float
    family_holds: float
    family_width: float


def coverages(evidence: Sequence[Evidence]) -> list[Coverage]:
    """The coverage of each kind, in order of first appearance."""
    runs_by_kind: dict[str, list[Evidence]] = {}
    for run in evidence:
        runs_by_kind.setdefault(BY_HOST if run.group == BY_HOST else run.group.split()[0], []).append(run)
    return [
        Coverage(
            kind,
            len(alike),
            *_left_out(alike, evidence, lambda run, other: run.run == other.run),
            *_left_out(alike, evidence, lambda run, other: run.family == other.family),
        )
        for kind, alike in runs_by_kind.items()
    ]


def _left_out(
    alike: Sequence[Evidence], evidence: Sequence[Evidence], same: Callable[[Evidence, Evidence], bool]
) -> tuple[float, float]:
    """The share of runs that lie in the interval from the runs that are not the same, and its mean half width."""
    inside, widths = 0, 0.0
    for run in alike:
        interval = interval_from(run.profile, [other for other in evidence if not same(run, other)], run.group)
        inside += interval.holds(run.error)
        widths += interval.around(1.0)[1] - 1
    return inside / len(alike), widths / len(alike)
