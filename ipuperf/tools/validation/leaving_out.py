"""Leave-one-out errors: calibrated figures are fitted without one program, which they then predict.

Figures that share a program are fitted together (:func:`groups`). A fit minimises the sum of squared logarithms of
predicted over measured, and each run counts once. It treats one figure after the other, twice around, by golden
section between a quarter and four times its value. If fewer programs remain than figures, one factor moves all figures
of the group. A figure with a single program cannot be fitted without it. The same holds for a figure that none of the
remaining programs depends on (it was fitted to a difference). Such a program has no leave-one-out error. The figures
have never seen the programs that none was fitted to, so these keep their plain error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from ipuperf.machine import load_machine, load_scaled
from ipuperf.tools.errors import CaseError, NotAvailable
from ipuperf.tools.validation.cases import Case
from ipuperf.tools.validation.processes import each
from ipuperf.tools.validation.programs import Figures, prepared
from ipuperf.tools.validation.rows import Run, programs_of, row_of
from ipuperf.tools.validation.sensitivity import only_simulated

LARGEST_FACTOR = 4.0
"""A fit searches between one over this factor and the factor."""

_STEPS = 10
_ROUNDS = 2
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, order=True)
class FittedFigure:
    """A figure: its dotted key and its source (machines that share a figure share its source)."""

    key: str
    source: str


@dataclass(frozen=True)
class LeftOut:
    """A run that calibrated figures were fitted to.

    Attributes:
        run, name: the run and its class.
        figures: keys of the figures that were fitted to it.
        error: its error with the figures as they are.
        left_out: its error with figures fitted without it, None if they cannot be.
        factors: the factor by which the fit multiplied each figure.
    """

    run: str
    name: str
    figures: tuple[str, ...]
    error: float
    left_out: float | None
    factors: tuple[float, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """The run as JSON."""
        return {"class" if key == "name" else key: value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class ClassLeftOut:
    """Errors of a class in which figures that did not see a run predict it.

    Attributes:
        name, runs, seen: the class, its number of runs, and the number of runs that figures were fitted to.
        impossible: number of seen runs without which a figure cannot be fitted; they are in neither mean.
        mean, left_out: mean error as it is, and with each seen run left out of its fit.
    """

    name: str
    runs: int
    seen: int
    impossible: int
    mean: float
    left_out: float

    @property
    def ratio(self) -> float:
        """The left-out mean over the mean as it is."""
        return self.left_out / self.mean if self.mean else 1.0

    def as_dict(self) -> dict[str, object]:
        """The class as JSON."""
        return {"class": self.name, **{k: v for k, v in asdict(self).items() if k != "name"}, "ratio": self.ratio}


def figures_of(case: Case) -> tuple[FittedFigure, ...]:
    """Return the machine's figures that were fitted to a case."""
    figures = load_machine(case.machine).figures
    return tuple(FittedFigure(key, figures[key].source) for key in case.calibrates if key in figures)


def groups(cases: Sequence[Case]) -> list[tuple[tuple[FittedFigure, ...], tuple[Case, ...]]]:
    """Return the figures that share a run, with all cases of the runs that they were fitted to."""
    clusters: list[tuple[set[FittedFigure], set[str]]] = []
    for case in cases:
        figures, names = set(figures_of(case)), {case.run_name}
        # A case without calibrated figures was never seen by a fit.
        if not figures:
            continue
        # One run may join clusters that were apart so far, so all that touch it become one.
        for group in [cluster for cluster in clusters if cluster[0] & figures or cluster[1] & names]:
            clusters.remove(group)
            figures |= group[0]
            names |= group[1]
        clusters.append((figures, names))
    return [
        (tuple(sorted(figures)), tuple(case for case in cases if case.run_name in names)) for figures, names in clusters
    ]


def leave_one_out(
    cases: Sequence[Case], *, jobs: int = 1, progress: Callable[[int, int], None] = lambda done, of: None
) -> list[LeftOut]:
    """Predict every run that a figure was fitted to, with the run left out of the fit.

    Raises:
        CaseError: no figure was fitted to any of the cases. Errors of predicting pass through.
    """
    items = groups(cases)
    if not items:
        raise CaseError("no figure was fitted to any of these cases, so that there is nothing to leave out")
    left_out_runs: dict[int, list[LeftOut]] = {}
    for done, (number, left) in enumerate(each(_group, items, jobs), start=1):
        left_out_runs[number] = left
        progress(done, len(items))
    return [left for number in sorted(left_out_runs) for left in left_out_runs[number]]


