"""``ipuperf tune`` on the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.cli import cli

pytest.importorskip("optuna")
SMALL = ["--set", "config.layers=2", "--set", "config.hidden=16", "--set", "config.heads=2", "--set"]
SMALL += ["config.sequence=8", "--set", "config.feed_forward=16", "--set", "config.stages=2", "--factor"]
SMALL += ["config.schedule=popart_pipeline,sequential", "--set", "micro_batch=4"]
SCRIPT = """
import sys
import numpy as np
import popxl
from popxl import ops

print("words of the script")
micro_batch, accumulation = map(int, sys.argv[1:])
ir = popxl.Ir()
ir.num_host_transfers = accumulation
with ir.main_graph:
    stream = popxl.h2d_stream((micro_batch, 8), popxl.float32)
    w = popxl.variable(np.ones((8, 8), np.float32))
    for _ in range(accumulation):
        x = ops.host_load(stream) @ w
popxl.Session(ir, "ipu_hw").__enter__().run({stream: np.zeros((accumulation, micro_batch, 8), np.float32)})
"""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["tune", *arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.heavy
def test_text_and_json() -> None:
    options = ["encoder", "--machine", "pod4", "--global-batch", "64", *SMALL, "--out", "t"]
    code, out, err = call(*options)
    assert code == 0, err
    assert "choice: " in out
    assert "runner-up: " in out
    assert "one step of each factor" in out
    assert f"settings: {Path('t') / 'answer'}" in out
    code, out, _ = call(*options, "--json")
    assert code == 0
    said = json.loads(out)
    assert said == json.loads(Path("t/answer/answer.json").read_text())
    assert said["choice"]["configuration"]["micro_batch"] == 4
    assert said["lowered"] <= said["configurations"]


def test_script() -> None:
    Path("s.py").write_text(SCRIPT)
    code, out, err = call("s.py", "--machine", "pod4", "--global-batch", "8", "--factor", "micro_batch=2,4", "--json",
                          "--", "{micro_batch}", "{accumulation}")  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["choice"]["configuration"]["micro_batch"] == 4
    assert not Path("s-tune/answer/poptorch_options.py").exists()
