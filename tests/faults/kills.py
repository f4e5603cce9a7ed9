"""Runs of eight sessions that end at random instants: no finished session may be lost, nothing may be half-written.

    python tests/faults/kills.py --kills 1000

Each run is a child of one warm process. It dies by a signal, by ``os._exit`` or on a disk that gets full; a third of
the folders hold the reports of an earlier run. What is left is checked, then ``ipuperf report --recover`` is.
"""

import collections
import contextlib
import errno
import functools
import io
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import click

from ipuperf.cli import cli
from ipuperf.report import folder
from ipuperf.runtime import reports
from ipuperf.runtime.origin import read_origin
from ipuperf.trace import Trace, TraceError

SESSIONS = 8
PROGRAM = f"""
import os
import numpy as np
import popxl
from popxl import ops

def session_of(size):
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones((size, size), np.float32), name="x")
        out = popxl.d2h_stream((size, size), popxl.float32, "out")
        ops.host_store(out, ops.gelu(x @ x))
    return popxl.Session(ir, "ipu_hw")

finished = int(os.environ["FINISHED"])
for number in range({SESSIONS}):
    with session_of(int(os.environ["BASE"]) + number) as session:
        session.run()
    os.write(finished, b"s")
"""
WAYS = ("SIGKILL", "SIGTERM", "SIGHUP", "exit", "full")
FILES = ("trace.ipt",)
"""Views of the reports of these runs: others would take most of the time and are written the same way."""


@dataclass
class Ended:
    """How a run ended: exit code or minus the signal, and the sessions that had finished before (a full disk: before
    it was full)."""

    code: int
    finished: int


class Runs:
    """Runs of :data:`PROGRAM` below a folder."""

    def __init__(self, place: Path, views: tuple[str, ...] = FILES) -> None:
        self.place, self.script = place, place / "program.py"
        self.script.write_text(PROGRAM)
        folder.VIEWS = tuple(view for view in folder.VIEWS if view.name in views)
        self.files = {view.name for view in folder.VIEWS if view.name != "pipeline.png"} | {"index.md", "run.json"}
        self._warm()
        os.environ["BASE"] = "24"
        assert self.run("earlier", "none", 0) == Ended(0, SESSIONS)
        os.environ["BASE"] = "8"
        began = time.perf_counter()
        assert self.run("whole", "none", 0) == Ended(0, SESSIONS)
        self.seconds = time.perf_counter() - began
        self.traces = {report.name: _trace(report) for report in (place / "whole").iterdir()}
        assert len(self.traces) == SESSIONS

    def _warm(self) -> None:
        """Import what a run imports, for the children."""
        os.environ["BASE"], os.environ["FINISHED"] = "8", str(os.open(os.devnull, os.O_WRONLY))
        with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
            cli.main(["run", str(self.script), "--report", str(self.place / "warm")])

    def run(self, name: str, way: str, at: float) -> Ended:
        """One run into ``place/name`` that ends in this way after ``at`` seconds, or that many writes to the disk."""
        finished, theirs = os.pipe()
        child = os.fork()
        if not child:
            self._child(name, way, at, theirs)
        os.close(theirs)
        if way.startswith("SIG"):
            time.sleep(at)
            os.kill(child, getattr(signal, way))
        _, status = os.waitpid(child, 0)
        with os.fdopen(finished, "rb") as pipe:
            seen = pipe.read().partition(b"F")[0].count(b"s")
        return Ended(os.waitstatus_to_exitcode(status), seen)

    def _child(self, name: str, way: str, at: float, finished: int) -> None:
        try:
            said = os.open(self.place / f"{name}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1), os.dup2(said, 2)
            os.environ["BASE"], os.environ["FINISHED"] = "8", str(finished)
            if way == "exit":
                threading.Timer(at, os._exit, [7]).start()
            elif way == "full":
                _fill_disk(at, finished)
            cli.main(["run", str(self.script), "--report", str(self.place / name)])
        except SystemExit as stop:
            sys.stdout.flush()
            os._exit(stop.code or 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(99)

    # -- what is left --------------------------------------------------------------------------------------------------

    def faults(self, name: str, way: str, ended: Ended) -> list[str]:
        """What is wrong with what a run has left, before and after it is recovered."""
        place, found = self.place / name, []
        journals = list(place.glob("unfinished-*"))
        kept = {path.name: path for journal in journals for path in journal.glob("[0-9]*")}
        whole = {path.name: path for path in place.glob("[0-9]*")}
        if way in ("SIGTERM", "SIGHUP") and ended.code >= 0 and (journals or len(whole) < ended.finished):
            found.append(f"exit code {ended.code} without all reports")
        for session in kept.values():
            if _names(session) != {"trace.ipt", "run.json"} and not self._same(place / session.name):
                found.append(f"{session.name} is half-kept")
        for report in whole.values():
            if not self._whole(report) and not journals:
                found.append(f"{report.name} is half-written, and nothing says so")
        for number in range(ended.finished):
            one = next(name for name in self.traces if name.startswith(f"{number}-"))
            if not any(one in these and self._same(these[one]) for these in (kept, whole)):
                found.append(f"{one} is lost")
        if place.exists() and not journals and _names(place) - whole.keys():
            found.append(f"{_names(place) - whole.keys()}, and nothing says what that is")
        return found + (self._recovered(place, ended.finished) if journals else [])

    def _recovered(self, place: Path, finished: int) -> list[str]:
        with contextlib.suppress(reports.ReportFolderError):  # nothing to recover
            reports.recover(place)
        left = _names(place)
        found = [f"{name} is left" for name in left if not re.match(r"\d+-", name)]
        found += [f"{name} is not whole" for name in left if not self._whole(place / name)]
        mixed = finished and not all(self._same(place / name) for name in left)
        return found + ["reports of two runs"] * mixed + ["some are not recovered"] * (len(left) < finished)

    def _same(self, report: Path) -> bool:
        return _trace(report) == self.traces[report.name]

    def _whole(self, report: Path) -> bool:
        """Whether it is a report of the run, or of an earlier one."""
        if _names(report) != self.files or _trace(report) is None:
            return False
        return read_origin(report).script == str(self.script)


def _names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()} if place.exists() else set()


@functools.cache
def _read(content: bytes) -> Trace | None:
    """The trace of a file; equal traces may differ in bytes (strings that nobody has read are kept as they came)."""
    with tempfile.NamedTemporaryFile(suffix=".ipt") as file:
        Path(file.name).write_bytes(content)
        try:
            return Trace.load(file.name)
        except TraceError:
            return None


def _trace(report: Path) -> Trace | None:
    path = report / "trace.ipt"
    return _read(path.read_bytes()) if path.exists() else None


def _fill_disk(writes: float, finished: int) -> None:
    """After so many writes there is no space for files and folders."""
    left = int(writes)

    def limited(write):
        def call(*arguments, **named):
            nonlocal left
            left -= 1
            if left == 0:
                os.write(finished, b"F")
            if left <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))
            return write(*arguments, **named)

        return call

    for owner, name in ((Path, "mkdir"), (Path, "write_text"), (zipfile.ZipFile, "writestr"), (os, "mkdir")):
        setattr(owner, name, limited(getattr(owner, name)))


