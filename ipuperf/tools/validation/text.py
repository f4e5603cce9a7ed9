"""The text of a validation's result."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ipuperf.report.intervals import ENOUGH
from ipuperf.tools.validation.cases import NotExpressed
from ipuperf.tools.validation.evidence import coverages, evidence_of
from ipuperf.tools.validation.rows import MISS, Row, Skipped, by_class, summarise
from ipuperf.tools.validation.scaling import lines_text, scaling_text


def report(rows: Sequence[Row], skipped: Sequence[Skipped], others: Sequence[NotExpressed]) -> str:
    """Format every row, classes, growth between systems, misses, calibration, and the rows that no case expresses."""
    parts = [
        *_rows(rows),
        *_classes(rows),
        *_coverage(rows),
        *scaling_text(rows),
        *lines_text(rows),
        *_misses(rows),
        *_memory(rows),
        *_calibration(rows),
        *_skipped(skipped),
        *_others(others),
    ]
    return "\n".join(parts)


def why_none_ran(skipped: Sequence[Skipped]) -> str:
    """Name each reason once in one line, with its cases, the first three by name."""
    reasons: dict[str, list[str]] = {}
    for skipped_case in skipped:
        reasons.setdefault(skipped_case.reason, []).append(skipped_case.case.id)
    return "no case could run: " + "; ".join(f"{_some(names)}: {reason}" for reason, names in reasons.items())


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _rows(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return ["no case could run"]
    # Columns are as wide as their longest cell; a metric is cut at 44 characters.
    wide = max(len(row.case.id) for row in rows)
    metric = min(44, max(len(row.case.measured.metric) for row in rows))
    lines = [f"{'case':{wide}}  {'metric':{metric}} {'predicted':>12} {'measured':>12} {'unit':9} {'error':>8}"]
    for name in dict.fromkeys(row.case.group for row in rows):
        lines.append(f"-- {name}")
        for row in (class_row for class_row in rows if class_row.case.group == name):
            measured = row.case.measured
            marks = "".join(f"  {mark}" for mark in _marks(row))
            marks += "  <-- miss" if row.miss else ""
            lines.append(
                f"{row.case.id:{wide}}  {measured.metric[:metric]:{metric}} {figure_text(row.predicted):>12} "
                f"{figure_text(measured.value):>12} {measured.unit:9} {row.error:+8.1%}{marks}"
            )
    lines.append("error = predicted / measured - 1; c: a figure was calibrated on this row")
    if any(row.case.choices for row in rows):
        lines.append(
            "f: a setting is a free choice of the case; in brackets the errors of its other values (--choices)"
        )
    if any(row.figures.remarks for row in rows):
        lines.append("m: the program needs more memory than the simulated machine has")
    return [*lines, ""]


def _marks(row: Row) -> list[str]:
    marks = (["c"] if row.calibrated else []) + (["m"] if row.figures.remarks else [])
    if row.case.choices:
        measured = row.case.measured.value
        effect = f" ({row.low / measured - 1:+.1%} to {row.high / measured - 1:+.1%})" if row.others else ""
        marks.append(f"f{effect}")
    return marks


def _classes(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    lines = [f"{'class':26}{'runs':>6}{'values':>8}{'mean |error|':>14}{'largest':>10}{'bias':>9}{'misses':>8}"]
    groups = by_class(rows)
    modelled_rows = [row for row in rows if not row.case.host_bound]
    # Agreement with a row that a figure was fitted to is no evidence, so a line leaves such rows out.
    open_rows = [row for row in modelled_rows if not row.calibrated]
    if open_rows and len(open_rows) < len(modelled_rows):
        groups += [summarise("all, not calibrated on", open_rows)]
    if modelled_rows:
        groups += [summarise("all" if len(modelled_rows) == len(rows) else "all but host-bound", modelled_rows)]
    for group in groups:
        lines.append(
            f"{group.name:26}{group.count:>6}{group.figures:>8}{group.mean:>14.1%}{group.largest:>10.1%}{group.bias:>+9.1%}"
            f"{group.misses:>8}"
        )
    lines.append("a run counts once, with the mean error of its values (step and rate, divisions of one program)")
    return [*lines, f"bias: + is too slow (memory: too much); a miss is above {MISS:.0%}", ""]


def _coverage(rows: Sequence[Row]) -> list[str]:
    """How often intervals from some of the runs hold for the others; nothing where they are too few to say so."""
    evidence = evidence_of(rows)
    if len(evidence) < ENOUGH:
        return []
    lines = [f"{'intervals of':26}{'runs':>6}{'hold':>8}{'half width':>12}{'new family':>12}{'half width':>12}"]
    for kind in coverages(evidence):
        lines.append(
            f"{kind.kind:26}{kind.runs:>6}{kind.holds:>8.0%}{kind.width:>12.1%}{kind.family_holds:>12.0%}"
            f"{kind.family_width:>12.1%}"
        )
    return [*lines, "each from all other runs of these rows; new family: from all runs of other models", ""]


def _misses(rows: Sequence[Row]) -> list[str]:
    missed = sorted((row for row in rows if row.miss), key=lambda row: -abs(row.error))
    if not missed:
        return [f"misses above {MISS:.0%}: none", ""]
    lines = [f"misses above {MISS:.0%}:"]
    for row in missed:
        lines.append(f"  {row.case.id}: {row.error:+.1%}" + (f"; {row.case.note}" if row.case.note else ""))
    return [*lines, ""]


def _memory(rows: Sequence[Row]) -> list[str]:
    """List the bytes that slow cases (large models) need on the fullest tile of each IPU, once for each program."""
    programs: dict[Hashable, Row] = {}
    for row in rows:
        if row.case.slow and row.figures.demand:
            programs.setdefault(row.case.program_key, row)
    if not programs:
        return []
    lines = ["memory of large models: bytes on the fullest tile, and what each IPU needs of them:"]
    for row in programs.values():
        demand, limit = row.figures.demand, row.figures.bytes_per_tile
        verdict = "fits" if max(demand) <= limit else "DOES NOT FIT"
        parts = " ".join(f"{tile_bytes / limit:.0%}" for tile_bytes in demand)
        lines.append(f"  {row.case.id}: {max(demand):,} of {limit:,}, {verdict} ({parts})")
    return [*lines, ""]


def _calibration(rows: Sequence[Row]) -> list[str]:
    fitted: dict[str, list[str]] = {}
    for row in rows:
        for figure in row.case.calibrates:
            fitted.setdefault(figure, []).append(row.case.id)
    if not fitted:
        return ["no figure was calibrated on any of these rows", ""]
    open_rows = sum(not row.calibrated for row in rows)
    lines = ["calibrated on these rows (their agreement is no evidence):"]
    lines += [f"  {figure}: {', '.join(names)}" for figure, names in fitted.items()]
    return [*lines, f"not used for calibration: the other {open_rows} rows", ""]


def _skipped(skipped: Sequence[Skipped]) -> list[str]:
    if not skipped:
        return []
    return ["skipped:", *(f"  {skipped_case.case.id}: {skipped_case.reason}" for skipped_case in skipped), ""]


def _others(others: Sequence[NotExpressed]) -> list[str]:
    if not others:
        return []
    lines = [f"published rows that are no case: {sum(len(group.ids) for group in others)}"]
    for group in others:
        why = f"model not written yet ({group.model}): {group.reason}" if group.model else group.reason
        lines.append(f"  {len(group.ids)} rows: {why}")
        lines.append(f"    {', '.join(group.ids)}")
    return lines


def figure_text(value: float) -> str:
    """A figure with its thousands, or with four digits."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
