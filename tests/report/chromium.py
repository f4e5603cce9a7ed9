"""A headless Chromium for pages of reports, driven by Playwright, for tests, benchmarks and pictures of documents."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""Commands of browsers to look for."""


def find_browser() -> str | None:
    """The path of a Chromium; None if none is installed, or Playwright is not."""
    if importlib.util.find_spec("playwright") is None:
        return None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A running browser, as a context manager; ``size`` is the size of its windows in pixels."""

    def __init__(self, size: tuple[int, int] = (1366, 768), patience: float = 60.0) -> None:
        from playwright.sync_api import sync_playwright

        self.size, self.patience = size, patience
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(
            executable_path=find_browser(), args=["--disable-gpu", "--disable-dev-shm-usage"]
        )

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self._browser.close()
        self._playwright.stop()

    def open(self, file: Path, view: str = "", *, scripts: bool = True) -> Page:
        """Open a file in a new window, at the view of that name (``#view``), and return when it is loaded.

        A page with scripts is loaded once it has marked itself ready.
        """
        width, height = self.size
        window = self._browser.new_page(java_script_enabled=scripts, viewport={"width": width, "height": height})
        window.set_default_timeout(1e3 * self.patience)
        page = Page(window, self.patience)
        window.goto(file.resolve().as_uri() + (f"#{view}" if view else ""))
        if scripts:
            page.wait("document.documentElement.dataset.ready === 'yes'")
        return page


class Page:
    """A page in a browser.

    ``problems`` has its errors and console messages. ``requests`` has the addresses it asked for, except its own file
    and data within it.

    Nothing here waits for a time or for frames. What is read is read once the time line is drawn whole; all else waits
    for a condition, at most ``patience`` seconds.
    """

    def __init__(self, window: Any, patience: float) -> None:
        self.window, self.patience = window, patience
        self.problems: list[str] = []
        self.requests: list[str] = []
        window.on("pageerror", lambda error: self.problems.append(str(error)))
        window.on("console", lambda message: self.problems.append(message.text))
        window.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        is_page_itself = request.is_navigation_request() and request.url.startswith("file:")
        if not is_page_itself and not request.url.startswith("data:"):
            self.requests.append(request.url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited, and what the expression throws is raised."""
        self.wait("document.getElementById('timeline-window')?.dataset.whole !== 'false'")
        return self.window.evaluate(script)

    def wait(self, condition: str) -> None:
        """Wait until an expression is true in the page."""
        self.window.wait_for_function(condition)

    def address(self) -> str:
        """The address, once it says what is shown, and the page shows what it says."""
        self.wait("document.documentElement.dataset.address === location.hash")
        found: str = self.run("location.hash")
        return found

    def until(self, holds: Callable[[], bool]) -> bool:
        """Whether this holds, now or within the patience: for what the browser tells, or what is compared here."""
        end = time.monotonic() + self.patience
        while not (held := holds()) and time.monotonic() < end:
            self.window.wait_for_timeout(10)
        return held

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            self.window.keyboard.press(key)

    def click(self, x: float, y: float) -> None:
        """Click with the mouse at a place of the window."""
        self.window.mouse.click(x, y)

    def wheel(self, x: float, y: float, by: float) -> None:
        """Turn the wheel of the mouse at a place of the window."""
        self.window.mouse.move(x, y)
        self.window.mouse.wheel(0, by)

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return bytes(self.window.screenshot())

    def close(self) -> None:
        """Close the page."""
        self.window.close()
