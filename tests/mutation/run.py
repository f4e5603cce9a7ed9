"""Mutation testing: random small faults in the rooms, and which of them the tests notice.

    python tests/mutation/run.py record                      # once: which test runs which line, and how long it takes
    python tests/mutation/run.py run --seed 1 --count 200    # results/mutation/seed-1.csv
    python tests/mutation/run.py run --again results/mutation/seed-1.csv --seconds 60
    python tests/mutation/run.py run --at ipuperf/simulation/rows.py:139 ipuperf/lowering/lower.py:264

Every mutant lives in a child of one warm process: pytest and what ipuperf stands on are imported once, ipuperf itself
in the child, where the changed tree takes the place of one file. Nothing is ever written into the checkout but
``results/``. A mutant meets only tests that run its line, at most ``--seconds`` of them by the record: the fastest case
of each test function first, then the second fastest of each, and so on, until one fails.
"""

import argparse
import csv
import importlib
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mutants import Mutant, mutants_of, mutated

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "mutation"
BESIDE = "ipuperf"
"""The room of the files beside the rooms."""
FLOORS = ("frontends", "tools")
"""Folders of rooms."""
ROOMS = (
    BESIDE,
    *sorted(
        package.parent.relative_to(ROOT / "ipuperf").as_posix()
        for pattern in ("*", *(f"{floor}/*" for floor in FLOORS))
        for package in (ROOT / "ipuperf").glob(f"{pattern}/__init__.py")
        if package.parent.name not in FLOORS
    ),
)
FOLDERS = tuple(sorted({file.parent.name for file in (ROOT / "tests").glob("*/test_*.py")} - {"notebooks", "upstream"}))
"""Folders of tests that are recorded: those that run no kernel and no program of others."""
WARM = ("numpy", "pandas", "simpy", "click", "tqdm", "hypothesis", "matplotlib.pyplot", "importlib.metadata")
WARM_IF_INSTALLED = ("torch", "torch.export", "tensorflow", "tf_keras")
"""What the children share."""

KILLED = ("killed", "time")
HEAVY = ("--heavy",)
NOT_LOADED = 99
"""Exit code of a child in which nobody imported the mutant: its tests say nothing about it."""
FOLDER_SECONDS = 3600
"""Wall time after which the tests of a folder count as hanging."""


@dataclass(frozen=True)
class Result:
    """A row of the table: the mutant, how it ended and by what.

    Ends are ``killed``, ``time``, ``survived``, ``no test`` and ``not loaded``.
    """

    file: str
    number: int
    line: int
    last: int
    kind: str
    before: str
    after: str
    importing: bool
    statement: int
    end: str
    test: str
    tests: int
    cpu: float

    def mutant(self) -> Mutant:
        return Mutant(*(getattr(self, field.name) for field in fields(Mutant)))


# -- which test runs which line ----------------------------------------------------------------------------------------


class Recorder:
    """A pytest plug-in: the lines of each test as a context of their own, its seconds of CPU if it passes.

    A test that finds its plan in a cache runs no line of the planner: each function of tests starts with empty ones.
    """

    def __init__(self, folder: Path) -> None:
        from coverage import Coverage

        self.seconds: dict[str, float] = {}
        self.function = ""
        self.file = folder / "seconds.json"
        source = [str(ROOT / "ipuperf")]
        self.coverage = Coverage(data_file=str(folder / "lines"), config_file=False, source=source, messages=False)
        self.coverage.set_option("run:relative_files", True)  # a record serves every checkout

    def pytest_sessionstart(self) -> None:
        self.coverage.start()
        _trace_tensorflow()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterable[None]:
        if item.nodeid.split("[")[0] != self.function:
            self.function = item.nodeid.split("[")[0]
            _forget()
        self.coverage.switch_context(item.nodeid)
        before = time.process_time()
        result = yield
        self.seconds[item.nodeid] = max(self.seconds.get(item.nodeid, 0), time.process_time() - before)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.seconds[report.nodeid] = float("inf")

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        self.file.write_text(json.dumps(self.seconds, indent=0))


