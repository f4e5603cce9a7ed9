"""``ipuperf run``: arguments, exit codes, notebooks, clocks, reports and machines, from an empty folder."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ipuperf.machine import load_machine
from ipuperf.report.folder import VIEWS
from ipuperf.runtime.script import CLOCKS

DOUBLER = """
import sys, time
import numpy as np
import popxl
from popxl import ops


def build(replicas):
    ir = popxl.Ir(replicas)
    with ir.main_graph:
        x = popxl.variable(np.arange(4, dtype=np.float32), name="x")
        out = popxl.d2h_stream((4,), popxl.float32, "out")
        ops.host_store(out, x * 2)
    return popxl.Session(ir, "ipu_hw"), out


session, out = build(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
with session:
    start = time.perf_counter_ns()
    result = session.run()[out]
    print("ns", time.perf_counter_ns() - start)
print("values", result.tolist())
"""

CLOCK_QUERY_NS = 50  # what asking for the time costs on the simulated host


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A program that doubles four numbers on as many replicas as its argument says and prints the time it saw."""
    path = tmp_path / "doubler.py"
    path.write_text(DOUBLER)
    return path


def _printed(text: str, label: str) -> str:
    return next(line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith(f"{label} "))


def test_arguments_reach_the_script(run_ipuperf: Callable, tmp_path: Path) -> None:
    (tmp_path / "args.py").write_text("import sys\nprint(__name__, sys.argv)\n")
    done = run_ipuperf("run", "args.py", "--", "--epochs", "1", "-x", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "__main__ ['args.py', '--epochs', '1', '-x', '--help']\n"


def test_a_script_finds_its_neighbours_and_leaves_the_folder_alone(ipuperf_here: Callable, tmp_path: Path) -> None:
    place = tmp_path / "programs"
    place.mkdir()
    (place / "neighbour.py").write_text("value = 7\n")
    (place / "program.py").write_text("import neighbour, os\nprint(neighbour.value, os.getcwd())\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = ipuperf_here("run", place / "program.py", cwd=empty)
    assert done.stdout == f"7 {empty}\n"
    assert list(empty.iterdir()) == []


def test_a_failing_script_shows_its_own_traceback_and_exits_with_1(run_ipuperf: Callable, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("def inner():\n    return {}['key']\n\n\nprint('before')\ninner()\n")
    done = run_ipuperf("run", "fails.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == "before\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith('fails.py", line 6, in <module>')
    assert lines[-1] == "KeyError: 'key'"
    assert "ipuperf" not in done.stderr.replace(str(tmp_path), "")


@pytest.mark.parametrize(("code", "expected"), [("3", 3), ("0", 0), ("None", 0), ("'sorry'", 1)])
def test_the_exit_code_is_the_scripts(run_ipuperf: Callable, tmp_path: Path, code: str, expected: int) -> None:
    (tmp_path / "exits.py").write_text(f"import sys\nsys.exit({code})\n")
    done = run_ipuperf("run", "exits.py", cwd=tmp_path)
    assert done.returncode == expected
    assert done.stderr == ("sorry\n" if code == "'sorry'" else "")


# -- notebooks ---------------------------------------------------------------------------------------------------------


def _notebook(*cells: str) -> str:
    def cell(kind: str, text: str) -> dict[str, object]:
        extra = {"outputs": [], "execution_count": None} if kind == "code" else {}
        return {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True), **extra}

    found = [cell("markdown", "# A notebook"), *(cell("code", text) for text in cells)]
    return json.dumps({"cells": found, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def test_a_notebook_runs_like_a_script(ipuperf_here: Callable, tmp_path: Path) -> None:
    (tmp_path / "book.ipynb").write_text(_notebook("%matplotlib inline\nimport popxl", DOUBLER, "print(session.ir)"))
    done = ipuperf_here("run", "book.ipynb", "--", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert _printed(done.stdout, "values") == "[[0.0, 2.0, 4.0, 6.0], [0.0, 2.0, 4.0, 6.0]]"
    assert "%matplotlib inline" in done.stderr


def test_a_failing_notebook_names_the_cell(ipuperf_here: Callable, tmp_path: Path) -> None:
    (tmp_path / "book.ipynb").write_text(_notebook("a = 1", "b = 2\n1 / 0"))
    done = ipuperf_here("run", "book.ipynb", cwd=tmp_path)
    assert done.returncode == 1
    assert 'book.ipynb[cell 2]", line 2' in done.stderr
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


# -- clocks and machines -----------------------------------------------------------------------------------------------


def _run_seconds(report: Path) -> float:
    (run,) = json.loads((report / "summary.json").read_text())["runs"]
    return float(run["seconds"])


@pytest.fixture
def quick_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports whose pictures are not painted, for tests that look at other parts of them."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: Path(path).write_bytes(b"a picture"))


@pytest.mark.heavy
def test_the_simulated_clock_shows_the_duration_of_the_report(
    run_ipuperf: Callable, tmp_path: Path, script: Path
) -> None:
    done = run_ipuperf("run", script.name, "--report", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert _printed(done.stdout, "values") == "[0.0, 2.0, 4.0, 6.0]"
    first = load_machine("gc200-1").host.first_run_seconds  # the report shows a later run
    expected = (_run_seconds(tmp_path / "out" / "0-build") + first) * 1e9 + CLOCK_QUERY_NS
    assert float(_printed(done.stdout, "ns")) == pytest.approx(expected, abs=1)


def test_simulated_time_is_the_same_in_every_run(ipuperf_here: Callable, tmp_path: Path, script: Path) -> None:
    first, second = (ipuperf_here("run", script.name, cwd=tmp_path).stdout for _ in range(2))
    assert first == second
    assert int(_printed(first, "ns")) > 0


@pytest.mark.parametrize("clock", CLOCKS)
def test_the_clock_option_chooses_the_time_module(ipuperf_here: Callable, tmp_path: Path, clock: str) -> None:
    real = clock == "wall"
    (tmp_path / "which.py").write_text(
        "import sys, time\nfrom time import perf_counter\n"
        "print(time is sys.modules['time'], perf_counter is sys.modules['time'].perf_counter)\n"
    )
    done = ipuperf_here("run", "which.py", "--clock", clock, cwd=tmp_path)
    assert done.stdout == f"{real} {real}\n"


def test_sleeping_takes_simulated_time_only(ipuperf_here: Callable, tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text("import time\nt = time.time()\ntime.sleep(86_400)\nprint(time.time() - t)\n")
    done = ipuperf_here("run", "sleeps.py", cwd=tmp_path)
    assert float(done.stdout) == pytest.approx(86_400, abs=1e-3)


@pytest.mark.usefixtures("quick_pictures")
def test_a_machine_of_ones_own_changes_the_time(ipuperf_here: Callable, tmp_path: Path, script: Path) -> None:
    (tmp_path / "my.toml").write_text(
        'extends = "gc200-1"\nname = "slow-host"\n[host]\n'
        'run_overhead = { value = 2, unit = "ms", source = "what if", kind = "assumed" }\n'
    )
    done = ipuperf_here("run", script.name, "--machine", "my.toml", "--report", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "slow-host" in (tmp_path / "out" / "0-build" / "summary.txt").read_text()
    plain = ipuperf_here("run", script.name, "--machine", "gc200-1", cwd=tmp_path)
    difference = int(_printed(done.stdout, "ns")) - int(_printed(plain.stdout, "ns"))
    assert difference == pytest.approx(2e6 - 118e3, abs=2), "run overhead of the preset is 118 us"


@pytest.mark.usefixtures("quick_pictures")
def test_auto_takes_a_machine_that_is_large_enough(ipuperf_here: Callable, tmp_path: Path, script: Path) -> None:
    done = ipuperf_here("run", script.name, "--report", "out", "--", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "0-build" / "summary.json").read_text())["machine"] == "pod4"


@pytest.mark.heavy
def test_too_many_replicas_for_the_machine(run_ipuperf: Callable, tmp_path: Path, script: Path) -> None:
    done = run_ipuperf("run", script.name, "--machine", "gc200-1", "--", "4", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "gc200-1: 4 replicas x 1 IPUs per replica need 4 IPUs, there are 1" in last
    assert "presets that fit: bow-pod4, pod4" in last
    assert 'doubler.py", line 17, in <module>' in done.stderr, "the traceback leads to the line of the program"


# -- reports -----------------------------------------------------------------------------------------------------------

REPORT = {view.name for view in VIEWS if view.name != "pipeline.png"} | {"index.md", "run.json"}  # of one IPU


@pytest.mark.heavy
def test_report_writes_a_folder_per_session(ipuperf_here: Callable, tmp_path: Path, script: Path) -> None:
    script.write_text(DOUBLER + "\nother, _ = build(2)\n")
    done = ipuperf_here("run", script.name, "--report", "a/b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = sorted((tmp_path / "a" / "b").iterdir())
    assert [f.name for f in folders] == ["0-build", "1-build"]
    for folder in folders:
        assert {f.name for f in folder.iterdir()} == REPORT
        assert all(f.stat().st_size > 0 for f in folder.iterdir())
    assert [line for line in done.stderr.splitlines() if line.startswith("report: ")] == [
        f"report: {Path('a', 'b', f.name)}" for f in folders
    ]


@pytest.mark.usefixtures("quick_pictures")
def test_the_trace_of_a_report_can_be_read_and_adds_up(ipuperf_here: Callable, tmp_path: Path, script: Path) -> None:
    from ipuperf.trace import Trace, check

    ipuperf_here("run", script.name, "--report", "out", cwd=tmp_path)
    trace = Trace.load(tmp_path / "out" / "0-build" / "trace.ipt")
    assert check(trace) == []
    assert trace.meta["machine"] == "gc200-1"
    assert trace.seconds(int(trace.columns("runs")["dur"][0])) == pytest.approx(
        _run_seconds(tmp_path / "out" / "0-build")
    )


@pytest.mark.heavy
def test_a_full_disk_is_one_line_and_leaves_no_report(run_ipuperf: Callable, tmp_path: Path, script: Path) -> None:
    """A limit on the size of files stands for the full disk."""
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))"  # (compiled files would be cut, too)
    script.write_text(f"import resource, sys\nsys.dont_write_bytecode = True\n{limit}\n{DOUBLER}")
    done = run_ipuperf("run", script.name, "--report", "a/out", cwd=tmp_path)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert line == f"ipuperf: {tmp_path / 'a' / 'out' / '0-build'}: the report cannot be written: File too large"
    assert [path.name for path in tmp_path.iterdir()] == [script.name]


def test_a_script_without_a_session_has_no_report_and_hears_of_it(ipuperf_here: Callable, tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text("print('ran')\n")
    done = ipuperf_here("run", "prints.py", "--report", "a/out", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert done.stderr == "ipuperf: no report in a/out: the script made no session\n"
    assert [path.name for path in tmp_path.iterdir()] == ["prints.py"]


@pytest.mark.usefixtures("quick_pictures")
def test_the_report_is_where_it_was_asked_for_wherever_the_script_goes(
    ipuperf_here: Callable, tmp_path: Path, script: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    script.write_text(DOUBLER + "\nimport os\nos.chdir('elsewhere')\n")
    done = ipuperf_here("run", script.name, "--report", "out", cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == "report: out/0-build"
    assert {f.name for f in (tmp_path / "out" / "0-build").iterdir()} == REPORT


@pytest.mark.usefixtures("quick_pictures")
def test_a_run_ends_with_six_lines_that_the_report_agrees_with(
    ipuperf_here: Callable, tmp_path: Path, script: Path
) -> None:
    from ipuperf.report import interval, step_time, throughput
    from ipuperf.trace import Trace

    done = ipuperf_here("run", script.name, "--report", "out", cwd=tmp_path)
    time, rate, bounds, bound, memory, report = done.stderr.splitlines()
    trace = Trace.load(tmp_path / "out" / "0-build" / "trace.ipt")
    cycles = int(trace.columns("runs")["dur"][0])
    assert re.fullmatch(rf"build: [\d.]+ .?s a run \({cycles:,} cycles\), simulated on 1 IPU of gc200-1", time)
    assert rate == f"build: {throughput(trace).sentence()}"
    predicted, *ends = (float(text.replace(",", "")) for text in re.findall(r"[\d,.]+(?= runs| to|$)", rate))
    assert predicted == pytest.approx(1 / trace.seconds(cycles), rel=1e-3)
    time_low, time_high = interval(trace).around(trace.seconds(cycles))
    assert ends == pytest.approx([1 / time_high, 1 / time_low], rel=1e-3)
    assert bounds == f"build: measured time {interval(trace).sentence()}"
    assert bound == f"build: {step_time(trace).sentence()}"
    held = trace.summary()["memory"]["max_tile"]
    assert memory.startswith(f"build: peak memory {held['bytes']:,} B on tile {held['tile']} of IPU 0, ")
    assert report == "report: out/0-build"
    alone = ipuperf_here("run", script.name, cwd=tmp_path).stderr.splitlines()
    assert alone == [time, rate, bounds, bound, memory, "report: none, '--report DIR' before the script writes one"]


def test_nothing_is_said_of_what_was_not_simulated_and_of_a_script_that_failed(
    ipuperf_here: Callable, tmp_path: Path, script: Path
) -> None:
    assert ipuperf_here("run", "--clock", "wall", script.name, cwd=tmp_path).stderr == ""
    script.write_text(DOUBLER + "\nraise SystemExit(3)\n")
    done = ipuperf_here("run", script.name, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")


def test_of_many_sessions_the_first_are_listed(ipuperf_here: Callable, tmp_path: Path, script: Path) -> None:
    script.write_text(DOUBLER + "\nfor _ in range(5):\n    with build(1)[0] as session:\n        session.run()\n")
    lines = ipuperf_here("run", script.name, cwd=tmp_path).stderr.splitlines()
    assert len([line for line in lines if " a run (" in line]) == 4
    assert lines[-2] == "... and 2 more sessions"


@pytest.mark.heavy
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_ctrl_c_ends_with_130_and_the_report_of_what_was_compiled(
    run_ipuperf: Callable, tmp_path: Path, script: Path
) -> None:
    script.write_text(
        DOUBLER + "\nother, _ = build(2)\nimport os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background\n"
        "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(1)\n"
    )
    done = run_ipuperf("run", script.name, "--report", "out", cwd=tmp_path)
    assert done.returncode == 130
    assert done.stderr == "ipuperf: interrupted\nreport: out/0-build\n"
    assert {f.name for f in (tmp_path / "out" / "0-build").iterdir()} == REPORT
