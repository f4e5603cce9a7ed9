"""``ipuperf.toml``, ``--quiet``, ``--verbose`` and ``--debug``."""

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ipuperf.cli import cli

PROGRAM = """
import sys
import numpy as np
import popxl
from popxl import ops

ir = popxl.Ir()
with ir.main_graph:
    out = popxl.d2h_stream((4,), popxl.float32, "out")
    ops.host_store(out, popxl.variable(np.arange(4, dtype=np.float32)) * 2)
with popxl.Session(ir, "ipu_hw") as session:
    session.run()
print(*sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a program."""
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _ran(*arguments: str, settings: str = "") -> Result:
    Path("ipuperf.toml").write_text(settings)
    return CliRunner().invoke(cli, arguments)


def test_quiet(folder: Path) -> None:
    usual = _ran("run", "program.py", "--machine", "pod4")
    assert len(usual.stderr.splitlines()) == 6, usual.stderr
    assert "simulated on 1 of 4 IPUs of pod4" in usual.stderr
    for quiet in (_ran("-q", "run", "program.py"), _ran("run", "--quiet", "program.py")):
        assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "\n", "")
    report = _ran("-q", "run", "program.py", "--report", "out")
    assert (report.exit_code, report.stderr) == (0, "")
    assert [path.name for path in (folder / "out").iterdir()] == ["0-session"]


def test_verbose(folder: Path) -> None:
    done = _ran("run", "-v", "program.py", settings="[run]\nmachine = 'pod16'\n")
    first, lowered, simulated, *rest = done.stderr.splitlines()
    assert first == "ipuperf: defaults from ipuperf.toml" or first.startswith("ipuperf: session: lowered")
    assert "session: lowered for pod16" in done.stderr
    assert "session: simulated one run: " in done.stderr
    assert "of processor time" in lowered + simulated + first
    assert "of pod16" in rest[0] or "of pod16" in simulated
    # The logger is as it was, for whoever uses the package next.
    assert not logging.getLogger("ipuperf").handlers
    assert logging.getLogger("ipuperf").level == logging.NOTSET


def test_options_behind_the_script_are_the_scripts(folder: Path) -> None:
    done = _ran("run", "program.py", "-q", "--verbose")
    assert done.stdout == "-q --verbose\n"
    assert "runs/s" in done.stderr


def test_debug_shows_where_an_error_is_from(folder: Path) -> None:
    done = _ran("--debug", "machines", "pod5")
    assert done.exit_code == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ipuperf: unknown machine 'pod5'")
    assert "Traceback" not in _ran("machines", "pod5").stderr


def test_settings_are_defaults(folder: Path) -> None:
    done = _ran("run", "program.py", settings="[run]\nmachine = 'bow-pod16'\n")
    assert "on 1 of 16 IPUs of bow-pod16" in done.stderr
    done = _ran("run", "--machine", "pod4", "program.py", settings="[run]\nmachine = 'bow-pod16'\n")
    assert "on 1 of 4 IPUs of pod4" in done.stderr
    for settings in ("quiet = true\n", "[run]\nquiet = true\n"):
        assert _ran("run", "program.py", settings=settings).stderr == ""
    done = _ran("estimate", "matmul", "--m", "8", "--k", "8", "--n", "8", settings="[estimate.matmul]\njson = true\n")
    assert done.stdout.startswith("{")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("quite = true", "unknown key 'quite' (did you mean quiet?); allowed: quiet, verbose, debug, run, "),
        ("quiet = 1", "quiet: 1; allowed: true, false"),
        ("quiet = true\nverbose = true", "--quiet and --verbose; allowed: one of them"),
        ("runs = 1", "unknown key 'runs' (did you mean run?)"),
        ("run = 1", "run: 1; allowed: a table of options"),
        ("[run]\nmachin = 'pod4'", "run: unknown option 'machin' (did you mean machine?); allowed: machine, clock, "),
        ("[run]\nclock = 'real'", "run.clock: 'real' is not one of 'simulated', 'everywhere', 'wall'"),
        ("[run]\nstrict-memory = 'yes'", "run.strict-memory: 'yes'; allowed: true, false"),
        ("[demo]\nstep = 3", "demo: unknown option 'step' (did you mean steps?)"),
        ("[estimate.matmull]\namp = 1", "estimate: unknown option 'matmull' (did you mean matmul?)"),
        ("run =", "not valid TOML: "),
    ],
)
def test_a_wrong_settings_file_is_one_line(settings: str, message: str, folder: Path) -> None:
    done = _ran("run", "program.py", settings=settings)
    (line,) = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (2, "")
    assert line.startswith("ipuperf: ")
    assert message in line
    assert "--quiet" in line or "ipuperf.toml: " in line