def _trace_tensorflow() -> None:
    """Sessions of TensorFlow call functions of Python in threads of their own, which trace nothing unless told to."""
    with suppress(ImportError):
        from tensorflow.python.ops.script_ops import FuncRegistry

        call = FuncRegistry.__call__

        def traced(self: Any, *args: Any) -> Any:
            if sys.gettrace() is None:
                sys.settrace(threading.gettrace())
            return call(self, *args)

        FuncRegistry.__call__ = traced


def _forget() -> None:
    """Empty every cache of a function of ipuperf."""
    for name, module in list(sys.modules.items()):
        if name.startswith("ipuperf"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def record(folders: Sequence[str], options: Sequence[str]) -> None:
    """Run the tests of these folders once each with options of pytest, each into a record of its own.

    :raises SystemExit: naming the folders whose tests could not be collected or hang.
    """
    lost = []
    for folder in folders:
        place = RESULTS / "record" / folder.replace("/", "_")
        place.mkdir(parents=True, exist_ok=True)
        (place / "lines").unlink(missing_ok=True)
        started, child = time.perf_counter(), os.fork()
        if child == 0:
            signal.alarm(FOLDER_SECONDS)
            os._exit(_pytest([*options, str(ROOT / "tests" / folder)], Recorder(place)))
        _, status = os.waitpid(child, 0)
        print(f"{folder}: {time.perf_counter() - started:.0f} s", flush=True)
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) not in _RECORDED:
            lost.append(folder)
    if lost:
        raise SystemExit(f"not recorded, as their tests could not be collected or hang: {', '.join(lost)}")


_RECORDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
"""A test that fails alone is left out; one that cannot be collected takes its folder with it."""


def _pytest(arguments: Sequence[str], *plugins: object) -> int:
    from hypothesis import settings

    settings.register_profile("mutation", derandomize=True, deadline=None, database=None)
    options = [
        "-q",
        "--hypothesis-profile=mutation",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:cov",
        "-W",
        "ignore",
        "--assert=plain",  # pytest's rewriting would load the modules of a checkout on the path, not the mutant
        "--rootdir",
        str(ROOT),
        "--no-header",
        "--tb=no",
    ]
    return int(pytest.main([*options, *arguments], plugins=list(plugins)))


@lru_cache(None)
def _is_there(function: str) -> bool:
    """Whether a test function of a record still stands in its file: pytest would run nothing else beside one that is
    gone, which looks like a killed mutant."""
    file, *_, name = function.split("::")
    return (ROOT / file).is_file() and f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


class Record:
    """What :func:`record` found, of all folders."""

    def __init__(self) -> None:
        from coverage import CoverageData

        self.seconds: dict[str, float] = {}
        self.data = []
        self.known: dict[str, dict[int, set[str]]] = {}
        for place in sorted((RESULTS / "record").iterdir()):
            data = CoverageData(basename=str(place / "lines"))
            data.read()
            self.data.append(data)
            recorded = json.loads((place / "seconds.json").read_text())
            self.seconds.update({test: seconds for test, seconds in recorded.items() if _is_there(test.split("[")[0])})

    def _lines(self, file: str) -> dict[int, set[str]]:
        """The tests that run each line of a file, and pass."""
        if file in self.known:
            return self.known[file]
        found = self.known[file] = defaultdict(set)
        for data in self.data:
            for line, contexts in data.contexts_by_lineno(file).items():
                found[line].update(test for test in contexts if self.seconds.get(test, float("inf")) < float("inf"))
        return found

    def tests(self, mutant: Mutant, seconds: float) -> list[str]:
        """The tests that run the line of a mutant (or else its statement; any line of the file, if it runs on import),
        the quickest case of each function first, ``seconds`` in all."""
        lines = self._lines(mutant.file)
        wanted = lines if mutant.importing else range(mutant.line, mutant.last + 1)
        running = {test for line in wanted for test in lines.get(line, ())} or lines.get(mutant.statement, set())
        chosen, left = [], seconds
        for test in self._in_turns(running):
            if self.seconds[test] <= left or not chosen:
                chosen.append(test)
                left -= self.seconds[test]
        return chosen

    def _in_turns(self, tests: Iterable[str]) -> list[str]:
        """The quickest case of each function, the quickest of them first, then the second of each, and so on."""
        cases: Counter[str] = Counter()
        turns = {}
        for test in sorted(tests, key=lambda test: (self.seconds[test], test)):
            turns[test] = cases[test.split("[")[0]]
            cases[test.split("[")[0]] += 1
        return sorted(turns, key=lambda test: (turns[test], self.seconds[test]))


