"""The headless browser for pages: what it tells of a page, and its errors."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

import ipuperf.testing.browser as module
from ipuperf.testing.browser import Browser, BrowserError, find_browser

PAGE = """<html><head><title>t</title></head><body>
<p id="p">0</p><input id="i">
<script>
const said = document.getElementById("p");
document.body.addEventListener("click", (event) => { said.textContent = "at " + event.clientX; });
document.documentElement.dataset.ready = "yes";
</script></body></html>"""


def test_without_a_browser_it_says_which_are_looked_for(monkeypatch):
    monkeypatch.setattr(module, "find_browser", lambda: None)
    with pytest.raises(BrowserError, match="no browser is installed; one of chromium, "):
        Browser()


@pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")
def test_a_page_is_driven_and_its_problems_are_kept(tmp_path):
    file = tmp_path / "page.html"
    file.write_text(PAGE, encoding="utf-8")
    with Browser((400, 300), patience=60) as browser:
        page = browser.open(file, "view")
        assert page.run("location.hash") == "#view"
        page.click(50, 200)
        page.press("a")
        assert page.run("document.getElementById('p').textContent") == "at 50"
        assert page.run("Promise.resolve(7)") == 7
        assert page.picture().startswith(b"\x89PNG")
        assert (page.problems, page.requests) == ([], [])
        with pytest.raises(BrowserError, match="nothing_of_this_name"):
            page.run("nothing_of_this_name")
        page.run("console.error('bad', 3); fetch('http://localhost:1/x').catch(() => 0); 1")
        for _ in range(500):  # what the browser tells comes when it comes
            if page.problems and page.requests:
                break
            page.run("new Promise((done) => setTimeout(done, 20))")
        assert "bad 3" in page.problems
        assert page.requests == ["http://localhost:1/x"]
        bare = browser.open(file, scripts=False)
        bare.close()
        browser.patience = 0.1
        with pytest.raises(BrowserError, match="never true: false|no answer in 0.1 s"):
            page.wait("false")


# -- a browser that is made up -----------------------------------------------------------------------------------------

MADE_UP = """
import json, os, sys, time
told, rest, asked = open(sys.argv[1], "w"), b"", 0
print(json.dumps(sys.argv[2:]), file=told, flush=True)

def say(**message):
    data = json.dumps(message).encode() + b"\\0"
    os.write(4, data[:5])  # a message comes in pieces
    os.write(4, data[5:])

def event(method, **params):
    say(method=method, params=params, sessionId="S1")

def evaluated(script):
    global asked
    asked += script.startswith("location")
    if script == "throws":
        return {"exceptionDetails": {"text": "plain", "exception": {"description": "described"}}}
    if script == "throws plainly":
        return {"exceptionDetails": {"text": "plain"}}
    if script == "tells":
        event("Runtime.exceptionThrown", exceptionDetails={"text": "Uncaught", "exception": {"description": "a"}})
        event("Runtime.exceptionThrown", exceptionDetails={"text": "Uncaught b", "exception": {}})
        event("Runtime.consoleAPICalled", args=[{"value": 1}, {"description": "an object"}])
        event("Log.entryAdded", entry={"text": "logged"})
        for kind, url in (("Document", "file:///page"), ("Document", "http://a/page"), ("Image", "file:///b.png"),
                          ("Image", "data:x"), ("Document", "data:y")):
            event("Network.requestWillBeSent", request={"url": url}, type=kind)
        event("Page.loadEventFired")
        say(method="Log.entryAdded", params={"entry": {"text": "of another"}}, sessionId="S9")
        say(method="Target.targetCreated", params={})
    return {"result": {} if script == "nothing" else {"value": asked > 2 if script.startswith("location") else script}}

while data := os.read(3, 1 << 16):
    *messages, rest = (rest + data).split(b"\\0")
    for message in map(json.loads, messages):
        print(json.dumps(message), file=told, flush=True)
        method, params = message["method"], message["params"]
        if params.get("expression") == "dies":
            sys.exit()
        if params.get("expression") == "is silent":
            continue
        result = {"Target.createTarget": {"targetId": "T1"}, "Target.attachToTarget": {"sessionId": "S1"},
                  "Page.captureScreenshot": {"data": "iVBORw=="}}.get(method, {})
        if method == "Runtime.evaluate":
            result = evaluated(params["expression"])
        say(id=message["id"], **({"error": {"message": "no such method"}} if method == "Wrong" else {"result": result}))
"""


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """The file that the browser writes what it is told into: its arguments, then the messages."""
    program, told = tmp_path / "program.py", tmp_path / "told"
    program.write_text(MADE_UP)
    command = tmp_path / "bin" / "google-chrome"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{program}" "{told}" "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent))
    return told


def test_what_a_browser_is_told(made_up, tmp_path, golden):
    """Every message, and what comes of the answers."""
    assert find_browser() == str(tmp_path / "bin" / "google-chrome")
    with Browser((40, 30), patience=30) as browser:
        page = browser.open(tmp_path / "a.html", "view", size=(7, 8))
        said = [f"{page.run(script)!r}" for script in ("nothing", "tells", "value")]
        said += [f"problems {page.problems}", f"requests {page.requests}"]
        page.press("a", "Enter")
        page.click(1, 2.5)
        page.wheel(3, 4, -5)
        assert page.picture() == b"\x89PNG"
        for script in ("throws", "throws plainly"):
            with pytest.raises(BrowserError) as caught:
                page.run(script)
            said.append(str(caught.value))
        with pytest.raises(BrowserError, match="^Wrong: no such method$"):
            page.call("Wrong")
        browser.open(tmp_path / "b.html", scripts=False).close()
        profile, process = browser._profile.name, browser._process
        ends = (browser._input, browser._output)
        assert Path(profile).is_dir()
    assert (process.poll() is not None, Path(profile).exists()) == (True, False)
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)
    assert min(ends) >= 10
    told = made_up.read_text().replace(profile, "PROFILE").replace(tmp_path.as_uri(), "file:///THERE")
    golden([*said, *told.splitlines()])


def test_a_browser_that_dies_is_silent_or_never_ready(made_up, tmp_path):
    with Browser((4, 3), patience=30) as browser:
        page = browser.open(tmp_path / "a.html")
        browser.patience = 0.05
        with pytest.raises(BrowserError, match=r"^Runtime.evaluate: no answer in 0.05 s$"):
            page.run("is silent")
        begin = time.monotonic()
        with pytest.raises(BrowserError, match=r"^never true: nothing; on the console: \[\]$"):
            page.wait("nothing")
        assert time.monotonic() - begin < 10
        browser.patience = 30
        with pytest.raises(BrowserError, match=r"^Runtime.evaluate: the browser is gone$"):
            page.run("dies")