def by_class_left_out(all_runs: Sequence[Run], left: Sequence[LeftOut]) -> list[ClassLeftOut]:
    """Summarise each class of ``all_runs``, the runs of a validation, in their order."""
    known = {(left_out_run.name, left_out_run.run): left_out_run for left_out_run in left}
    summaries = []
    for name in dict.fromkeys(run.rows[0].case.group for run in all_runs):
        inside = [run for run in all_runs if run.rows[0].case.group == name]
        seen = [known[name, run.name] for run in inside if (name, run.name) in known]
        out = {left_out_run.run: left_out_run.left_out for left_out_run in seen}
        # A run that no figure was fitted to keeps its plain error.
        counted = [run for run in inside if out.get(run.name, run.error) is not None]
        if counted:
            mean = sum(run.error for run in counted) / len(counted)
            without = sum(out.get(run.name, run.error) or 0.0 for run in counted) / len(counted)
            summaries.append(ClassLeftOut(name, len(inside), len(seen), len(inside) - len(counted), mean, without))
    return summaries


class _Programs:
    """Programs of cases on machines with multiplied figures; each program is built once."""

    def __init__(self, cases: Sequence[Case], figures: Sequence[FittedFigure]) -> None:
        self.cases, self.figures = cases, figures
        self.built = {case.program_key: prepared(case) for case in programs_of(cases, choices=False)}
        self.known_figures: dict[tuple[str, tuple[tuple[str, float], ...]], Figures] = {}

    def ratios(
        self, factors: Mapping[FittedFigure, float], names: set[str], only_fitted: bool = False
    ) -> dict[str, list[float]]:
        """Return predicted over measured for the rows of some runs, or only for rows that figures were fitted to."""
        ratios: dict[str, list[float]] = {name: [] for name in names}
        for case in self.cases:
            if case.run_name not in names or (only_fitted and not figures_of(case)):
                continue
            known = {program.program_key: self._figures(program, factors) for program in (case, case.minus) if program}
            ratios[case.run_name].append(row_of(case, known).predicted / case.measured.value)
        return ratios

    def _figures(self, case: Case, factors: Mapping[FittedFigure, float]) -> Figures:
        there = load_machine(case.machine).figures
        # Rounded factors let requests that differ by rounding errors share one simulation.
        machine_factors = {
            known.key: round(factor, 6)
            for known, factor in factors.items()
            if known.key in there and there[known.key].source == known.source
        }
        # Cases that measure one program share its figures.
        request = case.program_key, tuple(sorted(machine_factors.items()))
        if request not in self.known_figures:
            machine = load_scaled(case.machine, machine_factors)
            self.known_figures[request] = self.built[case.program_key](
                machine, all(map(only_simulated, machine_factors))
            )
        return self.known_figures[request]


def _group(group_of_figures: tuple[tuple[FittedFigure, ...], tuple[Case, ...]]) -> list[LeftOut]:
    """Each run of a group left out."""
    figures, cases = group_of_figures
    try:
        programs = _Programs(cases, figures)
    # The fit needs all programs of the group, and one of them cannot be built here.
    except NotAvailable:
        return []
    names = list(dict.fromkeys(case.run_name for case in cases))
    keys = tuple(known.key for known in figures)
    left: list[LeftOut] = []
    # Every run takes its turn as the one that the fit does not see.
    for name in names:
        remaining = set(names) - {name}
        run_cases = [case for case in cases if case.run_name == name]
        for group in dict.fromkeys(case.group for case in run_cases):
            as_it_is = _error(programs.ratios({}, {name})[name])
            if not _determined(programs, figures, remaining):
                left.append(LeftOut(name, group, keys, as_it_is, None))
                continue
            factors = _fitted(programs, figures, remaining)
            without = _error(programs.ratios(factors, {name})[name])
            left.append(LeftOut(name, group, keys, as_it_is, without, tuple(factors[known] for known in figures)))
    return left


