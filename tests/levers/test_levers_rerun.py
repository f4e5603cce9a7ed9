"""Running the program of a report again: what has changed since, and what is left as it was."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from levercases import INFERENCE, LOOPED, PIPELINE, Case, cycles_of

from ipuperf.levers import RerunError, rerun_of
from ipuperf.trace import Trace


def test_a_report_says_how_its_program_was_started(case: Case) -> None:
    folder = case.own(LOOPED, 4)
    started = json.loads((folder / "run.json").read_text())
    assert (started["arguments"], started["machine"], started["session"]) == (["4"], "gc200-1", 0)
    assert "[run.json](run.json)" in (folder / "index.md").read_text()


def test_a_program_that_changed_since_is_said_and_nothing_is_simulated(case: Case) -> None:
    folder = case.own(LOOPED, 4)
    path = Path(json.loads((folder / "run.json").read_text())["script"])
    path.write_text(path.read_text() + "# another line\n")
    text = case.why(folder)
    assert f"What would change it was not simulated: {path} has changed since the run; run it again" in text
    path.unlink()
    assert f"{path} cannot be read: No such file or directory" in case.why(folder)


def test_a_module_of_the_program_that_changed_is_seen_by_the_cycles(case: Case, tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text("TIMES = 4\n")
    program = LOOPED.replace("times = int(sys.argv[1])", "from sizes import TIMES as times")
    folder = case.own(program)
    (tmp_path / "sizes.py").write_text("TIMES = 16\n")
    text = case.why(folder)
    assert f"the run took {cycles_of(folder):,}: something that it reads, its machine or ipuperf has changed" in text


def test_a_damaged_start_is_said(case: Case) -> None:
    folder = case.own(INFERENCE)
    for content in ("", "[]", '{"script": 3}', '{"script": "x", "sha256": "y", "more": 1}'):
        (folder / "run.json").write_text(content)
        assert "is not what `ipuperf run` writes" in case.why(folder)


def test_a_program_that_fails_now_is_said(case: Case, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("4")
    program = LOOPED.replace("int(sys.argv[1])", "int(open('data.txt').read())")
    folder = case.own(program)
    (tmp_path / "data.txt").unlink()
    assert "fails: FileNotFoundError" in case.why(folder)


def test_the_session_of_the_report_is_the_one_that_is_simulated(case: Case) -> None:
    twice = LOOPED + "\nfirst = session\n" + INFERENCE
    second = case.own(twice, 4).parent
    folder = sorted(second.iterdir())[1]
    trace = Trace.load(folder / "trace.ipt")
    run = rerun_of(folder, trace)
    assert run.executable.simulated_run_cycles == cycles_of(folder) != cycles_of(sorted(second.iterdir())[0])
    started = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**started, "session": 7}))
    with pytest.raises(RerunError, match=r"makes 2 sessions, the run is of number 7"):
        rerun_of(folder, trace)


@pytest.mark.heavy
def test_a_run_after_new_values_is_rerun_as_one(case: Case) -> None:
    """The report of a program that sets its optimiser in each step is of a call with the run that brings the values."""
    pytest.importorskip("torch")
    scheduled = PIPELINE + (
        "data = torch.randn(count, 784), torch.zeros(count, dtype=torch.long)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.01)\n"
        "for _ in range(3):\n"
        "    model(*data)\n"
        "    optimizer.param_groups[0]['lr'] /= 2\n"
        "    model.setOptimizer(optimizer)\n"
    )
    folder = case.own(scheduled, machine="pod4")
    run = rerun_of(folder, Trace.load(folder / "trace.ipt"))
    assert run.executable.options.values_each_run
    assert run.executable.simulated_run_cycles == cycles_of(folder)


def test_nothing_of_the_process_is_left_changed(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    folder = case.own(LOOPED + "\nprint('said')\n", 4)
    before = os.getcwd(), dict(os.environ), list(sys.argv), list(sys.path)
    rerun_of(folder, Trace.load(folder / "trace.ipt"))
    assert (os.getcwd(), dict(os.environ), list(sys.argv), list(sys.path)) == before
    assert "said" not in capsys.readouterr().out
