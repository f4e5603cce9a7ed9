"""Which tests coverage need not trace, because the others run the same lines and branches.

    python tests/tracing/run.py record   # lines, branches and seconds of each test function, into results/tracing/
    python tests/tracing/run.py choose   # tests/tracing/untraced.txt, from what was recorded

Tracing doubles the time of a test, and most of that time is spent in few tests that run many programs. ``.ci/run`` lets
those named in ``untraced.txt`` run without it (``--untraced``); what they import and what their fixtures do is traced.
A test that is not named there, as every new one, is traced. An old list can only make the figure of coverage too low.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "tracing"
UNTRACED = Path(__file__).with_name("untraced.txt")
_WELL = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
LEAST = 0.1
"""Seconds of CPU below which a function is traced anyhow: the list stays short."""
GIVEN_UP = 1.0
"""So many arcs of its own a function may have for each second and is not traced all the same."""


class Recorder:
    """A pytest plug-in: lines and branches of each test function as a context of its own, its seconds of CPU.

    What is imported on collection and what fixtures do has no context: it is always traced.
    """

    def __init__(self, folder: Path) -> None:
        from coverage import Coverage

        self.seconds: Counter[str] = Counter()
        self.file = folder / "seconds.json"
        arcs = str(folder / "arcs")
        self.coverage = Coverage(data_file=arcs, config_file=False, source_pkgs=["ipuperf"], branch=True)

    def pytest_sessionstart(self) -> None:
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        function = function_of(item.nodeid)
        self.coverage.switch_context(function)
        before = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[function] += time.process_time() - before
            self.coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        self.file.write_text(json.dumps(self.seconds, indent=0))


def function_of(nodeid: str) -> str:
    """A test without its parameters."""
    return nodeid.split("[")[0]


def record_one(folder: str) -> int:
    """Run the tests of this folder, in this process."""
    place = RESULTS / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "arcs").unlink(missing_ok=True)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:cov", "--rootdir", str(ROOT), "--no-header", "--tb=short"]
    return int(pytest.main([*options, "--slow-every", "12", str(ROOT / "tests" / folder)], plugins=[Recorder(place)]))


def rooms() -> list[str]:
    """The folders of tests, the largest first."""
    sizes = {
        path.name: sum(file.stat().st_size for file in path.glob("test_*.py")) for path in (ROOT / "tests").iterdir()
    }
    return sorted(filter(sizes.get, sizes), key=lambda name: -sizes[name])


def record(folders: Iterable[str], jobs: int) -> int:
    """Run the tests of these folders, each in a process of its own; the number of those in which a test failed."""

    def child(folder: str) -> int:
        command = (sys.executable, __file__, "record-one", folder)
        return os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(sys.executable, command, os.environ), 0)[1])

    with ThreadPoolExecutor(jobs) as pool:
        return sum(
            code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) for code in pool.map(child, folders)
        )


class Record:
    """What :func:`record` found.

    Attributes:
        seconds: CPU time of each function, traced.
        arcs: the numbers of its arcs (a line and the one before it, in a file).
        count: how many functions have each arc; imports and fixtures count as one.
    """

    def __init__(self, folder: Path = RESULTS) -> None:
        self.seconds: dict[str, float] = {}
        self.arcs: dict[str, np.ndarray] = {}
        self._numbers: dict[tuple[str, int, int], int] = {}
        always: set[int] = set()
        for place in sorted(folder.iterdir()):
            self.seconds |= json.loads((place / "seconds.json").read_text())
            for function, arcs in self._read(place / "arcs"):
                if function:
                    self.arcs[function] = arcs
                else:
                    always.update(arcs.tolist())
        self.count = np.zeros(len(self._numbers), dtype=np.int64)
        for arcs in (*self.arcs.values(), np.array(sorted(always), dtype=np.int64)):
            self.count[arcs] += 1

    def _read(self, file: Path) -> Iterator[tuple[str, np.ndarray]]:
        """(a function, the numbers of its arcs), of one file of coverage."""
        query = "select path, fromno, tono from arc join file on file.id = file_id where context_id = ?"
        with closing(sqlite3.connect(file)) as data:
            for context, function in data.execute("select id, context from context").fetchall():
                rows = data.execute(query, (context,))
                numbers = (self._numbers.setdefault(row, len(self._numbers)) for row in rows)
                yield function, np.fromiter(numbers, dtype=np.int64)


def choose(record: Record) -> list[str]:
    """The functions that need no tracing, the dearest tried first: those whose arcs others have, that are traced."""
    count, chosen = record.count.copy(), []
    for function in sorted(record.arcs, key=lambda function: (-record.seconds[function], function)):
        arcs, seconds = record.arcs[function], record.seconds[function]
        if seconds < LEAST:
            break
        if (count[arcs] == 1).sum() <= GIVEN_UP * seconds:
            count[arcs] -= 1
            chosen.append(function)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folders", nargs="*", default=rooms(), help="folders of tests/")
    recording.add_argument("--jobs", type=int, default=2)
    commands.add_parser("record-one").add_argument("folder")
    commands.add_parser("choose")
    options = parser.parse_args()
    os.chdir(ROOT)
    if options.command == "record":
        sys.exit(record(options.folders, options.jobs))
    if options.command == "record-one":
        sys.exit(record_one(options.folder))
    found = Record()
    names = choose(found)
    UNTRACED.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
    print(
        f"{len(names)} of {len(found.arcs)} functions, "
        f"{sum(found.seconds[name] for name in names):.0f} of {sum(found.seconds.values()):.0f} s"
    )


if __name__ == "__main__":
    main()
