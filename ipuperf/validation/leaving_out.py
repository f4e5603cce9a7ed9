"""Leave-one-out errors: calibrated figures fitted to all the programs that they saw but one, which is predicted.

Figures that share a program are fitted together (:func:`groups`). A fit makes the sum of squared logarithms of
predicted over measured least, each run counted once: one figure after the other by golden section between a quarter
and four times its value, twice around; where fewer programs are left than figures, all figures of the group are moved
by one factor. A figure with one program cannot be fitted without it, and neither can one that none of the programs left
depends on (it was fitted to a difference): such a program has no such error. Programs that no figure was fitted to have
been predicted without being seen anyway: their error is the plain one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from ipuperf.machine import load_machine, load_scaled
from ipuperf.validation.cases import Case
from ipuperf.validation.errors import CaseError, NotAvailable
from ipuperf.validation.processes import each
from ipuperf.validation.programs import Figures, prepared
from ipuperf.validation.rows import Run, programs_of, row_of
from ipuperf.validation.sensitivity import only_simulated

LARGEST_FACTOR = 4.0
"""A fit looks between this and one over it."""

_STEPS = 10
_ROUNDS = 2
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, order=True)
class FittedFigure:
    """A figure: dotted key and source (machines that have the same figure have the same source)."""

    key: str
    source: str


@dataclass(frozen=True)
class LeftOut:
    """A run that calibrated figures saw.

    Attributes:
        run, name: the run and its class.
        figures: keys of the figures that were fitted to it.
        error: its error as it is; ``left_out`` that with figures fitted without it, None where they cannot be.
        factors: what the fit multiplied each figure with.
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
    """Errors of a class with every run predicted by figures that did not see it.

    Attributes:
        name, runs, seen: the class, its runs, and how many of them figures were fitted to.
        impossible: of these, those without which a figure cannot be fitted; they are in neither mean.
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
        """Left out over as it is."""
        return self.left_out / self.mean if self.mean else 1.0

    def as_dict(self) -> dict[str, object]:
        """The class as JSON."""
        return {"class": self.name, **{k: v for k, v in asdict(self).items() if k != "name"}, "ratio": self.ratio}


def figures_of(case: Case) -> tuple[FittedFigure, ...]:
    """The machine's figures that were fitted to a case."""
    figures = load_machine(case.machine).figures
    return tuple(FittedFigure(key, figures[key].source) for key in case.calibrates if key in figures)


def groups(cases: Sequence[Case]) -> list[tuple[tuple[FittedFigure, ...], tuple[Case, ...]]]:
    """Figures that share a run, with all cases of the runs that they were fitted to."""
    found: list[tuple[set[FittedFigure], set[str]]] = []
    for case in cases:
        figures, names = set(figures_of(case)), {case.run_name}
        if not figures:
            continue
        for group in [g for g in found if g[0] & figures or g[1] & names]:
            found.remove(group)
            figures |= group[0]
            names |= group[1]
        found.append((figures, names))
    return [(tuple(sorted(figures)), tuple(c for c in cases if c.run_name in names)) for figures, names in found]


def leave_one_out(
    cases: Sequence[Case], *, jobs: int = 1, progress: Callable[[int, int], None] = lambda done, of: None
) -> list[LeftOut]:
    """Every run that a figure was fitted to, left out of the fit.

    Raises:
        CaseError: no figure was fitted to any of the cases; and what predicting raises.
    """
    items = groups(cases)
    if not items:
        raise CaseError("no figure was fitted to any of these cases, so that there is nothing to leave out")
    found: dict[int, list[LeftOut]] = {}
    for done, (number, left) in enumerate(each(_group, items, jobs), start=1):
        found[number] = left
        progress(done, len(items))
    return [left for number in sorted(found) for left in found[number]]


def by_class_left_out(every: Sequence[Run], left: Sequence[LeftOut]) -> list[ClassLeftOut]:
    """One summary for each class of ``every``, the runs of a validation, in their order."""
    known = {(item.name, item.run): item for item in left}
    found = []
    for name in dict.fromkeys(run.rows[0].case.group for run in every):
        inside = [run for run in every if run.rows[0].case.group == name]
        seen = [known[name, run.name] for run in inside if (name, run.name) in known]
        out = {item.run: item.left_out for item in seen}
        counted = [run for run in inside if out.get(run.name, run.error) is not None]
        if counted:
            mean = sum(run.error for run in counted) / len(counted)
            without = sum(out.get(run.name, run.error) or 0.0 for run in counted) / len(counted)
            found.append(ClassLeftOut(name, len(inside), len(seen), len(inside) - len(counted), mean, without))
    return found


