"""Frames of the time line while it zooms and moves: how many a second, and what each of them computes."""

import json
from typing import Any

from chromium import Page

_START = """((depth) => {
  const key = (k) => document.dispatchEvent(new KeyboardEvent("keydown", {key: k}));
  key("0");
  for (let n = 0; n < depth; n++) key("w");
})"""

_DRIVE = """(async (pan) => {
  const canvas = document.getElementById("timeline-canvas"), box = canvas.getBoundingClientRect();
  const frame = () => new Promise(requestAnimationFrame), said = document.getElementById("timeline-window").dataset;
  const turned = {clientX: box.left + 700, cancelable: true}, held = {clientY: box.top + 40, pointerId: 1};
  const wheel = (by) => canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: by, ...turned}));
  const drag = (type, x) => canvas.dispatchEvent(new PointerEvent(type, {clientX: x, ...held}));
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


class Frames:
    """Drives the time line of a page, which is shown."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._devtools = page.window.context.new_cdp_session(page.window)
        self._devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def driven(self, *, pan: bool, depth: int) -> tuple[float, float]:
        """Frames a second, and milliseconds that the page's thread computes for one.

        Half a second of moving (``pan``) or of zooming, after ``depth`` steps into the run.
        """
        frames = "Number(document.getElementById('timeline-window').dataset.frames)"
        self._page.run(f"{_START}({depth})")
        before, drawn = self._thread_seconds(), self._page.run(frames)
        rate: float = self._page.run(f"{_DRIVE}({json.dumps(pan)})")
        return rate, 1e3 * (self._thread_seconds() - before) / max(self._page.run(frames) - drawn, 1)

    def _thread_seconds(self) -> float:
        """What the page's main thread has computed so far, whatever else the machine did."""
        metrics: list[dict[str, Any]] = self._devtools.send("Performance.getMetrics")["metrics"]
        return {each["name"]: float(each["value"]) for each in metrics}["TaskDuration"]
