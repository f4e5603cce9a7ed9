"""A headless Chromium for pages of reports. It is opened once, shows many pages, and is driven over its debugging pipe.

This module speaks Chrome's DevTools protocol: JSON messages that end with a zero byte, on file descriptors 3 and 4 of
the browser. It needs no driver and no package. The tests of the page, its benchmark and the pictures of the documents
use it.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""Commands of browsers to look for."""

_OPTIONS = (
    "--headless=new",
    # Chromium refuses its sandbox to root, as in containers.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """Return the path of a Chromium; None if none is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(RuntimeError):
    """The browser has ended, does not answer in time, or a script in it failed."""


class Browser:
    """A running browser, as a context manager; ``size`` is the size of its windows in pixels.

    Raises:
        BrowserError: no browser is installed, or it does not start.
    """

    def __init__(self, size: tuple[int, int] = (1366, 768), patience: float = 60.0) -> None:
        path = find_browser()
        if path is None:
            raise BrowserError(f"no browser is installed; one of {', '.join(NAMES)} is needed")
        self.size, self.patience = size, patience
        self._profile = tempfile.TemporaryDirectory(prefix="ipuperf-browser-", ignore_cleanup_errors=True)
        their_input, self._input = _high_pipe()
        self._output, their_output = _high_pipe()

        command = [path, *_OPTIONS, f"--window-size={size[0]},{size[1]}", f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: (os.dup2(their_input, 3), os.dup2(their_output, 4)),
            pass_fds=(3, 4),
        )
        # The browser has its own copies; an end held open here would hide that it has gone.
        os.close(their_input)
        os.close(their_output)
        self._number, self._rest, self._answers = 0, b"", dict[int, dict[str, Any]]()
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and remove what it wrote."""
        os.close(self._input)
        self._process.terminate()
        self._process.wait()
        os.close(self._output)
        self._profile.cleanup()

    def open(self, file: Path, view: str = "", *, scripts: bool = True, size: tuple[int, int] | None = None) -> Page:
        """Open a file in a new page, at the view of that name (``#view``), and return when the page is ready.

        Without ``scripts`` the page is shown as in a browser without JavaScript. A page is ready once it is loaded;
        with scripts, once it has marked itself ready.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Runtime", "Log", "Network", "Page"):
            page.call(f"{domain}.enable")
        width, height = size or self.size
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        if not scripts:
            page.call("Emulation.setScriptExecutionDisabled", value=True)
        page.call("Page.navigate", url=file.resolve().as_uri() + (f"#{view}" if view else ""))
        done = "document.documentElement?.dataset.ready === 'yes'" if scripts else "document.readyState === 'complete'"
        page.wait(f"location.protocol === 'file:' && {done}")
        return page

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Return the reply to a command of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        # A zero byte ends each message of the pipe protocol.
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._input, data) :]
        end = time.monotonic() + self.patience
        while self._number not in self._answers:
            self._read(end, method)
        answer = self._answers.pop(self._number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error'].get('message')}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self, end: float, method: str) -> None:
        """Read the browser's next messages and pass events on to their pages."""
        if not select.select([self._output], [], [], max(end - time.monotonic(), 0))[0]:
            raise BrowserError(f"{method}: no answer in {self.patience:g} s")
        data = os.read(self._output, 1 << 20)
        if not data:
            raise BrowserError(f"{method}: the browser is gone")
        # A read may end in the middle of a message; its beginning waits for the next read.
        *messages, self._rest = (self._rest + data).split(b"\0")
        for text in messages:
            message = json.loads(text)
            # Replies have the number of their command; events have the session of their page.
            if "id" in message:
                self._answers[message["id"]] = message
            elif message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].told(message["method"], message["params"])


class Page:
    """A page in a browser.

    ``problems`` has its errors and console messages. ``requests`` has the addresses it asked for, except its own file
    and data within it.
    """

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target
        self.problems: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the protocol on this page."""
        return self._browser.call(method, self._session, **parameters)

    def told(self, event: str, about: dict[str, Any]) -> None:
        """Record an event."""
        if event == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled":
            self.problems.append(
                " ".join(str(argument.get("value", argument.get("description"))) for argument in about["args"])
            )
        elif event == "Log.entryAdded":
            self.problems.append(about["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            address = about["request"]["url"]
            is_page_itself = about.get("type") == "Document" and address.startswith("file:")
            if not is_page_itself and not address.startswith("data:"):
                self.requests.append(address)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is awaited.

        Raises:
            BrowserError: the expression throws.
        """
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            details = reply["exceptionDetails"]
            raise BrowserError(str(details.get("exception", {}).get("description") or details["text"]))
        return reply["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + self._browser.patience
        while not self.run(condition):
            if time.monotonic() > end:
                raise BrowserError(f"never true: {condition}; on the console: {self.problems}")
            time.sleep(0.02)

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a keyboard does."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def click(self, x: float, y: float) -> None:
        """Click with the mouse at a place of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def wheel(self, x: float, y: float, by: float) -> None:
        """Turn the wheel of the mouse at a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=by)

    def picture(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        """Close the page."""
        self._browser.call("Target.closeTarget", targetId=self._target)


def _high_pipe() -> tuple[int, int]:
    """Make a pipe whose ends stay clear of descriptors 3 and 4, which the browser needs."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