class _Programs:
    """Programs of cases on machines whose figures are multiplied; each is built once."""

    def __init__(self, cases: Sequence[Case], figures: Sequence[FittedFigure]) -> None:
        self.cases, self.figures = cases, figures
        self.built = {case.program_key: prepared(case) for case in programs_of(cases, choices=False)}
        self.found: dict[tuple[str, tuple[tuple[str, float], ...]], Figures] = {}

    def ratios(
        self, factors: Mapping[FittedFigure, float], names: set[str], only_fitted: bool = False
    ) -> dict[str, list[float]]:
        """Predicted over measured of the rows of some runs, or of those that the figures were fitted to."""
        found: dict[str, list[float]] = {name: [] for name in names}
        for case in self.cases:
            if case.run_name not in names or (only_fitted and not figures_of(case)):
                continue
            known = {one.program_key: self._figures(one, factors) for one in (case, case.minus) if one}
            found[case.run_name].append(row_of(case, known).predicted / case.measured.value)
        return found

    def _figures(self, case: Case, factors: Mapping[FittedFigure, float]) -> Figures:
        there = load_machine(case.machine).figures
        own = {
            known.key: round(factor, 6)
            for known, factor in factors.items()
            if known.key in there and there[known.key].source == known.source
        }
        asked = case.program_key, tuple(sorted(own.items()))
        if asked not in self.found:
            machine = load_scaled(case.machine, own)
            self.found[asked] = self.built[case.program_key](machine, all(map(only_simulated, own)))
        return self.found[asked]


def _group(item: tuple[tuple[FittedFigure, ...], tuple[Case, ...]]) -> list[LeftOut]:
    """Each run of a group left out."""
    figures, cases = item
    try:
        programs = _Programs(cases, figures)
    except NotAvailable:
        return []
    names = list(dict.fromkeys(case.run_name for case in cases))
    keys = tuple(known.key for known in figures)
    left: list[LeftOut] = []
    for name in names:
        rest = set(names) - {name}
        own = [case for case in cases if case.run_name == name]
        for group in dict.fromkeys(case.group for case in own):
            as_it_is = _error(programs.ratios({}, {name})[name])
            if not _determined(programs, figures, rest):
                left.append(LeftOut(name, group, keys, as_it_is, None))
                continue
            factors = _fitted(programs, figures, rest)
            without = _error(programs.ratios(factors, {name})[name])
            left.append(LeftOut(name, group, keys, as_it_is, without, tuple(factors[known] for known in figures)))
    return left


def _determined(programs: _Programs, figures: Sequence[FittedFigure], names: set[str]) -> bool:
    """Whether predictions of these runs depend on each figure."""
    if not names:
        return False
    as_it_is = programs.ratios({}, names, only_fitted=True)
    return all(programs.ratios({known: LARGEST_FACTOR}, names, only_fitted=True) != as_it_is for known in figures)


def _error(ratios: Sequence[float]) -> float:
    return sum(abs(ratio - 1) for ratio in ratios) / len(ratios)


def _fitted(programs: _Programs, figures: Sequence[FittedFigure], names: set[str]) -> dict[FittedFigure, float]:
    """The factors that fit these runs best."""
    if len(names) < len(figures):
        common = _least(lambda factor: _misfit(programs, dict.fromkeys(figures, factor), names))
        return dict.fromkeys(figures, common)
    factors = dict.fromkeys(figures, 1.0)
    for _ in range(_ROUNDS if len(figures) > 1 else 1):
        for known in figures:
            factors[known] = _least(lambda factor, k=known: _misfit(programs, {**factors, k: factor}, names))  # type: ignore[misc]
    return factors


def _misfit(programs: _Programs, factors: Mapping[FittedFigure, float], names: set[str]) -> float:
    found = programs.ratios(factors, names, only_fitted=True).values()
    return sum(sum(math.log(ratio) ** 2 for ratio in ratios) / len(ratios) for ratios in found)


def _least(misfit: Callable[[float], float]) -> float:
    """The factor with the least misfit, by golden section on its logarithm."""
    low, high = -math.log(LARGEST_FACTOR), math.log(LARGEST_FACTOR)
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    values = [misfit(math.exp(place)) for place in inner]
    for _ in range(_STEPS):
        if values[0] < values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - _GOLDEN * (high - low)
            values[0] = misfit(math.exp(inner[0]))
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + _GOLDEN * (high - low)
            values[1] = misfit(math.exp(inner[1]))
    return math.exp(inner[0] if values[0] < values[1] else inner[1])


def left_out_text(left: Sequence[LeftOut], classes: Sequence[ClassLeftOut]) -> str:
    """Two tables: the runs that figures saw, and the classes."""
    wide = max(len(item.run) for item in left)
    lines = [
        f"{'run':{wide}}  {'class':18}{'error':>8}{'left out':>10}  figures, and what the fit without it multiplies"
    ]
    for item in left:
        out = "-" if item.left_out is None else f"{item.left_out:.1%}"
        fits = [f"{key} x {factor:.2f}" for key, factor in zip(item.figures, item.factors)] or [
            f"{', '.join(item.figures)}: no other program tells"
        ]
        lines.append(f"{item.run:{wide}}  {item.name:18}{item.error:>8.1%}{out:>10}  {', '.join(fits)}")
    lines += ["", f"{'class':26}{'runs':>6}{'seen':>6}{'alone':>7}{'mean |error|':>14}{'left out':>10}{'ratio':>7}"]
    lines += [
        f"{item.name:26}{item.runs:>6}{item.seen:>6}{item.impossible:>7}{item.mean:>14.1%}{item.left_out:>10.1%}"
        f"{item.ratio:>7.2f}"
        for item in classes
    ]
    return "\n".join([*lines, "seen: a figure was fitted to it; alone: no other tells a figure, in neither mean"])
