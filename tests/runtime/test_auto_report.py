"""``POPLAR_ENGINE_OPTIONS`` with ``autoReport.*``: where a report goes, and what a script for libpva finds there."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.cli import cli
from ipuperf.runtime.auto_report import VARIABLE, EngineOptionsError, report_directory
from ipuperf.runtime.effects import WithoutEffectWarning
from ipuperf.trace import Trace

SCRIPT = """
import os
import numpy as np
import popxl
import pva
from popxl import ops

os.environ["POPLAR_ENGINE_OPTIONS"] = '{"autoReport.all": "true", "autoReport.directory": "mine"}'


def session(rows):
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.ones((rows, 4), np.float32))
        y = ops.matmul(x, popxl.variable(np.ones((4, 4), np.float32)))
        out = popxl.d2h_stream(y.shape, y.dtype)
        ops.host_store(out, y)
    return popxl.Session(ir, "ipu_hw")


for rows in (8, 16):
    with session(rows) as running:
        running.run()
        running.run()
report = pva.openReport("mine/profile.pop")
print("cycles", sum(step.ipus[0].cycles for step in report.execution.steps))
print("bytes", sum(tile.memory.total.includingGaps for tile in report.compilation.tiles))


class Names(pva.ProgramVisitor):
    def visitOnTileExecute(self, program):
        print("compute", program.name)


for step in report.execution.steps:
    step.program.accept(Names())
"""


@pytest.mark.heavy
def test_a_script_finds_its_report_where_it_asked_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    (tmp_path / "script.py").write_text(SCRIPT)
    result = CliRunner().invoke(cli, ["run", "script.py"])
    assert result.exit_code == 0, result.output
    first, second = (Trace.load(tmp_path / "mine" / f"{name}trace.ipt") for name in ("", "1-session/"))
    slices = first.expand()
    assert f"cycles {slices['dur'][slices['program_id'] >= 0].sum()}\n" in result.output
    assert f"bytes {first.table('tile_memory')['bytes'].sum()}\n" in result.output
    assert result.output.count("compute ") == (slices["kind"] == "compute").sum() > 0
    assert f"asks for a report: {tmp_path / 'mine'} (no profile.pop" in result.output
    assert result.output.count("asks for a report") == 2  # one for each session, not for each run
    assert second != first
    assert not list(tmp_path.rglob("*.pop"))


def test_what_asks_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    for options, expected in (
        ({}, None),
        ({"autoReport.all": "true"}, Path(".")),
        ({"autoReport.all": True}, Path(".")),  # as the accelerator of PyTorch Lightning writes it
        ({"autoReport.all": False}, None),
        ({"autoReport.directory": "x"}, None),
        ({"autoReport.directory": "x", "autoReport.outputExecutionProfile": "true"}, Path("x")),
        ({"autoReport.all": "false", "autoReport.directory": "x"}, None),
    ):
        monkeypatch.setenv(VARIABLE, json.dumps(options))
        assert report_directory() == expected
    monkeypatch.delenv(VARIABLE)
    assert report_directory() is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("autoReport.all=true", "is no JSON"),
        ("[1]", "expected a JSON object of strings"),
        ('{"autoReport.all": null}', "expected a JSON object of strings, numbers and truths"),
        ('{"autoReport.all": 2}', "autoReport.all is '2', allowed are 'true' and 'false'"),
        ('{"autoReport.all": "yes"}', "autoReport.all is 'yes', allowed are 'true' and 'false'"),
    ],
)
def test_options_that_cannot_be_read(given: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, given)
    with pytest.raises(EngineOptionsError, match=f"^{VARIABLE}: .*{says}"):
        report_directory()


def test_other_options_of_poplar_say_that_they_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"debug.instrument": 1}')
    with pytest.warns(WithoutEffectWarning, match=f"{VARIABLE}: debug.instrument is without effect"):
        assert report_directory() is None


POPTORCH_SCRIPT = """
import poptorch
import pva
import torch

model = poptorch.inferenceModel(torch.nn.Linear(4, 2))
model(torch.ones(3, 4))
model(torch.ones(3, 4))
print("steps", len(pva.openReport("mine/inference/profile.pop").execution.steps))
"""


@pytest.mark.heavy
def test_models_of_poptorch_have_the_folders_of_upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, '{"autoReport.outputExecutionProfile": "true", "autoReport.directory": "mine"}')
    (tmp_path / "script.py").write_text(POPTORCH_SCRIPT)
    result = CliRunner().invoke(cli, ["run", "script.py"])
    assert result.exit_code == 0, result.output
    slices = Trace.load(tmp_path / "mine" / "inference" / "trace.ipt").expand()
    assert f"steps {(slices['program_id'] >= 0).sum()}\n" in result.output
