"""The influence of unmeasured figures: each is moved up and down, and every class of measurements is predicted again.

A figure of the machines that is ``assumed`` or ``calibrated`` is multiplied by :data:`FACTORS` on every machine that
has it. Everything else stays unchanged, and all cases are predicted again. A program is built once. It is also lowered
only once for the figures that only the simulation reads (:func:`only_simulated`).

Most programs meet few of the figures. So those of :data:`GROUPS` are first all moved at once, to where they take more
time and to where they take less. Where neither changes anything, none of them is moved by itself: time never falls
where a figure takes more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache

from ipuperf.base.near_names import instead_of
from ipuperf.base.requirements import pip_install
from ipuperf.machine import Machine, load_machine, load_scaled
from ipuperf.tools.errors import CaseError, NotAvailable
from ipuperf.tools.validation.cases import Case
from ipuperf.tools.validation.processes import each
from ipuperf.tools.validation.programs import Figures, prepared
from ipuperf.tools.validation.rows import ClassSummary, Row, by_class, programs_of, row_of
from ipuperf.tools.validation.units import QUANTITIES

FACTORS = (0.7, 1.3)
"""What a figure is multiplied by."""

KINDS = ("assumed", "calibrated")
"""Kinds of figures that are moved."""

GROUPS = (("host.",), ("ipu_machine.", "chip.external_sync"), ("chip.integer_division", "chip.strided_copy"))
"""Beginnings of the figures that are tried together."""

_READ_BY_LOWERING = ("ipu_machine.remote_packet",)
_READ_BY_SIMULATION = ("host.", "ipu_machine.", "chip.clock", "chip.external_sync")
_OF_BYTES = ("chip.code.", "chip.alignment")
_SPEEDS = ("GB/s", "Gbit/s", "GHz", "ratio")
"""Units of figures of which more is faster."""

Change = tuple[str, float]
"""Dotted key of a figure and its factor."""


@dataclass(frozen=True)
class FigureEffect:
    """The effect of one change on one class.

    Attributes:
        figure, kind, factor: the figure that is changed, its kind, and its factor.
        name, runs: the class and its number of runs.
        mean, bias: mean absolute error and bias of the class without the change (see
            :class:`~ipuperf.validation.rows.ClassSummary`).
        changed_mean, changed_bias: the same with the change.
        largest, row: the largest relative change of a prediction, and the id of its row.
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
        fields = asdict(self)
        return {"class" if key == "name" else key: value for key, value in fields.items()}


def movable_figures(machines: Iterable[str]) -> dict[str, str]:
    """Return the figures of these machines that are moved: dotted key -> kind, sorted by key.

    The composition of a system (``system.*``) is a fact of the preset and stays.
    """
    kinds: dict[str, str] = {}
    for name in machines:
        for key, figure in load_machine(name).figures.items():
            if figure.kind in KINDS and not key.startswith("system."):
                kinds[key] = figure.kind
    return dict(sorted(kinds.items()))


def only_simulated(key: str) -> bool:
    """Whether lowering gives the same program for every value of this figure.

    This holds for figures of hosts, links and Streaming Memory, except the packets that code sizes count. It also holds
    for the clock, as lowering counts cycles, and for syncs between IPUs.
    """
    return key.startswith(_READ_BY_SIMULATION) and key not in _READ_BY_LOWERING


def moves_bytes_only(key: str) -> bool:
    """Whether a figure changes the memory of a program but not its time: the sizes of code, and the alignment."""
    return key.startswith(_OF_BYTES)


