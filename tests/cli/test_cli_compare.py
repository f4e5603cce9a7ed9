"""``ipuperf compare``: differences, limits for CI, and what cannot be compared."""

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from ipuperf.cli import cli
from ipuperf.report import compare, comparison_page, comparison_text, comparison_values
from ipuperf.trace import Trace


def saved(path: Path, cycles: int, held: int = 50, **meta: object) -> Path:
    """The trace of one op on one IPU."""
    given = {"machine": "pod4", "clock_hz": 1_000, "tiles_per_ipu": 4, "bytes_per_tile": 100, "num_ipus": 1, **meta}
    tables = {
        "ops": {"op_id": [0], "name": ["layer/MatMul"], "type": ["MatMul"], "graph": ["main"], "phase": ["fwd"],
                "flops": [8], "line": ["m.py:1"], "dtype": [""], "module": ["layer"]},
        "steps": {"segment": [0], "seq": [0], "program_id": [-1], "op_id": [0], "kind": ["compute"], "rel_start": [0],
                  "dur": [cycles], "dur_mean": [6.0], "active_tiles": [3], "argmax_tile": [0], "bytes_in": [0],
                  "bytes_out": [0], "flops": [8], "lane": [0], "loop": [-1]},
        "instances": {"instance": [0], "segment": [0], "ipu": [0], "replica": [0], "micro_batch": [-1],
                      "iteration": [-1], "start": [0], "dur": [cycles], "parent": [0]},
        "runs": {"run": [0], "name": ["run"], "start": [0], "dur": [cycles]},
        "tile_memory": {"ipu": [0], "tile": [0], "category": ["constant"], "bytes": [held]},
    }  # fmt: skip
    Trace(given, tables).save(path)
    return path


def invoked(*words: object):
    return CliRunner().invoke(cli, ["compare", *map(str, words)])


def test_it_says_what_the_functions_say_of_traces_and_of_folders(tmp_path: Path) -> None:
    folder = tmp_path / "0-run"
    folder.mkdir()
    one, two = saved(folder / "trace.ipt", 100), saved(tmp_path / "b.ipt", 150)
    done = invoked(folder, two, "--html", tmp_path / "c.html", "--json", tmp_path / "c.json")
    expected = compare({str(folder): Trace.load(one), str(two): Trace.load(two)})
    files = f"written: {tmp_path / 'c.html'}\nwritten: {tmp_path / 'c.json'}\n"
    assert (done.exit_code, done.output) == (0, comparison_text(expected) + files)
    assert "takes 150 ms, 50.0% longer" in done.output
    assert (tmp_path / "c.html").read_text() == comparison_page(expected)
    assert json.loads((tmp_path / "c.json").read_text()) == comparison_values(expected)


@pytest.mark.parametrize(
    ("cycles", "held", "limit", "code"),
    [(102, 50, "2%", 0), (103, 50, "2%", 1), (100, 52, "2%", 1), (50, 40, "0%", 0), (103, 50, "3.5 %", 0)],
)
def test_growth_beyond_the_limit_exits_with_1(tmp_path: Path, cycles: int, held: int, limit: str, code: int) -> None:
    one, two = saved(tmp_path / "a.ipt", 100), saved(tmp_path / "b.ipt", cycles, held)
    done = invoked(one, saved(tmp_path / "c.ipt", 500), two, "--fail-above", limit)
    assert done.exit_code == code
    assert ("grew by" in done.output) == bool(code)


def test_different_machines_are_said_and_have_no_limit(tmp_path: Path) -> None:
    one, two = saved(tmp_path / "a.ipt", 100), saved(tmp_path / "b.ipt", 100, machine="pod16")
    assert "are of different machines: machine pod4 and pod16" in invoked(one, two).output
    done = invoked(one, two, "--fail-above", "2%")
    assert done.exit_code == 2
    assert "compares runs of one model on one machine" in done.output


def test_a_run_can_be_compared_with_itself_and_be_called_like_a_column(tmp_path: Path, monkeypatch) -> None:
    one = saved(tmp_path / "a.ipt", 100)
    assert "No figure differs." in invoked(one, one).output
    monkeypatch.chdir(tmp_path)
    one.rename("diff")
    assert "./diff (2) takes as long as ./diff" in invoked("diff", "diff").output


def test_bad_runs_are_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, broken, newer = saved(tmp_path / "a.ipt", 100), tmp_path / "broken.ipt", tmp_path / "newer.ipt"
    broken.write_bytes(one.read_bytes()[:200])
    with zipfile.ZipFile(one) as old, zipfile.ZipFile(newer, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "meta.json":
                content = json.dumps({**json.loads(content), "schema_version": 999}).encode()
            new.writestr(name, content)
    for path, words in ((broken, "cannot read trace"), (newer, "999, this ipuperf reads")):
        with pytest.raises(SystemExit) as ended:
            cli.main(["compare", str(one), str(path), "--json", str(tmp_path / "c.json")])
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert words in error
        assert str(path) in error
    assert not (tmp_path / "c.json").exists()
    done = invoked(one)
    assert done.exit_code == 2
    assert "takes at least two" in done.output
    assert invoked(one, tmp_path / "nothing").exit_code == 2
