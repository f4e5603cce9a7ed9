"""``ipuperf report``: the page and the reasons of a run, from its folder or its trace."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.cli import cli
from ipuperf.cli.report import _levers
from ipuperf.report import report_page, why_text
from ipuperf.trace import Trace


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A folder with the trace of a program that does next to nothing."""
    folder = tmp_path / "out" / "0-program"
    folder.mkdir(parents=True)
    meta = {"machine": "pod4", "clock_hz": 1_000, "tiles_per_ipu": 4, "bytes_per_tile": 100, "num_ipus": 1}
    steps = {"segment": [0], "seq": [0], "program_id": [-1], "op_id": [-1], "kind": ["compute"], "rel_start": [0]}
    steps |= {"dur": [9], "dur_mean": [6.0], "active_tiles": [3], "argmax_tile": [0], "bytes_in": [0], "bytes_out": [0]}
    steps |= {"flops": [0], "lane": [0], "loop": [-1]}
    instances = {"instance": [0], "segment": [0], "ipu": [0], "replica": [0], "micro_batch": [-1], "iteration": [-1]}
    instances |= {"start": [0], "dur": [9], "parent": [0]}
    runs = {"run": [0], "name": ["run"], "start": [0], "dur": [9]}
    Trace(meta, {"steps": steps, "instances": instances, "runs": runs}).save(folder / "trace.ipt")
    return folder


def test_the_page_is_written_beside_the_trace_or_where_it_is_wanted(run_folder: Path, tmp_path: Path) -> None:
    trace = Trace.load(run_folder / "trace.ipt")
    result = CliRunner().invoke(cli, ["report", str(run_folder)])
    assert (result.exit_code, result.output) == (0, f"report: {run_folder / 'report.html'}\n")
    assert (run_folder / "report.html").read_text() == report_page(trace)
    other = tmp_path / "page.html"
    assert CliRunner().invoke(cli, ["report", str(run_folder / "trace.ipt"), "--output", str(other)]).exit_code == 0
    assert other.read_text() == report_page(trace)


def test_why_says_it_in_the_terminal_and_writes_nothing(run_folder: Path) -> None:
    result = CliRunner().invoke(cli, ["report", str(run_folder), "--why"])
    said = why_text(Trace.load(run_folder / "trace.ipt"))
    levers = _levers(run_folder, Trace.load(run_folder / "trace.ipt"))
    assert (result.exit_code, result.output) == (0, f"{said}\n{levers}")
    assert "run.json, which says what program made the trace" in result.output
    assert "From the trace alone nothing can be changed; these need the program: sharding" in result.output
    assert "bound by compute: 67 % of the run on IPU 0" in result.output
    assert sorted(path.name for path in run_folder.iterdir()) == ["trace.ipt"]


def test_what_is_no_run_is_one_clear_error(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = CliRunner().invoke(cli, ["report", str(run_folder.parent)])
    assert result.exit_code == 2
    assert "no trace.ipt in this folder; it holds the reports 0-program: name one of them" in result.output
    assert CliRunner().invoke(cli, ["report", str(tmp_path / "nothing")]).exit_code == 2
    broken = tmp_path / "trace.ipt"
    shutil.copy(run_folder / "trace.ipt", broken)
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", str(broken)])
    assert ended.value.code == 2
    assert "cannot read trace" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