def _determined(programs: _Programs, figures: Sequence[FittedFigure], names: set[str]) -> bool:
    """Whether the predictions of these runs depend on each figure."""
    if not names:
        return False
    as_it_is = programs.ratios({}, names, only_fitted=True)
    return all(programs.ratios({known: LARGEST_FACTOR}, names, only_fitted=True) != as_it_is for known in figures)


def _error(ratios: Sequence[float]) -> float:
    return sum(abs(ratio - 1) for ratio in ratios) / len(ratios)


def _fitted(programs: _Programs, figures: Sequence[FittedFigure], names: set[str]) -> dict[FittedFigure, float]:
    """Return the factors that fit these runs best."""
    # Fewer runs than figures cannot tell the figures apart.
    if len(names) < len(figures):
        common = _least(lambda factor: _misfit(programs, dict.fromkeys(figures, factor), names))
        return dict.fromkeys(figures, common)
    factors = dict.fromkeys(figures, 1.0)
    # A second round matters only if figures depend on each other.
    for _ in range(_ROUNDS if len(figures) > 1 else 1):
        for known in figures:
            factors[known] = _least(partial(_misfit_of, known, programs, factors, names))
    return factors


def _misfit_of(
    figure: FittedFigure, programs: _Programs, factors: Mapping[FittedFigure, float], names: set[str], factor: float
) -> float:
    """The misfit with another factor of one figure."""
    return _misfit(programs, {**factors, figure: factor}, names)


def _misfit(programs: _Programs, factors: Mapping[FittedFigure, float], names: set[str]) -> float:
    ratios_by_run = programs.ratios(factors, names, only_fitted=True).values()
    return sum(sum(math.log(ratio) ** 2 for ratio in ratios) / len(ratios) for ratios in ratios_by_run)


def _least(misfit: Callable[[float], float]) -> float:
    """The factor with the least misfit, by golden section on its logarithm."""
    # On a logarithmic scale, half and double are equally far from 1.
    low, high = -math.log(LARGEST_FACTOR), math.log(LARGEST_FACTOR)
    probes = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    values = [misfit(math.exp(place)) for place in probes]
    for _ in range(_STEPS):
        # The minimum lies on the side of the smaller value. One probe of the last step is used again.
        if values[0] < values[1]:
            high, probes[1], values[1] = probes[1], probes[0], values[0]
            probes[0] = high - _GOLDEN * (high - low)
            values[0] = misfit(math.exp(probes[0]))
        else:
            low, probes[0], values[0] = probes[0], probes[1], values[1]
            probes[1] = low + _GOLDEN * (high - low)
            values[1] = misfit(math.exp(probes[1]))
    return math.exp(probes[0] if values[0] < values[1] else probes[1])


def left_out_text(left: Sequence[LeftOut], classes: Sequence[ClassLeftOut]) -> str:
    """Format two tables: the runs that figures were fitted to, and the classes."""
    wide = max(len(entry.run) for entry in left)
    lines = [
        f"{'run':{wide}}  {'class':18}{'error':>8}{'left out':>10}  figures, and what the fit without it multiplies"
    ]
    for entry in left:
        out = "-" if entry.left_out is None else f"{entry.left_out:.1%}"
        fits = [f"{key} x {factor:.2f}" for key, factor in zip(entry.figures, entry.factors)] or [
            f"{', '.join(entry.figures)}: no other program tells"
        ]
        lines.append(f"{entry.run:{wide}}  {entry.name:18}{entry.error:>8.1%}{out:>10}  {', '.join(fits)}")
    lines += ["", f"{'class':26}{'runs':>6}{'seen':>6}{'alone':>7}{'mean |error|':>14}{'left out':>10}{'ratio':>7}"]
    lines += [
        f"{entry.name:26}{entry.runs:>6}{entry.seen:>6}{entry.impossible:>7}{entry.mean:>14.1%}{entry.left_out:>10.1%}"
        f"{entry.ratio:>7.2f}"
        for entry in classes
    ]
    return "\n".join([*lines, "seen: a figure was fitted to it; alone: no other tells a figure, in neither mean"])
