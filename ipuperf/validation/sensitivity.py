"""What the figures that nobody measured are worth: each moved up and down, and what that does to each class.

A figure of the machines that is ``assumed`` or ``calibrated`` is multiplied by :data:`FACTORS` on every machine that
has it, everything else unchanged, and all cases are predicted again. A program is built once, and lowered once for the
figures that only the simulation reads (:func:`only_simulated`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache

from ipuperf.machine import Machine, load_machine, load_scaled
from ipuperf.validation.cases import Case
from ipuperf.validation.errors import CaseError, NotAvailable
from ipuperf.validation.processes import each
from ipuperf.validation.programs import Figures, prepared
from ipuperf.validation.rows import ClassSummary, Row, by_class, programs_of, row_of
from ipuperf.validation.units import QUANTITIES

FACTORS = (0.7, 1.3)
"""What a figure is multiplied by."""

KINDS = ("assumed", "calibrated")
"""Kinds of figures that are moved."""

_READ_BY_LOWERING = ("ipu_machine.remote_packet",)
_CODE = "chip.code."

Change = tuple[str, float]
"""Dotted key of a figure and its factor."""


@dataclass(frozen=True)
class FigureEffect:
    """What one change does to one class.

    Attributes:
        figure, kind, factor: what is changed.
        name, runs: the class and its runs.
        mean, bias: mean absolute error and bias of the class as they are (see
            :class:`~ipuperf.validation.rows.ClassSummary`).
        changed_mean, changed_bias: with the change.
        largest, row: the largest relative change of a prediction, and of which row.
    """

    figure: str
    kind: str
    factor: float
    name: str
    runs: int
    mean: float
    bias: float
    changed_mean: float
    changed_bias: float
    largest: float
    row: str

    def as_dict(self) -> dict[str, object]:
        """The effect as JSON."""
        found = asdict(self)
        return {"class" if key == "name" else key: value for key, value in found.items()}


def movable_figures(machines: Iterable[str]) -> dict[str, str]:
    """Dotted key -> kind of the figures of these machines that are moved, in order of their names; how a system is put
    together (``system.*``) is a fact of the preset and stays."""
    found: dict[str, str] = {}
    for name in machines:
        for key, figure in load_machine(name).figures.items():
            if figure.kind in KINDS and not key.startswith("system."):
                found[key] = figure.kind
    return dict(sorted(found.items()))


def only_simulated(key: str) -> bool:
    """Whether lowering makes the same of a program whatever this figure is: those of hosts, links and Streaming
    Memory, but for the packets that code sizes count."""
    return key.startswith(("host.", "ipu_machine.")) and key not in _READ_BY_LOWERING


def moves_bytes_only(key: str) -> bool:
    """Whether a figure changes what a program takes of memory and no time: sizes of code."""
    return key.startswith(_CODE)


def sensitivity(
    cases: Sequence[Case],
    *,
    figures: Sequence[str] = (),
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[FigureEffect]:
    """An effect for each figure, factor and class that has a case.

    Args:
        figures: only these; all of :func:`movable_figures` by default.
        progress: told after each program how many of how many are done.

    Raises:
        CaseError: a figure that no machine of the cases has, or that is neither assumed nor calibrated; no case could
            run. And what predicting raises.
    """
    kinds = movable_figures(dict.fromkeys(case.machine for case in cases))
    for key in figures:
        if key not in kinds:
            raise CaseError(f"figure {key!r}: not assumed or calibrated on these machines, allowed: {', '.join(kinds)}")
    changes = [(key, factor) for key in (figures or kinds) for factor in FACTORS]
    known = changed_figures(cases, changes, jobs, progress)
    before = _rows(cases, known[None])
    if not before:
        raise CaseError("no case could run: PyTorch is missing (pip install 'ipuperf[torch]')")
    return [effect for change in changes for effect in _effects(change, kinds[change[0]], before, cases, known[change])]


KnownFigures = dict[str, Figures]
"""Figures by :attr:`~ipuperf.validation.cases.Case.program_key`."""


def changed_figures(
    cases: Sequence[Case],
    changes: Sequence[Change],
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[Change | None, KnownFigures]:
    """Figures of all programs of the cases, as they are (``None``) and with each change; a program without what it
    needs is absent."""
    programs = programs_of(cases, choices=False)
    bytes_wanted = {case.program_key for case in cases if QUANTITIES[case.measured.quantity].dimension == "bytes"}
    items = [(program, tuple(changes), program.program_key in bytes_wanted) for program in programs]
    known: dict[Change | None, KnownFigures] = {change: {} for change in (None, *changes)}
    for done, (number, found) in enumerate(each(_with_changes, items, jobs), start=1):
        for change, figures in found.items():
            known[change][programs[number].program_key] = figures
        progress(done, len(items))
    return known


def _with_changes(item: tuple[Case, tuple[Change, ...], bool]) -> dict[Change | None, Figures]:
    """Figures of one program as it is and with each change that its machine has; others are as they are."""
    case, changes, bytes_wanted = item
    try:
        on = prepared(case)
    except NotAvailable:
        return {}
    plain = on(load_machine(case.machine), True)
    found: dict[Change | None, Figures] = {None: plain}
    for key, factor in changes:
        there = key in movable_figures((case.machine,)) and (bytes_wanted or not moves_bytes_only(key))
        found[key, factor] = on(_scaled(case.machine, key, factor), only_simulated(key)) if there else plain
    return found


@cache
def _scaled(machine: str, key: str, factor: float) -> Machine:
    return load_scaled(machine, {key: factor})


def _rows(cases: Sequence[Case], known: KnownFigures) -> list[Row]:
    return [row_of(case, known) for case in cases if all(c.program_key in known for c in (case, case.minus) if c)]


def _effects(
    change: Change, kind: str, before: Sequence[Row], cases: Sequence[Case], known: KnownFigures
) -> Iterable[FigureEffect]:
    after = {row.case.id: row for row in _rows(cases, known)}
    for name, was in _summaries(before).items():
        rows = [row for row in before if row.case.group == name]
        now = _summaries([after[row.case.id] for row in rows])[name]
        moved = {row.case.id: after[row.case.id].predicted / row.predicted - 1 for row in rows}
        most = max(moved, key=lambda row: abs(moved[row]))
        yield FigureEffect(*change[:1], kind, change[1], name, was.count, was.mean, was.bias, now.mean, now.bias,
                     moved[most], most)  # fmt: skip


def _summaries(rows: Sequence[Row]) -> dict[str, ClassSummary]:
    return {summary.name: summary for summary in by_class(rows)}


def sensitivity_text(effects: Sequence[FigureEffect]) -> str:
    """A table: figure, change, class, mean error and bias before and after. Classes that a change leaves alone (less
    than 0.05 % of every prediction) are left out, figures that move nothing are named below."""
    wide = max((len(effect.figure) for effect in effects), default=0)
    lines = [f"{'figure':{wide}} {'kind':10} {'change':>7}  {'class':18}{'runs':>5}{'mean':>8}{'then':>8}{'bias':>8}"
             f"{'then':>8}  largest change of a prediction"]  # fmt: skip
    quiet: dict[str, bool] = {}
    for e in effects:
        still = abs(e.largest) < 0.0005
        quiet[e.figure] = quiet.get(e.figure, True) and still
        if not still:
            lines.append(
                f"{e.figure:{wide}} {e.kind:10} {e.factor - 1:+7.0%}  {e.name:18}{e.runs:>5}{e.mean:>8.1%}"
                f"{e.changed_mean:>8.1%}{e.bias:>+8.1%}{e.changed_bias:>+8.1%}  {e.largest:+.1%} {e.row}"
            )
    still_ones = [figure for figure, nothing in quiet.items() if nothing]
    if still_ones:
        lines.append(f"without effect on any of these rows: {', '.join(still_ones)}")
    return "\n".join(lines)
