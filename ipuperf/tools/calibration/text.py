"""What a calibration says, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .fit import CORRELATED, Calibration


def calibration_text(calibration: Calibration, written: Path | None = None) -> str:
    """Format the figures, what the measurements cannot tell, and the errors before and after.

    Args:
        written: the machine file that has the fitted figures, None if none was written.
    """
    lines = [*_figures(calibration), "", *_untold(calibration), *_rows(calibration), ""]
    where = f"the fitted figures are in {written}" if written else "--out FILE.toml writes the fitted figures"
    lines.append(f"{calibration.machine} is as it was; {where}")
    return "\n".join(lines)


def _figures(calibration: Calibration) -> Iterator[str]:
    head = ("figure", "kind", "before", "after", "unit", "moved", "deviation", "prior")
    cells = [
        (known.figure, known.kind, f"{known.before:.5g}", f"{known.after:.5g}", known.unit, f"{known.moved:+.1%}",
         f"{known.deviation:.1%}", f"{known.prior:.0%}")
        for known in calibration.figures
    ]  # fmt: skip
    yield from _aligned([head, *cells], left=2)
    yield "deviation: relative standard deviation after the fit; prior: the same before it, by the figure's kind"


def _untold(calibration: Calibration) -> Iterator[str]:
    """Yield what the measurements cannot tell, with an empty line behind it."""
    lines = [
        f"  {pair.first} and {pair.second}: correlation {pair.correlation:+.2f}, only together are they known"
        for pair in calibration.pairs
    ]
    lines += [
        f"  {known.figure}: known to {known.deviation:.1%}, hardly better than before"
        for known in calibration.figures
        if not known.told
    ]
    if lines:
        yield f"what these measurements cannot tell (correlation above {CORRELATED}, or next to nothing learned):"
    else:
        yield "these measurements tell all of these figures apart"
    yield from [*lines, ""]


def _rows(calibration: Calibration) -> Iterator[str]:
    head = ("quantity", "measured", "before", "error", "after", "error", "nine of ten", "unit", "program")
    cells = []
    for row in calibration.rows:
        before, after = row.errors
        measurement = row.measurement
        values = (
            f"{measurement.value:.4g}",
            f"{row.before:.4g}",
            f"{before:+.1%}",
            f"{row.after:.4g}",
            f"{after:+.1%}",
            " to ".join(f"{bound:.4g}" for bound in row.interval),
        )
        cells.append((measurement.quantity, *values, measurement.unit, measurement.program))
    yield from _aligned([head, *cells], left=1, last=2)
    yield "nine of ten: between these a new measurement of the program lies nine times of ten, after the fit"
    means = [sum(abs(row.errors[side]) for row in calibration.rows) / len(calibration.rows) for side in (0, 1)]
    yield f"mean |error|: {means[0]:.1%} before, {means[1]:.1%} after"
    if calibration.spread > 1:
        yield (
            f"the errors after the fit are {calibration.spread:.1f} times the noise of {calibration.noise:.1%}; the "
            "standard deviations above allow for that"
        )


def _aligned(rows: Sequence[Sequence[str]], left: int, last: int = 0) -> Iterator[str]:
    """Yield lines with the first ``left`` and the ``last`` columns aligned to the left, the others to the right."""
    columns = len(rows[0])
    widths = [max(len(row[column]) for row in rows) for column in range(columns)]
    for row in rows:
        cells = [
            cell.ljust(width) if column < left or column >= columns - last else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        yield "  ".join(cells).rstrip()
