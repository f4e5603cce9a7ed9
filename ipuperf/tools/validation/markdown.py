"""Tables of a folder of results for the documents (``docs/tables.py``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ipuperf.report.intervals import validated
from ipuperf.tools.validation.cases import Case, read_cases
from ipuperf.tools.validation.evidence import coverages
from ipuperf.tools.validation.results import LEFT_OUT, SENSITIVITY, read, read_rows
from ipuperf.tools.validation.roofline import baseline
from ipuperf.tools.validation.rows import MISS, ClassSummary, Row, by_class, runs, summarise
from ipuperf.tools.validation.scaling import lines, scaling
from ipuperf.tools.validation.text import figure_text
from ipuperf.tools.validation.units import QUANTITIES

Table = Callable[[Path], str]

_PARTS = {
    "dense products": ("matmul",),
    "gather": ("repeated_gather",),
    "scatter-add": ("repeated_scatter_add",),
    "BERT": ("bert",),
    "ResNet-50 and ResNeXt-101": ("resnet50",),
}
"""Programs that get a line of their own within their class, by name of the line."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: int = 1) -> str:
    """Format a Markdown table whose columns from ``right`` on are right-aligned."""
    rule = ["---" if number < right else "---:" for number in range(len(head))]
    lines = [head, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" if line is not rule else f"|{'|'.join(line)}|" for line in lines)


def _all(folder: Path) -> tuple[Sequence[Case], list[Row]]:
    cases = read_cases().cases
    return cases, read_rows(folder, cases)


def classes(folder: Path) -> str:
    """Table of errors by class, each run counted once; large families have lines of their own."""
    cases, rows = _all(folder)
    lines = []
    for summary in by_class(rows):
        inside = [row for row in rows if row.case.group == summary.name]
        lines.append(_summary(summary, inside))
        for name, models in _PARTS.items():
            part = [row for row in inside if row.case.model in models]
            # A family that is the whole class would only repeat its line.
            if 0 < len(part) < len(inside):
                lines.append(_summary(summarise(f"- of it {name}", part), part))
    head = ("class", "runs", "values", "mean abs. error", "median", "nine of ten within", "largest", "bias",
            f"misses > {100 * MISS:.0f} %", "runs a figure was fitted to")  # fmt: skip
    # Results measured without slow cases are complete but for these.
    missing = len(cases) - len(rows)
    text = table(head, lines)
    return text if not missing else f"{text}\n\n{missing} values of slow cases are not in these results."


def _summary(summary: ClassSummary, rows: Sequence[Row]) -> tuple[str, ...]:
    errors = sorted(run.error for run in runs(rows))
    # The smallest error that nine of ten runs do not exceed.
    tenth = errors[math.ceil(0.9 * len(errors)) - 1]
    spread = (summary.mean, median(errors), tenth, summary.largest)
    counts = (str(summary.misses), str(summary.calibrated))
    return (
        summary.name,
        str(summary.count),
        str(summary.figures),
        *map(_percent, spread),
        _signed(summary.bias),
        *counts,
    )


def intervals(folder: Path) -> str:
    """Table of how often intervals hold for runs that they do not rest on."""
    lines = [
        (kind.kind, str(kind.runs), _whole(kind.holds), _whole(kind.width), _whole(kind.family_holds),
         _whole(kind.family_width))
        for kind in coverages(validated())
    ]  # fmt: skip
    head = ("runs", "validated", "interval holds", "mean half width", "holds for a new family", "mean half width then")
    return table(head, lines)


def _whole(share: float) -> str:
    return f"{share:,.0%}".replace("%", " %")


def roofline(folder: Path) -> str:
    """Table of errors by class beside those of a plain roofline, and the efficiency that was fitted."""
    _, rows = _all(folder)
    classes_of_runs = baseline(rows)
    lines = [
        (entry.name, str(entry.runs), _percent(entry.mean), _percent(entry.median), _percent(entry.roofline_mean),
         _percent(entry.roofline_median))
        for entry in classes_of_runs
    ]  # fmt: skip
    text = table(("class", "runs", "mean abs. error", "median", "roofline: mean", "median"), lines)
    if not lines:
        return "No row has a roofline."
    without = sum(not row.roofline for row in rows)
    efficiency = _percent(classes_of_runs[0].efficiency)
    return f"{text}\n\nFitted: {efficiency} of the peak FLOP/s. {without} values have no roofline in these results."


def every_row(folder: Path) -> str:
    """Table of every value: prediction, measurement, error and marks."""
    _, rows = _all(folder)
    lines = [
        (row.case.id, row.case.group, row.case.measured.metric[:40], figure_text(row.predicted),
         figure_text(row.case.measured.value), row.case.measured.unit, _signed(row.error), _marks(row))
        for row in rows
    ]  # fmt: skip
    return table(("row", "class", "metric", "predicted", "measured", "unit", "error", "marks"), lines, right=3)


def _marks(row: Row) -> str:
    marks = [f"c: {key}" for key in row.case.calibrates]
    marks += [] if not row.figures.remarks else ["m"]
    if row.others:
        measured = row.case.measured.value
        marks.append(f"f: {_signed(row.low / measured - 1)} to {_signed(row.high / measured - 1)}")
    return ", ".join(marks)


def misses(folder: Path) -> str:
    """Table of the runs above the limit, with the notes of their cases."""
    _, rows = _all(folder)
    missed_runs = sorted((run for run in runs(rows) if run.miss), key=lambda run: -run.error)
    # A bar in a note would end the cell of the table.
    lines = [
        (run.name, run.rows[0].case.group, ", ".join(_signed(row.error) for row in run.rows),
         run.rows[0].case.note.replace("|", "/"))
        for run in missed_runs
    ]  # fmt: skip
    return table(("run", "class", "errors of its values", "what its case says"), lines, right=9)


def choices(folder: Path) -> str:
    """Table of the settings that cases chose because no source states them, and the errors with other values."""
    _, rows = _all(folder)
    lines = []
    for row in rows:
        for choice in row.case.choices:
            alternatives = [(value, predicted) for key, value, predicted in row.others if key == choice.key]
            measured = row.case.measured.value
            effects = "; ".join(
                f"{_value(value)}: {_signed(predicted / measured - 1)}" for value, predicted in alternatives
            )
            lines.append((row.case.id, f"`{choice.key}`", _signed(row.error), effects, choice.why))
    return table(("row", "setting", "error", "error with another value", "why it is a choice"), lines, right=9)


def growth(folder: Path) -> str:
    """Growth of the step time between two systems."""
    _, rows = _all(folder)
    lines = [
        (f"{pair.smaller.case.id} to {pair.larger.case.id}", f"{pair.step.predicted:.2f}", f"{pair.step.measured:.2f}",
         f"{pair.step.factor:.2f}", f"{pair.micro_batch.predicted:.2f}", f"{pair.micro_batch.measured:.2f}")
        for pair in scaling(rows)
    ]  # fmt: skip
    head = ("pair", "step", "measured", "factor", "micro-batch", "measured")
    return table(head, lines) if lines else "No pair is in these results."


def lines_table(folder: Path) -> str:
    """The lines through two steps of one model: a micro-batch, and the rest of a step."""
    _, rows = _all(folder)
    cells = []
    for pair in lines(rows):
        predicted, measured = pair.predicted, pair.measured
        cells.append(
            (f"{pair.first.case.id} and {pair.second.case.id}", f"{1e3 * predicted.micro_batch:.2f}",
             f"{1e3 * measured.micro_batch:.2f}", _signed(predicted.micro_batch / measured.micro_batch - 1),
             f"{1e3 * predicted.rest:.0f}", f"{1e3 * measured.rest:.0f}", _signed(predicted.rest / measured.rest - 1))
        )  # fmt: skip
    head = ("rows", "micro-batch, ms", "measured", "error", "rest, ms", "measured", "error")
    return table(head, cells) if cells else "No pair is in these results."


def sensitivity_table(folder: Path) -> str:
    """Table of the mean error of each class with each figure 30 % lower and higher.

    A class is left out if both changes leave it as it is. Below the table stand the classes whose mean error has
    changed since it was measured.
    """
    effects: dict[tuple[str, str], dict[float, dict[str, Any]]] = {}
    for entry in read(folder / SENSITIVITY):
        effects.setdefault((entry["figure"], entry["class"]), {})[entry["factor"]] = entry
    lines, quiet = [], dict.fromkeys(figure for figure, _ in effects)
    for (figure, name), both in effects.items():
        # There are two factors, and the lower one comes first.
        less, more = (both[factor] for factor in sorted(both))
        # A smaller change would be shown as 0.0 %.
        if max(abs(less["largest"]), abs(more["largest"])) >= 0.0005:
            quiet.pop(figure, None)
            most = max((less, more), key=lambda entry: abs(entry["largest"]))
            lines.append((f"`{figure}`", less["kind"], name, _percent(less["mean"]), _percent(less["changed_mean"]),
                          _percent(more["changed_mean"]), f"{_signed(most['largest'])} {most['row']}"))  # fmt: skip
    text = table(("figure", "kind", "class", "mean error", "with 30 % less", "with 30 % more",
                  "largest change of a prediction"), lines, right=3)  # fmt: skip
    if quiet:
        text += f"\n\nWithout effect on any row that is not slow: {', '.join(f'`{figure}`' for figure in quiet)}."
    older = ", ".join(
        f"{name} {_percent(then)}, now {_percent(today)}"
        for name, (then, today) in drift(folder).items()
        if _percent(then) != _percent(today)
    )
    return f"{text}\n\nMeasured before the rows above. Mean errors were then: {older}." if older else text


def drift(folder: Path) -> dict[str, tuple[float, float]]:
    """The mean error of each class when the sensitivity was measured, and that of the same runs in today's rows."""
    _, rows = _all(folder)
    today = {summary.name: summary.mean for summary in by_class([row for row in rows if not row.case.slow])}
    then = {entry["class"]: entry["mean"] for entry in read(folder / SENSITIVITY)}
    return {name: (mean, today[name]) for name, mean in then.items() if name in today}


def left_out(folder: Path) -> str:
    """Table of the runs that figures were fitted to, predicted without them."""
    lines = []
    for entry in read(folder / LEFT_OUT):
        if "run" in entry:
            without = "no other program tells" if entry["left_out"] is None else _percent(entry["left_out"])
            fits = ", ".join(f"`{key}`" for key in entry["figures"])
            factors = ", ".join(f"{factor:.2f}" for factor in entry["factors"])
            lines.append((entry["run"], entry["class"], fits, _percent(entry["error"]), without, factors))
    head = ("run", "class", "figures fitted to it", "error", "left out", "the fit without it multiplies by")
    return table(head, lines, right=3)


def left_out_classes(folder: Path) -> str:
    """Table of leave-one-out errors by class."""
    lines = [
        (entry["class"], str(entry["runs"]), str(entry["seen"]), str(entry["impossible"]), _percent(entry["mean"]),
         _percent(entry["left_out"]), f"{entry['ratio']:.2f}")
        for entry in read(folder / LEFT_OUT)
        if "run" not in entry
    ]  # fmt: skip
    return table(("class", "runs", "seen by a figure", "alone", "mean error", "left out", "ratio"), lines)


def remote_variables(folder: Path) -> str:
    """Table of the remote-variables tutorial."""
    _, rows = _all(folder)
    known = {row.case.id: row for row in rows}
    names = {"NOSHARD": "off chip, no sharding", "FC1": "off chip, only fc1.weight's sharded",
             "WEIGHTS": "off chip, weights' sharded", "ALL": "off chip, all sharded", "ONCHIP": "on chip"}  # fmt: skip
    lines = []
    for key, name in names.items():
        rate, step = known[f"POPXL-MNIST-{key}"], known[f"POPXL-MNIST-{key}-T"]
        # The tutorial reports samples per second; its step has 256 samples.
        samples = 256 / rate.case.measured.value
        lines.append((name, f"{rate.predicted:,.0f}", f"{rate.case.measured.value:,.1f}", _signed(rate.error),
                      f"{step.predicted * 1e3:.3f} ({samples * 1e3:.3f})"))  # fmt: skip
    head = ("placement of Adam's state", "predicted samples/s", "measured", "error", "step ms (256 samples measured)")
    return table(head, lines)


def memory_rows(folder: Path) -> str:
    """Table of the rows about memory."""
    _, rows = _all(folder)
    lines = [
        (row.case.id, row.case.measured.metric, f"{row.predicted:.2f}", f"{row.case.measured.value:g}",
         _signed(row.error))
        for row in rows
        if QUANTITIES[row.case.measured.quantity].dimension == "bytes"
    ]  # fmt: skip
    return table(("row", "value", "predicted MB", "measured", "error"), lines, right=2)


TABLES: dict[str, Table] = {
    "validation classes": classes,
    "validation intervals": intervals,
    "roofline": roofline,
    "validation rows": every_row,
    "validation misses": misses,
    "free choices": choices,
    "growth": growth,
    "lines": lines_table,
    "sensitivity": sensitivity_table,
    "leave one out": left_out,
    "leave one out by class": left_out_classes,
    "remote variables": remote_variables,
    "memory rows": memory_rows,
}
"""The tables by name."""


def _percent(value: float) -> str:
    """Two digits, three from 10 % on where it is a miss of its own kind."""
    return f"{value:.1%}".replace("%", " %") if value < 0.1 else f"{value:,.0%}".replace("%", " %")


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "-") + _percent(abs(value))


def _value(value: Any) -> str:
    return f"`{value}`"