# -- a mutant in a child -----------------------------------------------------------------------------------------------


class MutantFinder(MetaPathFinder):
    """Finds the mutant where Python looks for its module."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.loaded = mutant, False
        parts = Path(mutant.file).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != self.name:
            return None
        place = str(ROOT / self.mutant.file)
        return spec_from_file_location(name, place, loader=MutantLoader(name, place, self))


class MutantLoader(SourceFileLoader):
    """Loads the changed tree, and tells its finder so."""

    def __init__(self, name: str, place: str, finder: MutantFinder) -> None:
        super().__init__(name, place)
        self.finder = finder

    def get_code(self, fullname: str) -> object:
        self.finder.loaded = True
        return compile(mutated(self.finder.mutant, ROOT), self.path, "exec")


class Chosen:
    """A pytest plug-in: only these tests, in this order; the first that fails goes into the pipe."""

    def __init__(self, tests: Sequence[str], pipe: int) -> None:
        self.place = {test: number for number, test in enumerate(tests)}
        self.pipe = pipe

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda i: self.place[i.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.pipe, report.nodeid.encode()[:4000])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            os.write(self.pipe, f"import of {report.nodeid}".encode()[:4000])


def meet(mutant: Mutant, tests: Sequence[str], seconds: float) -> Result:
    """Let a mutant meet these tests in a child of this process."""
    if not tests:
        return Result(**asdict(mutant), end="no test", test="", tests=0, cpu=0.0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os._exit(_as_mutant(mutant, tests, seconds, writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        test = pipe.read().decode(errors="replace").split("\n")[0]
    _, status = os.waitpid(child, 0)
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    end = "time" if os.WIFSIGNALED(status) else _ENDS.get(os.WEXITSTATUS(status), "killed")
    return Result(**asdict(mutant), end=end, test=test, tests=len(tests), cpu=round(cpu, 2))


_ENDS = {
    int(pytest.ExitCode.OK): "survived",
    int(pytest.ExitCode.NO_TESTS_COLLECTED): "no test",  # the cases of the record are gone
    NOT_LOADED: "not loaded",
}


def _as_mutant(mutant: Mutant, tests: Sequence[str], seconds: float, pipe: int) -> int:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    resource.setrlimit(resource.RLIMIT_CPU, (int(3 * seconds + 20),) * 2)
    signal.alarm(int(15 * seconds + 100))  # for a mutant that waits
    finder = MutantFinder(mutant)
    sys.meta_path.insert(0, finder)
    functions = dict.fromkeys(str(ROOT / test.split("[")[0]) for test in tests)
    try:
        code = _pytest(["-x", *HEAVY, *functions], Chosen(tests, pipe))
    except BaseException as error:
        os.write(pipe, repr(error).encode()[:4000])
        code = 1
    return code if finder.loaded else NOT_LOADED


# -- the table ---------------------------------------------------------------------------------------------------------


def draw(seed: int, count: int, rooms: Sequence[str]) -> list[Mutant]:
    """So many mutants of these rooms by seed, every one as likely as the others."""
    files = sorted(str(file.relative_to(ROOT)) for room in rooms for file in _files(room))
    every = [mutant for file in files for mutant in mutants_of(file, ROOT)]
    return random.Random(seed).sample(every, min(count, len(every)))


def _files(room: str) -> Iterable[Path]:
    if room == BESIDE:
        return [file for floor in ("", *FLOORS) for file in (ROOT / "ipuperf" / floor).glob("*.py")]
    return (ROOT / "ipuperf" / room).rglob("*.py")


def room_of(file: str) -> str:
    """The room of a file of ``ipuperf/``."""
    _, *room, _ = Path(file).parts
    if not room or room in ([floor] for floor in FLOORS):
        return BESIDE
    return "/".join(room[: 2 if room[0] in FLOORS else 1])


def at(places: Sequence[str]) -> list[Mutant]:
    """Every mutant of these lines (``file:line``)."""
    lines = [place.rsplit(":", 1) for place in places]
    return [mutant for file, line in lines for mutant in mutants_of(file, ROOT) if mutant.line == int(line)]


def run(mutants: Sequence[Mutant], table: Path, seconds: float, budget: float) -> list[Result]:
    """Let all meet their tests and write the table row by row; stop when ``budget`` seconds of CPU are used."""
    known, results, used = Record(), [], 0.0
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Result)])
        writer.writeheader()
        for mutant in mutants:
            tests = known.tests(mutant, seconds)
            results.append(meet(mutant, tests, sum(known.seconds[test] for test in tests)))
            writer.writerow(asdict(results[-1]))
            file.flush()
            used += results[-1].cpu
            if used > budget:
                break
    return results


def read(table: Path) -> list[Result]:
    """A table that :func:`run` has written."""
    whole = dict.fromkeys(("number", "line", "last", "statement", "tests"), int)
    whole |= {"cpu": float, "importing": "True".__eq__}
    with table.open(newline="") as file:
        return [Result(**{k: whole.get(k, str)(v) for k, v in row.items()}) for row in csv.DictReader(file)]


def summary(results: Sequence[Result]) -> str:
    """Counts, in all and of each room, and a line for each mutant that lives."""
    ends = Counter(result.end for result in results)
    rooms: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        rooms[room_of(result.file)].append(result)
    lines = [f"{len(results)} mutants, {sum(r.cpu for r in results):.0f} s of CPU: " + str(dict(ends))]
    lines += [
        f"{room:20} {sum(r.end in KILLED for r in drawn):4} of {len(drawn):4} killed"
        for room, drawn in sorted(rooms.items())
    ]
    lines += [
        f"{r.file}:{r.line} [{r.kind}] {r.before} -> {r.after} ({r.end}, {r.tests} tests)"
        for r in sorted(results, key=lambda r: (r.file, r.line))
        if r.end not in KILLED
    ]
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folders", nargs="*", default=FOLDERS, help="folders of tests/ (all)")
    recording.add_argument(
        "--light", action="store_true", help="leave heavy tests out: sooner over, and what falls is a lower bound"
    )
    running = commands.add_parser("run")
    running.add_argument("--seed", type=int, default=1)
    running.add_argument("--count", type=int, default=200)
    running.add_argument("--rooms", nargs="+", default=ROOMS)
    running.add_argument("--seconds", type=float, default=8, help="tests per mutant, in recorded seconds")
    running.add_argument("--budget", type=float, default=900, help="CPU seconds of all children")
    running.add_argument("--again", type=Path, help="a table: only what survived in it")
    running.add_argument("--at", nargs="+", default=(), metavar="FILE:LINE", help="every mutant of these lines")
    running.add_argument("--table", type=Path, help="where the rows go; default: results/mutation/RUN.csv")
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> tuple[list[Mutant], str]:
    """(the mutants that the command line asks for, the name of their table)."""
    if options.at:
        return at(options.at), "lines"
    if options.again:
        survivors = [result.mutant() for result in read(options.again) if result.end not in KILLED]
        return survivors, f"{options.again.stem}-again"
    return draw(options.seed, options.count, options.rooms), f"seed-{options.seed}"


def main() -> None:
    options = _options()
    os.nice(10)
    os.chdir(ROOT)
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    for name in WARM:
        importlib.import_module(name)
    for name in WARM_IF_INSTALLED:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    if options.command == "record":
        record(options.folders, () if options.light else HEAVY)
        return
    mutants, name = _chosen(options)
    started = time.perf_counter()
    print(summary(run(mutants, options.table or RESULTS / f"{name}.csv", options.seconds, options.budget)))
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
