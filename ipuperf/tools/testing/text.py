"""Text of the figures that moved, in columns."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.tools.testing.compare import Moved
from ipuperf.tools.testing.record import SECTIONS

_OPERATIONS = "operations, cycles on all IPUs"


def moved_text(sections: dict[str, list[Moved]], rows: int) -> str:
    """One block for each section, at most ``rows`` rows of it and the number of the rest."""
    return "\n".join(_section(name, moved, rows) for name, moved in sections.items())


def counted(count: int, noun: str) -> str:
    """``"1 figure"``, ``"3 figures"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def percent(baseline: float, current: float) -> str:
    """The change in percent of the value before, "" where that is 0."""
    return f"{100 * (current - baseline) / baseline:+.2f}%" if baseline else ""


def columns(rows: Sequence[Sequence[str]], left: Sequence[int], indent: str) -> list[str]:
    """Rows of cells as lines; the columns ``left`` are aligned left, the others right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def _section(name: str, moved: Sequence[Moved], rows: int) -> str:
    lines = [f"{SECTIONS.get(name, _OPERATIONS)}: {len(moved):,} moved"]
    cells = [["", "type", "before", "after", "change", "%", ""]]
    for row in moved[:rows]:
        values = [f"{row.before:,}", f"{row.after:,}", f"{row.change:+,}", percent(row.before, row.after)]
        cells.append([row.label, row.kind, *values, row.note])
    # The column of types is empty in every section but that of ops.
    used = [place for place in range(7) if place != 1 or any(row.kind for row in moved)]
    shown = [[row[place] for place in used] for row in cells]
    lines += columns(shown, [place for place, column in enumerate(used) if column in (0, 1, 6)], "  ")
    if len(moved) > rows:
        lines.append(f"  ... and {len(moved) - rows:,} more")
    return "\n".join(lines)
