"""``ipuperf run``: where options may stand, how a run ends, and what it says at the end, kept as text."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from rows import Golden

from ipuperf.base.version import __version__
from ipuperf.cli import cli, failures
from ipuperf.cli.run import _finish
from ipuperf.cli.terminal import say
from ipuperf.machine import Machine, load_machine
from ipuperf.runtime.executable import RunOptions
from ipuperf.runtime.figures import figures_of
from ipuperf.runtime.settings import RunSettings
from ipuperf.trace import Trace, TraceError

from .test_cli_kept import GOLDEN, Run, said_by

ARGUMENTS = """\
s.py
s.py a --b -c
--machine pod4 s.py --machine pod16
--clock wall s.py -- --clock mine
--clock walls s.py
s.py --clok wall
s.py --machin=pod4
s.py --no-number
s.py --numbers
s.py --rep x
s.py --repo x
s.py -- --repo x
s.py --debug
s.py --Debug
s.py --strict_memory
s.py -report x
s.py --re
-- s.py --repo x
s.py a -- --clok
--no-numbers s.py
--strict-memory s.py --x

gone.py
.
--machine auto s.py
--machine nosuch s.py
--report file s.py
s.py --reports
s.py ---machine
""".splitlines()


def test_arguments_of_run(ipuperf_here: Run, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "s.py").write_text("import sys, time\nprint(sys.argv[1:], sys.modules['time'] is time)\n")
    (tmp_path / "file").touch()
    golden(said_by(ipuperf_here, tmp_path, [f"run {words}" for words in ARGUMENTS]))


ENDS = {"exits with 3": "raise SystemExit(3)", "exits": "raise SystemExit", "fails": "1 / 0"}
ENDS |= {"interrupted": "raise KeyboardInterrupt"}
ENDS |= {"terminated": "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"}
ENDS |= {"hung up": "import os, signal, time; os.kill(os.getpid(), signal.SIGHUP); time.sleep(9)"}


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs signals")
def test_ends_of_run(ipuperf_here: Run, tmp_path: Path, golden: Golden) -> None:
    """Exit codes and words; afterwards signals do what they did before."""
    kinds = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(kind, signal.SIG_DFL) for kind in kinds]
    said = []
    try:
        for name, text in ENDS.items():
            (tmp_path / "s.py").write_text(f"print('begins')\n{text}\n")
            said += [f"-- {name}", *said_by(ipuperf_here, tmp_path, ["run s.py", "run --debug s.py"])]
        assert [signal.getsignal(kind) for kind in kinds] == [signal.SIG_DFL] * 2
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
    golden([line for line in said if "File" not in line and "^" not in line])


def test_signals_that_are_ignored_or_handled_stay_so() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with failures.ended_by_signals():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            signal.signal(signal.SIGTERM, print)
        assert signal.getsignal(signal.SIGTERM) is print
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with pytest.raises(failures.Ended, match="^SIGTERM$") as ended, failures.ended_by_signals():
            signal.raise_signal(signal.SIGTERM)
        assert ended.value.number == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


class Ran:
    """An executable whose figures are made up."""

    def __init__(self, name: str, trace: str, seconds: float, samples: float | None, simulated: bool = True) -> None:
        self.name, self.trace_name, self.simulated_run_seconds = name, trace, seconds
        self.options, self.is_simulated, self.simulated_run_cycles = RunOptions(samples), simulated, 12_345
        self.unloaded, self.settings, self.seconds_between_calls = False, RunSettings(), 0.0

    def as_called(self) -> Ran:
        return self

    @property
    def machine(self) -> Machine:
        return load_machine("pod4")

    @property
    def trace(self) -> Trace:
        return Trace.load(GOLDEN / "report" / f"{self.trace_name}.ipt")

    def unload(self) -> None:
        self.unloaded = True

    def memory_problems(self) -> list[str]:
        return ["does not fit", "by far"] if "large" in self.name else []


RAN = (Ran("one", "loop", 0.5, 4096), Ran("two", "pipeline", 0.002, None), Ran("three", "sharded", 1e-4, 0.5))
RAN += (Ran("large", "overlapped", 0.0, 3), Ran("fifth", "loop", 1.0, 999.9), Ran("sixth", "loop", 1.0, 1e3))


def test_figures_of_a_run(golden: Golden) -> None:
    golden([line for ran in RAN for line in (f"-- {ran.name}", *figures_of(ran))])


class Kept:
    """A journal."""

    def __init__(self, sessions: bool) -> None:
        self.holds_sessions, self.closed = sessions, False

    def close(self) -> None:
        self.closed = True


@pytest.mark.heavy
@pytest.mark.parametrize("error", [None, TraceError("no room"), OSError(28, "full", "a/file"), KeyError("defect")])
def test_what_is_said_at_the_end(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """Of runs that went well or not, with and without reports, sessions and a journal."""
    asked: list[str] = []

    def write(settings: Any, compiled: bool, written: Callable[[Path], None]) -> None:
        asked.append(f"compiled {compiled}")
        if error is not None:
            raise error
        for number, _ in enumerate(settings.executables):
            written(Path(f"/there/{number}-x"))

    monkeypatch.setattr("ipuperf.runtime.reports.write_reports", write)
    said = []
    for report, code, ended, ran, journal in (
        (None, 0, False, RAN[:2], None),
        (Path("out"), 0, False, RAN, None),
        (Path("out"), 3, False, RAN[3:4], Kept(True)),
        (None, 0, False, (), None),
        (Path("out"), 0, False, (), Kept(False)),
        (None, 143, True, RAN[:1], None),
        (None, 0, False, (Ran("idle", "loop", 1.0, 1, simulated=False),), None),
        (Path("out"), 0, False, RAN[:4], Kept(False)),
        (Path("out"), 0, False, RAN[:5], Kept(True)),
    ):
        for one in ran:
            one.unloaded = False
        settings = SimpleNamespace(executables=list(ran), journal=journal)
        try:
            end = str(_finish(settings, report, code, ended))
        except KeyError:
            end = "the defect's own traceback"
        said += [
            f"-- {report} {code} {[one.name for one in ran]} {asked.pop()}, unloaded {[o.unloaded for o in ran]}: {end}"
        ]
        said += [*capsys.readouterr().err.splitlines(), *([f"closed {journal.closed}"] if journal else [])]
    golden(said)


# -- what no other test meets quickly ----------------------------------------------------------------------------------


def test_versions_and_the_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m ipuperf --version`` ends with 0; outside of a process of its own errors are raised."""
    monkeypatch.delitem(sys.modules, "ipuperf.__main__", raising=False)
    monkeypatch.setattr(sys, "argv", ["ipuperf", "--version"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module("ipuperf.__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"ipuperf, version {__version__}, numbers by NumPy ")
    with pytest.raises(click.UsageError, match="No such command 'fly'"):
        cli.main(["fly"], standalone_mode=False)
    monkeypatch.setattr(cli.commands["machines"], "callback", lambda **options: 7)
    assert cli.main(["machines"], standalone_mode=False) == 7
    for result, code in ((7, 7), ("text", 0), (None, 0)):
        monkeypatch.setattr(cli.commands["machines"], "callback", lambda _result=result, **options: _result)
        with pytest.raises(SystemExit) as end:
            cli.main(["machines"])
        assert end.value.code == code


def test_words_that_cannot_be_written_are_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stream writes into nothing from then on; the other one is written."""

    class Full:
        def __init__(self, number: int) -> None:
            self.number = number

        def write(self, text: str) -> None:
            raise OSError(28, "full")

        def fileno(self) -> int:
            return self.number

    with (tmp_path / "a").open("w") as file, (tmp_path / "b").open("w") as other:
        monkeypatch.setattr(sys, "stdout", Full(file.fileno()))
        monkeypatch.setattr(sys, "stderr", other)
        say("a \x1b word")
        os.write(file.fileno(), b"lost")
    assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("", "ipuperf: a \\x1b word\n")


def test_a_folder_that_is_not_writable(ipuperf_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "kept.csv").touch()
    monkeypatch.setattr(
        os, "access", lambda path, mode: (Path(path).name in ("out", "kept.csv"), mode) != (True, os.W_OK)
    )
    (tmp_path / "x").touch()
    done = ipuperf_here("estimate", "--csv", "x", "--out", "out/f.csv", cwd=tmp_path)
    assert "out/f.csv: the folder out is not writable" in done.stderr
    done = ipuperf_here("estimate", "--csv", "x", "--out", "kept.csv", cwd=tmp_path)
    assert "File 'kept.csv' is not writable" in done.stderr
    assert "an empty text is no path" in ipuperf_here("estimate", "--csv", "", "--out", "f.csv", cwd=tmp_path).stderr


def test_a_run_over_one_that_was_cut_short(ipuperf_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.py").write_text("print('ran')\n")
    monkeypatch.setattr("ipuperf.runtime.reports.unfinished", lambda folder: [folder / "unfinished-1"])
    done = ipuperf_here("run", "--report", "out", "s.py", cwd=tmp_path)
    words = "a run was cut short; 'ipuperf report out --recover' saves what it had done"
    assert done.stderr.splitlines()[0] == f"ipuperf: {tmp_path}/out/unfinished-1: {words}"


def test_a_trace_of_which_little_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(trace: Trace) -> None:
        raise TraceError("too old")

    monkeypatch.setattr("ipuperf.runtime.figures.step_time", fails)
    assert figures_of(RAN[0])[3] == "bound by: not worked out, too old"
    monkeypatch.setattr(Trace, "summary", lambda self: {"memory": {"max_tile": None, "bytes_per_tile": 1}})
    assert len(figures_of(RAN[0])) == 4


def test_the_demo_without_mnist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ipuperf.cli import demo

    images = np.full((3, 28, 28), 255, np.uint8)
    monkeypatch.setattr("ipuperf.datasets.find_mnist", lambda: None)
    digits = {True: (images[:2], np.array([4, 5])), False: (images[:1], np.array([4]))}
    monkeypatch.setattr("ipuperf.datasets.load_digits_28x28", digits.get)
    source, train, test = demo._data()
    assert source.startswith("scikit-learn's digits scaled to 28x28 (MNIST was not found")
    assert (len(train[0]), len(test[0]), train[1].tolist(), test[1].tolist()) == (2, 1, [4, 5], [4])
    assert train[0][0, 0, 0] == pytest.approx((1 - 0.1307) / 0.3081)


def test_a_program_that_runs_again_is_announced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from ipuperf.cli.report import _levers
    from ipuperf.cli.terminal import change_amount, spoken

    trace = Trace.load(GOLDEN / "report" / "loop.ipt")
    assert "run.json" in _levers(tmp_path, trace)
    assert capsys.readouterr() == ("", "")  # nothing says what would run again
    (tmp_path / "run.json").write_text("{}")
    announced = "running the program again, and once more for each change that needs it; files it writes are replaced"
    for quiet in (False, True):
        with spoken():
            change_amount(quiet, False, False)
            assert "run.json" in _levers(tmp_path, trace)
        assert capsys.readouterr() == ("", "" if quiet else f"{announced}\n")


class Bar:
    """A progress bar that keeps what it is told."""

    told: list[str]

    def __init__(self, items: Any = (), **options: Any) -> None:
        self.items, self.n, self.total = items, 0, options.get("total")
        self.shown = not options.get("disable", False)
        Bar.told.append(f"{options}")

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        Bar.told.append(f"{self.n} of {self.total}")

    def __iter__(self) -> Any:
        return iter(self.items)

    def update(self, by: int = 1) -> None:
        self.n += by

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        Bar.told.append(f"{text!r} {refresh}")

    def set_postfix(self, *, refresh: bool = True, **figures: str) -> None:
        Bar.told.append(" ".join([*(f"{name} {value}" for name, value in figures.items()), str(refresh)]))


@pytest.mark.parametrize("terminal", [False, True])
def test_bars(terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """What each command counts, on a terminal alone unless it is told otherwise."""
    from ipuperf.cli import estimate, validate
    from ipuperf.sweep import Sweep, run, run_sweep

    tune = importlib.import_module("ipuperf.tuning.tune")
    Bar.told = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    for module in (importlib.import_module("tqdm"), run, tune):
        monkeypatch.setattr(module, "tqdm", Bar)
    with validate._bar(3, "cases") as move:
        move("A")
        move("B", 7)
    (tmp_path / "in.csv").write_text(
        "kind,target,dtype,partials,pass_,amp,G,M,K,N\nmatmul,mk2,f16,f32,fcfwd,0.6,1,4,4,4\n"
    )
    estimate._table(tmp_path / "in.csv", tmp_path / "out.csv")
    (tmp_path / "s.py").touch()
    sweep = Sweep({"n": (1, 2)}, "s.py", ("{n}",), folder=str(tmp_path))
    monkeypatch.setattr(
        run,
        "in_processes",
        lambda sweep, pieces, jobs: ({**each, "failure": "x", "format": 2} for p in pieces for each in p),
    )
    for progress in (None, True, False):
        run_sweep(sweep, tmp_path / "out", table=None, progress=progress)
    found = SimpleNamespace(
        learn=lambda: iter([3, 2, 0]), run=lambda: iter("ab"), trials=4, best=None, limit=0.00123456, open=[1] * 5000
    )
    for best, hidden in ((None, not terminal), (1, terminal)):
        found.best = best
        tune._run(found, hidden)
    golden(Bar.told)


@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("3", "3")])
def test_blas_has_one_thread_unless_somebody_says_more(
    given: str | None, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", str(given))  # so that it is afterwards as it was before
    if given is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    spec = importlib.util.find_spec("ipuperf.cli.group")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert os.environ["OPENBLAS_NUM_THREADS"] == threads