def sensitivity(
    cases: Sequence[Case],
    *,
    figures: Sequence[str] = (),
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[FigureEffect]:
    """Return an effect for each figure, factor and class that has a case.

    Args:
        figures: only these figures; all of :func:`movable_figures` by default.
        progress: called after each program with the number done and the number of all.

    Raises:
        CaseError: no machine of the cases has a figure, a figure is neither assumed nor calibrated, or no case could
            run. Errors of predicting pass through.
    """
    kinds = movable_figures(dict.fromkeys(case.machine for case in cases))
    for key in figures:
        if key not in kinds:
            raise CaseError(f"figure {key!r}: not assumed or calibrated on these machines{instead_of(key, kinds)}")
    changes = [(key, factor) for key in (figures or kinds) for factor in FACTORS]
    known = changed_figures(cases, changes, jobs, progress)
    unchanged_rows = _rows(cases, known[None])
    if not unchanged_rows:
        raise CaseError(f"no case could run: PyTorch is missing ({pip_install('torch')})")
    return [
        effect
        for change in changes
        for effect in _effects(change, kinds[change[0]], unchanged_rows, cases, known[change])
    ]


KnownFigures = dict[str, Figures]
"""Figures by :attr:`~ipuperf.validation.cases.Case.program_key`."""


def changed_figures(
    cases: Sequence[Case],
    changes: Sequence[Change],
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[Change | None, KnownFigures]:
    """Return the figures of all programs of the cases, unchanged (``None``) and with each change.

    A program whose packages are not installed is absent.
    """
    programs = programs_of(cases, choices=False)
    # Only cases that measure bytes can tell a change of code sizes.
    bytes_wanted = {case.program_key for case in cases if QUANTITIES[case.measured.quantity].dimension == "bytes"}
    items = [(program, tuple(changes), program.program_key in bytes_wanted) for program in programs]
    known: dict[Change | None, KnownFigures] = {change: {} for change in (None, *changes)}
    for done, (number, figures_by_change) in enumerate(each(_with_changes, items, jobs), start=1):
        for change, figures in figures_by_change.items():
            known[change][programs[number].program_key] = figures
        progress(done, len(items))
    return known


def _with_changes(task: tuple[Case, tuple[Change, ...], bool]) -> dict[Change | None, Figures]:
    """Return a program's figures, unchanged and with each change; a change its machine lacks leaves them equal."""
    case, changes, bytes_wanted = task
    try:
        figures_on = prepared(case)
    except NotAvailable:
        return {}
    # The unchanged machine lowers the program once; changes that only the simulation reads use it again.
    plain = figures_on(load_machine(case.machine), True)
    keys = [key for key in dict(changes) if key in movable_figures((case.machine,))]
    groups = [[key for key in keys if key.startswith(group)] for group in GROUPS]
    idle = {
        key for group in groups for key in group if len(group) > 1 and _idle(case.machine, group, figures_on, plain)
    }
    figures: dict[Change | None, Figures] = {None: plain}
    for key, factor in changes:
        # Sizes of code move bytes alone, so most programs need no second simulation for them.
        moves = key in keys and key not in idle and (bytes_wanted or not moves_bytes_only(key))
        figures[key, factor] = figures_on(_scaled(case.machine, key, factor), only_simulated(key)) if moves else plain
    return figures


def _idle(machine: str, keys: Sequence[str], figures_on: Callable[[Machine, bool], Figures], plain: Figures) -> bool:
    """Whether a program's figures stay as they are where all of ``keys`` take more time, and where all take less."""
    units = load_machine(machine).figures
    lowered_alike = all(map(only_simulated, keys))
    return all(
        figures_on(
            load_scaled(machine, {key: 2 - factor if units[key].unit in _SPEEDS else factor for key in keys}),
            lowered_alike,
        ).values
        == plain.values
        for factor in FACTORS
    )


@cache
def _scaled(machine: str, key: str, factor: float) -> Machine:
    return load_scaled(machine, {key: factor})


def _rows(cases: Sequence[Case], known: KnownFigures) -> list[Row]:
    return [row_of(case, known) for case in cases if all(c.program_key in known for c in (case, case.minus) if c)]


def _effects(
    change: Change, kind: str, unchanged_rows: Sequence[Row], cases: Sequence[Case], known: KnownFigures
) -> Iterable[FigureEffect]:
    changed_rows = {row.case.id: row for row in _rows(cases, known)}
    for name, summary in _summaries(unchanged_rows).items():
        rows = [row for row in unchanged_rows if row.case.group == name]
        changed_summary = _summaries([changed_rows[row.case.id] for row in rows])[name]
        moved = {row.case.id: changed_rows[row.case.id].predicted / row.predicted - 1 for row in rows}
        most = max(moved, key=lambda row: abs(moved[row]))
        yield FigureEffect(*change[:1], kind, change[1], name, summary.count, summary.mean, summary.bias,
                     changed_summary.mean, changed_summary.bias, moved[most], most)  # fmt: skip


def _summaries(rows: Sequence[Row]) -> dict[str, ClassSummary]:
    return {summary.name: summary for summary in by_class(rows)}


def sensitivity_text(effects: Sequence[FigureEffect]) -> str:
    """Format a table: figure, change, class, mean error and bias before and after.

    A class is left out if a change moves each of its predictions by less than 0.05 %. Figures that move nothing are
    named below the table.
    """
    wide = max((len(effect.figure) for effect in effects), default=0)
    lines = [
        f"{'figure':{wide}} {'kind':10} {'change':>7}  {'class':18}{'runs':>5}{'mean':>8}{'then':>8}{'bias':>8}"
        f"{'then':>8}  largest change of a prediction"
    ]
    quiet: dict[str, bool] = {}
    for effect in effects:
        # 0.05 %: less rounds to nothing in the column of one decimal.
        still = abs(effect.largest) < 0.0005
        quiet[effect.figure] = quiet.get(effect.figure, True) and still
        if not still:
            lines.append(
                f"{effect.figure:{wide}} {effect.kind:10} {effect.factor - 1:+7.0%}  {effect.name:18}"
                f"{effect.runs:>5}{effect.mean:>8.1%}{effect.changed_mean:>8.1%}{effect.bias:>+8.1%}"
                f"{effect.changed_bias:>+8.1%}  {effect.largest:+.1%} {effect.row}"
            )
    still_ones = [figure for figure, nothing in quiet.items() if nothing]
    if still_ones:
        lines.append(f"without effect on any of these rows: {', '.join(still_ones)}")
    return "\n".join(lines)
