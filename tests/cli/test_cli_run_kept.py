"""``ipuperf run``: where options may stand, how a run ends, and what it says at the end, kept as text."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipuperf.commands import failures
from ipuperf.commands.run import _figures, _finish
from ipuperf.trace import Trace, TraceError

from .test_cli_kept import GOLDEN, HERE, Keep, Run, said_by

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


def test_arguments_of_run(ipuperf_here: Run, tmp_path: Path, kept_lines: Keep) -> None:
    (tmp_path / "s.py").write_text("import sys, time\nprint(sys.argv[1:], sys.modules['time'] is time)\n")
    (tmp_path / "file").touch()
    kept_lines(said_by(ipuperf_here, tmp_path, [f"run {words}" for words in ARGUMENTS]), HERE / "run-arguments.txt")


ENDS = {
    "exits with 3": "raise SystemExit(3)", "exits": "raise SystemExit", "fails": "1 / 0",
    "interrupted": "raise KeyboardInterrupt",
    "terminated": "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)",
    "hung up": "import os, signal, time; os.kill(os.getpid(), signal.SIGHUP); time.sleep(9)",
}  # fmt: skip


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs signals")
def test_ends_of_run(ipuperf_here: Run, tmp_path: Path, kept_lines: Keep) -> None:
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
    kept_lines([line for line in said if "File" not in line and "^" not in line], HERE / "run-ends.txt")


def test_signals_that_are_ignored_or_handled_stay_so() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with failures.ended_by_signals():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            signal.signal(signal.SIGTERM, print)  # type: ignore[arg-type]
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
        self.samples_per_run, self.is_simulated, self.simulated_run_cycles = samples, simulated, 12_345
        self.unloaded = False

    def as_called(self) -> Ran:
        return self

    @property
    def trace(self) -> Trace:
        return Trace.load(GOLDEN / "report" / f"{self.trace_name}.ipt")

    def unload(self) -> None:
        self.unloaded = True

    def memory_problems(self) -> list[str]:
        return ["does not fit", "by far"] if "large" in self.name else []


RAN = (Ran("one", "loop", 0.5, 4096), Ran("two", "pipeline", 0.002, None), Ran("three", "sharded", 1e-4, 0.5),
       Ran("large", "overlapped", 0.0, 3), Ran("fifth", "loop", 1.0, 999.9), Ran("sixth", "loop", 1.0, 1e3),
       )  # fmt: skip


def test_figures_of_a_run(kept_lines: Keep) -> None:
    kept_lines([line for ran in RAN for line in (f"-- {ran.name}", *_figures(ran))], HERE / "run-figures.txt")


class Kept:
    """A journal."""

    def __init__(self, sessions: bool) -> None:
        self.holds_sessions, self.closed = sessions, False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("error", [None, TraceError("no room"), OSError(28, "full", "a/file"), KeyError("defect")])
def test_what_is_said_at_the_end(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kept_lines: Keep
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
        (None, 0, False, RAN[:2], None), (Path("out"), 0, False, RAN, None),
        (Path("out"), 3, False, RAN[3:4], Kept(True)),
        (None, 0, False, (), None), (Path("out"), 0, False, (), Kept(False)), (None, 143, True, RAN[:1], None),
        (None, 0, False, (Ran("idle", "loop", 1.0, 1, simulated=False),), None),
        (Path("out"), 0, False, RAN[:4], Kept(False)),
        (Path("out"), 0, False, RAN[:5], Kept(True)),
    ):  # fmt: skip
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
    kept_lines(said, HERE / f"run-finish-{type(error).__name__}.txt")
