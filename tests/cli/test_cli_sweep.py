"""``ipuperf sweep`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.cli import cli
from ipuperf.sweep import run
from ipuperf.sweep.work import rows

SCRIPT = """
import sys
import popxl
from popxl import ops

ir = popxl.Ir()
with ir.main_graph:
    x = popxl.variable([1.0] * int(sys.argv[1]), popxl.float32)
    for _ in range(len(sys.argv)):
        x = ops.exp(x)
popxl.Session(ir, "ipu_hw").__enter__().run()
"""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "in_processes", lambda sweep, pieces, jobs: (r for p in pieces for r in rows(sweep, p)))
    monkeypatch.chdir(tmp_path)
    Path("s.py").write_text(SCRIPT)


def call(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["sweep", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_script_with_plots_and_drawn_again() -> None:
    plot = "lines:n,cycles,machine"
    code, out, err = call("s.py", "--factor", "machine=pod4,bow-pod4", "--factor", "n=64,100000", "--factor",
                          "more=true,false", "--where", "n > 64 or more", "--format", "csv", "--plot", plot, "--",
                          "{n}", "{more?x}")  # fmt: skip
    assert (code, out) == (0, "table: s-sweep/table.csv\n"), err
    assert "6 configurations, 0 do not fit, 0 failed" in err
    assert Path("s-sweep/plot-0-lines.png").exists()
    code, out, err = call("s-sweep/table.csv", "--plot", plot, "--plot", "pareto:max_tile_bytes,seconds", "--out", ".")
    assert (code, out, err) == (0, "", "plot: plot-0-lines.png\nplot: plot-1-pareto.png\n")


def test_json() -> None:
    code, out, _ = call("s.py", "--factor", "n=4,8", "--json", "--", "{n}")
    assert code == 0
    found = json.loads(out)
    assert [(row["n"], row["fits"], row["failure"]) for row in found] == [(4, True, None), (8, True, None)]
    assert not Path("s-sweep/table.parquet").exists()


def test_nothing_fits() -> None:
    code, out, err = call("s.py", "--factor", "machine=gc200-1", "--factor", "machine.chip.bytes_per_tile=0.004,0.002",
                          "--factor", "n=64,x", "--where", "n == 64 or machine.chip.bytes_per_tile == 0.004",
                          "--format=csv", "--", "{n}")  # fmt: skip
    assert (code, out) == (2, "table: s-sweep/table.csv\n")
    assert "3 configurations, 2 do not fit, 1 failed" in err
    last = err.splitlines()[-1]
    nearest = "machine = gc200-1, machine.chip.bytes_per_tile = 0.004, n = 64, seed = 0"
    assert f"none of 3 configurations fits; the nearest ({nearest}) needs " in last
    assert "of 2,048 bytes on its fullest tile" in last


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("s.py", "--factor", "machine=pod4", "--json", "--", "{m}"), "unknown factor 'm'"),
        (("s.py", "--factor", "n", "--json"), "--factor 'n', allowed: NAME=VALUE"),
        (("s.py", "--factor", "n=4", "--where", "n > 4", "--json", "--", "{n}"), "no configuration of 1 satisfies"),
        (("s.py", "--factor", "n=x,y", "--json", "--", "{n}"), "all 2 configurations failed"),
        (("s.py", "--plot", "lines"), "plot 'lines', allowed"),
        (("nowhere.py",), "nowhere.py"),
        (("t.csv",), "say what with --plot"),
        (("t.csv", "--plot", "lines:n,cycles"), "no table of `ipuperf sweep`"),
        (("t.csv", "--plot", "lines:n,cycles", "--factor", "n=1"), "go with a script"),
        (("t.toml", "--factor", "n=1"), "go with a script"),
        (("t.toml",), "either a script or a model"),
    ],
)
def test_refused(arguments: tuple[str, ...], message: str) -> None:
    Path("t.csv").write_text("a,b\n1,2\n")
    Path("t.toml").write_text("")
    done = CliRunner().invoke(cli, ["sweep", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.replace("\n", " ").split("ipuperf:")) == 2
