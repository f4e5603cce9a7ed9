"""The page of a report in a browser: its size, when it first shows something, and how smoothly it zooms and pans.

    python benchmarks/pages.py [--traces FOLDER] [--json FILE] [NAME ...]

For each program of ``page_programs.py`` one page is opened in headless Chromium. ``first_paint_s`` and ``ready_s``
count from the begin of loading; frames are those of ``requestAnimationFrame`` while the page's own handlers of wheel
and drag are driven once a frame, over the whole run and zoomed in. Bounds: first paint below 2 s, more than 30 frames
a second (a busy machine gives fewer: ``frame_cpu_ms``, what the page's thread computes for one, is then the figure to
look at), below 5 MB, nothing on the console, no request. Exit code 1 where one is missed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report"))
from chromium import Browser
from frames import Frames
from page_programs import PROGRAMS, trace_of

from ipuperf.report import report_page

BOUNDS: dict[str, float] = {
    "bytes": 5_000_000,
    "first_paint_s": 2.0,
    "zoom_fps": 30.0,
    "pan_fps": 30.0,
    "frame_cpu_ms": 33.0,
}

_DEPTHS = (0, 6, 14)
"""Keys w pressed before: the run, a part of it, single supersteps."""

_STRETCHES = 4
"""Stretches of half a second at each depth; the best counts, as other work on the machine takes its share."""


def measured(browser: Browser, name: str, file: Path) -> dict[str, Any]:
    """The figures of one page."""
    page = browser.open(file, "timeline")
    page.wait("performance.getEntriesByName('first-contentful-paint').length > 0")
    paint, ready = page.run(
        "[performance.getEntriesByName('first-contentful-paint')[0].startTime, performance.getEntriesByName('ready')[0]"
        ".startTime]"
    )
    found = {"name": name, "bytes": file.stat().st_size, "first_paint_s": paint / 1e3, "ready_s": ready / 1e3}
    frames = Frames(page)
    spent = 0.0
    for way in ("zoom", "pan"):
        worst = float("inf")
        for depth in _DEPTHS:
            driven = [frames.driven(pan=way == "pan", depth=depth) for _ in range(_STRETCHES)]
            worst = min(worst, max(rate for rate, _ in driven))
            spent = max(spent, min(cycles for _, cycles in driven))
        found[f"{way}_fps"] = worst
    found["frame_cpu_ms"] = spent
    found["console"], found["requests"] = page.problems, page.requests
    page.close()
    return found


def missed(row: dict[str, Any]) -> list[str]:
    """The bounds that a page does not keep."""
    found = [name for name in ("bytes", "first_paint_s", "frame_cpu_ms") if row[name] >= BOUNDS[name]]
    found += [name for name in ("zoom_fps", "pan_fps") if row[name] <= BOUNDS[name]]
    return found + [name for name in ("console", "requests") if row[name]]


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(PROGRAMS)))
@click.option("--traces", type=click.Path(file_okay=False, path_type=Path), help="Keep traces there, and take them.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures there.")
def main(names: tuple[str, ...], traces: Path | None, target: Path | None) -> None:
    """Measure the pages of these programs (all by default)."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        for name in names or tuple(PROGRAMS):
            trace, file = trace_of(name, traces), Path(folder) / f"{name}.html"
            begin = time.perf_counter()
            file.write_text(report_page(trace), encoding="utf-8")
            rows.append({**measured(browser, name, file), "made_in_s": time.perf_counter() - begin})
            row = rows[-1]
            click.echo(
                f"{name:18} {row['bytes'] / 1e6:6.2f} MB  first paint {row['first_paint_s']:.2f} s  ready "
                f"{row['ready_s']:.2f} s  zoom {row['zoom_fps']:.0f}/s  pan {row['pan_fps']:.0f}/s  computing "
                f"{row['frame_cpu_ms']:.0f} ms a frame  made in "
                f"{row['made_in_s']:.0f} s  missed: {', '.join(missed(row)) or 'nothing'}"
            )
    if target:
        target.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    sys.exit(any(missed(row) for row in rows))


if __name__ == "__main__":
    main()
