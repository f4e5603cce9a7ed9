"""A folder with everything there is to see of a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ipuperf.report.breakdown import breakdown
from ipuperf.report.memory import liveness_figure, tile_memory_figure
from ipuperf.report.perfetto import MAX_SLICES, to_perfetto
from ipuperf.report.staging import staged
from ipuperf.report.text import summary_text
from ipuperf.report.timeline import timeline_figure
from ipuperf.trace import fitting_window, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ipuperf.trace import Trace

DPI = 130
"""Resolution of the figures."""

_OPTIONAL = ("timeline.png", "trace.pftrace", "liveness.png", "tile_memory.png")

Item = tuple[str, str, Callable[["Trace", Path], None]]
"""File name, what it holds, and who writes it."""


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure (format by suffix), all or nothing."""
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=DPI)


def _text(trace: Trace, path: Path) -> None:
    path.write_text(summary_text(trace), encoding="utf-8")


def _json(trace: Trace, path: Path) -> None:
    summary = trace.summary()
    if trace.columns("instances")["instance"].size:
        summary["breakdown_seconds"] = breakdown(trace)
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _operations(trace: Trace, path: Path) -> None:
    columns = ["op", "type", "calls", "cycles", "share", "flops"]
    trace.operations()[columns].to_csv(path, index=False, float_format="%.6g")


def _drawn(draw: Callable[[Trace], Figure]) -> Callable[[Trace, Path], None]:
    return lambda trace, path: draw(trace).savefig(path, dpi=DPI)


def _items(trace: Trace) -> list[Item]:
    """The files this trace has data for."""
    items: list[Item] = [
        ("summary.txt", "summary in words", _text),
        ("summary.json", "summary as JSON, seconds of the breakdown included", _json),
        ("trace.ipt", "the trace itself; read it with `ipuperf.trace.Trace.load`", lambda t, p: t.save(p)),
        ("operations.csv", "cost of each op over the whole trace, all stored IPUs together", _operations),
    ]
    if trace.columns("instances")["instance"].size:
        window = fitting_window(trace, MAX_SLICES)
        shown = "" if window is None else f", cycles {window[0]:,} to {window[1]:,} only (too long for a viewer)"
        items.append(("timeline.png", "execution timeline of every IPU", _drawn(timeline_figure)))
        items.append(
            (
                "trace.pftrace",
                f"interactive timeline; open it at https://ui.perfetto.dev{shown}",
                lambda t, p: to_perfetto(t, p, window),
            )
        )
    if len(trace.columns("liveness")["ipu"]):
        items.append(("liveness.png", "live memory over program steps", _drawn(liveness_figure)))
    if len(trace.columns("tile_memory")["ipu"]):
        items.append(("tile_memory.png", "bytes on every tile by category", _drawn(tile_memory_figure)))
    return items


def _index(trace: Trace, items: list[Item]) -> str:
    state = "**The program does not fit in memory.**\n\n" if trace.meta["oom"] else ""
    rows = "\n".join(f"| [{name}]({name}) | {meaning} |" for name, meaning, _ in items)
    missing = [name for name in _OPTIONAL if name not in [item[0] for item in items]]
    left_out = f"\n\nNot written, the trace has no data for it: {', '.join(missing)}." if missing else ""
    title = f"# Report of a simulated program on {trace.meta['machine']}"
    made = f"Written by ipuperf {trace.meta['ipuperf_version']}. The figures are simulated, not measured."
    return f"{title}\n\n{state}{made}\n\n| File | Holds |\n|---|---|\n{rows}{left_out}\n"


def write_report(trace: Trace, directory: str | os.PathLike[str]) -> list[Path]:
    """Write the report files into ``directory`` (made if missing) and return their paths, ``index.md`` last.

    summary.txt, summary.json, trace.ipt, operations.csv, timeline.png, trace.pftrace, liveness.png, tile_memory.png and
    index.md, which says what each holds. Files the trace has no data for are left out, and the index says so. All is
    written into a temporary folder beside ``directory`` that is then renamed, so that a report is there whole or not at
    all (see :func:`~.staging.staged`); files of an earlier report that no longer apply are removed.

    Raises:
        OSError: the folder cannot be written; it then holds what it held before.
    """
    folder = Path(directory)
    items = _items(trace)
    names = [name for name, _, _ in items]
    with staged(folder) as temporary:
        for name, _, write in items:
            write(trace, temporary / name)
        (temporary / "index.md").write_text(_index(trace, items), encoding="utf-8")
    for name in _OPTIONAL:
        if name not in names:
            (folder / name).unlink(missing_ok=True)
    return [folder / name for name in (*names, "index.md")]
