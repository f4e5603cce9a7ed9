"""Runs that are cut short: signals, ``--recover``, and folders that hold another run's reports."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipuperf.report import folder
from ipuperf.trace import Trace

TWO = """
import os, signal, sys, time
import numpy as np
import popxl
from popxl import ops

def build(size):
    ir = popxl.Ir()
    with ir.main_graph:
        out = popxl.d2h_stream((size,), popxl.float32, "out")
        ops.host_store(out, popxl.variable(np.ones(size, np.float32)) * 2)
    return popxl.Session(ir, "ipu_hw")

for size in {sizes}:
    with build(size) as session:
        session.run()
{end}
"""


def _program(place: Path, end: str = "", sizes: tuple[int, ...] = (4, 8), name: str = "two.py") -> str:
    (place / name).write_text(TWO.format(sizes=sizes, end=end))
    return name


@pytest.fixture(autouse=True)
def few_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without pictures (of runs in this process)."""
    monkeypatch.setattr(folder, "VIEWS", tuple(v for v in folder.VIEWS if v.name in ("summary.txt", "trace.ipt")))


@pytest.fixture(autouse=True)
def signals_of_a_terminal() -> Iterator[None]:
    """Children end by SIGHUP, where pytest itself was started by ``nohup`` too."""
    if not hasattr(signal, "SIGHUP"):
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def _names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


@pytest.mark.heavy
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_signals_end_a_run_as_ctrl_c_does(run_ipuperf: Callable, tmp_path: Path, name: str, code: int) -> None:
    script = _program(tmp_path, f"other = build(2)\nos.kill(os.getpid(), signal.{name})\ntime.sleep(1)\n")
    done = run_ipuperf("run", script, "--report", "out", cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr == f"ipuperf: ended by {name}\nreport: out/0-build\nreport: out/1-build\n"
    assert _names(tmp_path / "out") == ["0-build", "1-build"]


@pytest.mark.heavy
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_terminal_that_is_closed_loses_no_report(
    ipuperf_command: list[str], child_environment: dict[str, str], tmp_path: Path
) -> None:
    # Short sleeps: Python acts only after a sleep on a signal that arrives between its last check and the sleep.
    end = "print('waits', flush=True)\nprint('x')\nfor _ in range(600):\n    time.sleep(0.1)\nprint('not here')\n"
    script = _program(tmp_path, end, (4,))
    ours, theirs = os.openpty()
    words = [*ipuperf_command, "run", "--clock", "wall", script, "--report", "out"]
    child = subprocess.Popen(
        words, cwd=tmp_path, env=child_environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    seen = b""
    while b"waits" not in seen:
        seen += os.read(ours, 1000)
    os.close(ours)
    child.send_signal(signal.SIGHUP)
    assert child.wait(60) == 129
    assert _names(tmp_path / "out") == ["0-build"]


@pytest.mark.heavy
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_what_ignores_a_signal_or_handles_it_goes_on(run_ipuperf: Callable, tmp_path: Path) -> None:
    end = "signal.signal(signal.SIGTERM, lambda *_: print('own'))\nos.kill(os.getpid(), signal.SIGTERM)\n"
    end += "print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)\nos.kill(os.getpid(), signal.SIGHUP)\n"
    (tmp_path / "ignores.py").write_text(
        "import os, signal, sys\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"  # as nohup does
        "from ipuperf.cli import main\nmain()\n"
    )
    script = _program(tmp_path, end, (4,))
    done = subprocess.run(
        [sys.executable, "ignores.py", "run", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "own\nTrue\n"), done.stderr


@pytest.mark.heavy
def test_a_process_that_is_gone_leaves_its_sessions(
    run_ipuperf: Callable, ipuperf_here: Callable, tmp_path: Path
) -> None:
    script = _program(tmp_path, "build(3)\nos._exit(5)\n")
    assert run_ipuperf("run", script, "--report", "out", cwd=tmp_path).returncode == 5
    (journal,) = (tmp_path / "out").iterdir()
    assert journal.name.startswith("unfinished-")
    assert _names(journal) == ["0-build", "1-build", "run.json"]
    told = ipuperf_here("report", "out", cwd=tmp_path)
    assert (told.returncode, "cut short: --recover makes" in told.stderr) == (2, True)
    done = ipuperf_here("report", "out", "--recover", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "report: out/0-build\nreport: out/1-build\n")
    assert _names(tmp_path / "out") == ["0-build", "1-build"]
    for number, report in enumerate(sorted((tmp_path / "out").iterdir())):
        assert _names(report) == ["index.md", "run.json", "summary.txt", "trace.ipt"]
        assert f'"session": {number}' in (report / "run.json").read_text()
        Trace.load(report / "trace.ipt")
    again = ipuperf_here("report", "out", "--recover", cwd=tmp_path)
    assert again.returncode == 2
    assert "out: nothing to recover, no run was cut short" in again.stderr


def test_a_run_that_finished_no_session_is_called_so(
    run_ipuperf: Callable, ipuperf_here: Callable, tmp_path: Path
) -> None:
    (tmp_path / "dies.py").write_text("import os\nos._exit(9)\n")
    assert run_ipuperf("run", "dies.py", "--report", "out", cwd=tmp_path).returncode == 9
    assert [name.partition("-")[0] for name in _names(tmp_path / "out")] == ["unfinished"]
    done = ipuperf_here("report", "out", "--recover", cwd=tmp_path)
    assert (done.returncode, "nothing to recover, no session had finished" in done.stderr) == (2, True)
    assert _names(tmp_path / "out") == []


def test_a_folder_has_the_reports_of_one_run(ipuperf_here: Callable, tmp_path: Path) -> None:
    script = _program(tmp_path)
    assert ipuperf_here("run", script, "--report", "out", cwd=tmp_path).returncode == 0
    (tmp_path / "out" / "1-build" / "notes.txt").write_text("mine")
    _program(tmp_path, sizes=(16,))  # the program has changed and has one session
    assert ipuperf_here("run", script, "--report", "out", cwd=tmp_path).returncode == 0
    assert _names(tmp_path / "out" / "0-build") == ["index.md", "run.json", "summary.txt", "trace.ipt"]
    assert _names(tmp_path / "out" / "1-build") == ["notes.txt"], "what others put there stays"
    broken = tmp_path / script
    broken.write_text("raise SystemExit(3)\n")
    assert ipuperf_here("run", script, "--report", "out", cwd=tmp_path).returncode == 3
    assert "summary.txt" in _names(tmp_path / "out" / "0-build"), "a run without a session replaces nothing"
    other = _program(tmp_path, name="other.py")
    done = ipuperf_here("run", other, "--report", "out", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"out holds reports of {tmp_path / script}: name another folder, or remove it" in done.stderr


def test_a_session_that_cannot_be_kept_does_not_end_the_program(
    ipuperf_here: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, calls = Trace.save, []

    def full_once(trace: Trace, path: Path) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        save(trace, path)

    monkeypatch.setattr(Trace, "save", full_once)
    done = ipuperf_here("run", _program(tmp_path), "--report", "out", cwd=tmp_path)
    assert done.returncode == 0
    line = "ipuperf: 0-build would be lost if the run were cut short: the report cannot be written: No space left on"
    assert done.stderr.splitlines()[0].startswith(line)
    assert _names(tmp_path / "out") == ["0-build", "1-build"]
