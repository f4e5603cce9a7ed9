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
from chromium import Browser, Page
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

_DRIVE = """(async ({pan, depth}) => {
  const canvas = document.getElementById("timeline-canvas"), box = canvas.getBoundingClientRect();
  const frame = () => new Promise(requestAnimationFrame), said = document.getElementById("timeline-window").dataset;
  const key = (k) => document.dispatchEvent(new KeyboardEvent("keydown", {key: k}));
  const turned = {clientX: box.left + 700, cancelable: true}, held = {clientY: box.top + 40, pointerId: 1};
  const wheel = (by) => canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: by, ...turned}));
  const drag = (type, x) => canvas.dispatchEvent(new PointerEvent(type, {clientX: x, ...held}));
  key("0");
  for (let n = 0; n < depth; n++) key("w");
  for (let n = 0; n < 3; n++) await frame();
  const before = Number(said.frames), begin = performance.now(); let n = 0;
  if (pan) drag("pointerdown", box.left + 700);
  for (; performance.now() - begin < 500; n++) {
    if (pan) drag("pointermove", box.left + 700 + 90 * Math.sin(n / 6));
    else wheel(n % 40 < 20 ? -1 : 1);
    await frame();
  }
  const seconds = (performance.now() - begin) / 1000;
  if (pan) drag("pointerup", box.left + 700);
  return Math.min(n, Number(said.frames) - before) / seconds;
})"""


def measured(browser: Browser, name: str, file: Path) -> dict[str, Any]:
    """The figures of one page."""
    page = browser.open(file, "timeline")
    page.wait("performance.getEntriesByName('first-contentful-paint').length > 0")
    paint, ready = page.run(
        "[performance.getEntriesByName('first-contentful-paint')[0].startTime, performance.getEntriesByName('ready')[0]"
        ".startTime]"
    )
    found = {"name": name, "bytes": file.stat().st_size, "first_paint_s": paint / 1e3, "ready_s": ready / 1e3}
    devtools = page.window.context.new_cdp_session(page.window)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    spent = 0.0
    for way in ("zoom", "pan"):
        worst = float("inf")
        for depth in _DEPTHS:
            driven = [_driven(page, devtools, pan=way == "pan", depth=depth) for _ in range(_STRETCHES)]
            worst = min(worst, max(rate for rate, _ in driven))
            spent = max(spent, min(cycles for _, cycles in driven))
        found[f"{way}_fps"] = worst
    found["frame_cpu_ms"] = spent
    found["console"], found["requests"] = page.problems, page.requests
    page.close()
    return found


def _driven(page: Page, devtools: Any, *, pan: bool, depth: int) -> tuple[float, float]:
    """Frames a second, and milliseconds that the page's thread computes for one."""
    frames = "Number(document.getElementById('timeline-window').dataset.frames)"
    before, drawn = _thread_seconds(devtools), page.run(frames)
    rate: float = page.run(f"{_DRIVE}({json.dumps({'pan': pan, 'depth': depth})})")
    return rate, 1e3 * (_thread_seconds(devtools) - before) / max(page.run(frames) - drawn, 1)


def _thread_seconds(devtools: Any) -> float:
    """What the page's main thread has computed so far, whatever else the machine did."""
    metrics = {each["name"]: float(each["value"]) for each in devtools.send("Performance.getMetrics")["metrics"]}
    return metrics["TaskDuration"]


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