def check(place: Path, kills: int, seed: int, views: tuple[str, ...] = FILES) -> tuple[collections.Counter, list[str]]:
    """So many runs that end at random instants: how they ended, and what was wrong."""
    rng, runs = random.Random(seed), Runs(place, views)
    counts: collections.Counter = collections.Counter({"ms of a whole run": round(1000 * runs.seconds)})
    wrong = []
    for number in range(kills):
        way, name, earlier = rng.choice(WAYS), f"run-{number}", rng.random() < 1 / 3
        if earlier:
            shutil.copytree(place / "earlier", place / name)
        ended = runs.run(name, way, rng.uniform(1, 250) if way == "full" else rng.uniform(0, 1.05 * runs.seconds))
        counts[f"{way} {ended.code}"] += 1
        counts["finished sessions"] += ended.finished
        counts["cut short within the reports"] += ended.finished == SESSIONS and ended.code != 0
        found = runs.faults(name, way, ended)
        wrong += [f"{name} ({way}, {ended}, earlier: {earlier}): {fault}" for fault in found]
        if not found:
            shutil.rmtree(place / name, ignore_errors=True)
    return counts, wrong


@click.command()
@click.option("--kills", default=1000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--all-views", is_flag=True, help="Whole reports, pictures and all (many times as long).")
def main(kills: int, seed: int, all_views: bool) -> None:
    """Kill runs at random instants and print what was wrong."""
    views = tuple(view.name for view in folder.VIEWS) if all_views else FILES
    place = Path(tempfile.mkdtemp(prefix="ipuperf-kills-"))
    counts, wrong = check(place, kills, seed, views)
    for what, count in sorted(counts.items()):
        print(f"{what:>32} {count}")
    used = os.times()
    print(
        f"{sum((used.user, used.system, used.children_user, used.children_system)):.0f} s of CPU, {len(wrong)} faults"
    )
    print(*wrong[:20], sep="\n")
    if not wrong:
        shutil.rmtree(place)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
