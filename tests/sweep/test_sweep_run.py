"""Sweeps: shared work changes no figure, what is there is not run again, failures stand in the table."""

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rows import Golden

from ipuperf.lowering import Again
from ipuperf.runtime.run_context import RUN
from ipuperf.sweep import Sweep, SweepError, run_sweep
from ipuperf.sweep.spec import Configuration
from ipuperf.sweep.work import rows

from .conftest import ENCODER


def same(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(
        found.drop(columns="took_seconds"), wanted.drop(columns="took_seconds"), check_exact=True
    )


@pytest.mark.heavy
@pytest.mark.parametrize("what", ["encoder", "script"])
def test_sharing_changes_nothing(what: str, encoder: Sweep, script: Path) -> None:
    """The oracle: each configuration alone, in a process that knows no program."""
    of_script = {"machine": ("gc200-1", "pod4", "bow-pod4", "auto"), "replicas": (1, 2), "prefetch_depth": (1, 3)}
    sweep = encoder if what == "encoder" else Sweep(of_script, str(script), ("--replicas={replicas}",))
    every = sweep.configurations()
    together = list(rows(sweep, every))
    for configuration, row in zip(every[::-1], together[::-1], strict=True):
        with RUN.fresh(Again):
            (alone,) = rows(sweep, [configuration])
        took = {"took_seconds": row["took_seconds"]}
        assert {**alone, **took} == row
        assert 0 <= row["took_seconds"] < 600
    assert {row.get("failure") is None for row in together} == {True, False}  # one IPU is too few for some
    assert len({row.get("cycles") for row in together}) > 2


@pytest.mark.heavy
def test_resumed_in_another_order(tmp_path: Path, encoder: Sweep, in_this_process: list[Configuration]) -> None:
    whole = run_sweep(encoder, tmp_path / "whole", table="csv")
    assert len(whole) == len(in_this_process) == 16
    part = replace(encoder, factors={**ENCODER, "accumulation": (6,), "machine": ("bow-pod4", "gc200-1")})
    run_sweep(part, tmp_path / "parts", table=None)
    del in_this_process[:]
    same(run_sweep(encoder, tmp_path / "parts", table="csv"), whole)
    assert len(in_this_process) == 16 - 4
    del in_this_process[:]
    same(run_sweep(encoder, tmp_path / "parts", table="csv"), whole)
    assert not in_this_process
    run_sweep(encoder, tmp_path / "parts", table="csv", retry=True)
    assert {each["machine"] for each in in_this_process} == {"gc200-1"}
    failures = whole[whole["machine"] == "gc200-1"]["failure"]
    assert failures.str.contains("2").all()
    assert whole[whole["machine"] != "gc200-1"]["failure"].isna().all()


@pytest.mark.heavy
def test_what_fails_and_what_does_not_fit(tmp_path: Path, in_this_process: list[Configuration]) -> None:
    factors = {**ENCODER, "machine": ("pod4",), "accumulation": (2, 4), "recompute": ("none", "sometimes")}
    factors |= {"config.schedule": ("popart_pipeline",), "config.hidden": (32, 8192)}
    factors["config.feed_forward"] = (65536,)
    found = run_sweep(Sweep(factors, model="encoder"), tmp_path, table="json").set_index(
        ["accumulation", "recompute", "config.hidden"]
    )
    assert "at least 3" in found.loc[(2, "none", 32), "failure"]
    assert "recompute: 'sometimes'; allowed: none, standard" in found.loc[(4, "sometimes", 32), "failure"]
    assert found.loc[(4, "none", 32), "fits"]
    large = found.loc[(4, "none", 8192)]
    assert not large["fits"]
    assert large["max_tile_bytes"] > large["bytes_per_tile"]
    assert "IPU 0" in large["reason"]


@pytest.mark.heavy
def test_seeds_and_failing_scripts(tmp_path: Path, in_this_process: list[Configuration]) -> None:
    script = tmp_path / "s.py"
    script.write_text(
        "import random, sys, numpy\nraise KeyError(f'{random.random()} {numpy.random.random()} {sys.argv[1:]}')\n"
    )
    sweep = Sweep({"a": (1, 2)}, str(script), ("{a}", "{seed}"), seeds=(0, 1))
    found = run_sweep(sweep, tmp_path / "one", table="csv")["failure"]
    assert list(found) == list(run_sweep(sweep, tmp_path / "two", table="csv")["failure"])
    draws = [text.split("KeyError")[1].split("[")[0] for text in found]
    assert draws[0] == draws[2] != draws[1] == draws[3]
    assert "['2', '1']" in found[3]
    script.write_text("raise ValueError('first line\\nsecond line')\n")
    found = run_sweep(replace(sweep, _hash=""), tmp_path / "three", table="csv")["failure"]
    assert found.str.endswith("s.py fails: ValueError: first line second line").all()
    script.write_text("import popxl\n")
    found = run_sweep(replace(sweep, _hash=""), tmp_path / "one", table="csv")["failure"]
    assert found.str.contains("makes 0 sessions, the run is of number 0").all()


def test_rows_of_another_version(tmp_path: Path, encoder: Sweep, in_this_process: list[Configuration]) -> None:
    one = replace(encoder, factors={**ENCODER, "machine": ("pod4",), "accumulation": (4,)})
    run_sweep(one, tmp_path, table=None)
    file = next((tmp_path / "runs").glob("*/row.json"))
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 7}))
    with pytest.raises(SweepError, match=r"row\.json: of format 7, this version of ipuperf reads 2"):
        run_sweep(one, tmp_path, table=None)
    file.write_text("{")
    with pytest.raises(SweepError, match="delete its folder"):
        run_sweep(one, tmp_path, table=None)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Nothing that is imported meanwhile is kept compiled: Python 3.11 would keep the part that it could write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    keeps = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        sys.dont_write_bytecode = keeps
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_full_disk(tmp_path: Path, encoder: Sweep, in_this_process: list[Configuration], kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    one = replace(encoder, factors={**ENCODER, "machine": ("pod4", "pod16")})
    with files_of_at_most(100), pytest.raises(OSError, match="(?i)file too large"):
        run_sweep(one, tmp_path, table=kind)
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]
    with files_of_at_most(1_000), pytest.raises(OSError, match="(?i)file too large"):
        run_sweep(one, tmp_path, table=kind)
    assert len(list(tmp_path.glob("runs/*"))) == len(list(tmp_path.glob("runs/*/row.json"))) == 8
    assert not list(tmp_path.glob("*table*"))
    assert len(run_sweep(one, tmp_path, table=kind)) == 8
    assert len(in_this_process) == 2 + 8  # the piece that was begun on the full disk, then all


def test_refused(tmp_path: Path, encoder: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SweepError, match="0 jobs"):
        run_sweep(encoder, tmp_path, jobs=0)
    with pytest.raises(SweepError, match="table 'xlsx'; allowed: parquet"):
        run_sweep(encoder, tmp_path, table="xlsx")
    (tmp_path / "file").write_text("")
    with pytest.raises(SweepError, match="the file .* is in the way"):
        run_sweep(encoder, tmp_path / "file", table=None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SweepError, match="a Parquet table needs pyarrow"):
        run_sweep(encoder, tmp_path / "new", table="parquet")
    assert not (tmp_path / "new").exists(), "before any program is built"


@pytest.mark.heavy
def test_figures_of_a_machine_are_those_of_a_file(tmp_path: Path, in_this_process: list[Configuration]) -> None:
    """The oracle: machine files that state the figures."""
    said = {
        "chip.exchange_rate": "[chip]\nexchange_rate = { value = 8, unit = 'bytes/cycle'",
        "ipu_machine.link_bandwidth": "[ipu_machine]\nlink_bandwidth = { value = 256, unit = 'Gbit/s'",
        "host.sync_overhead": "[host]\nsync_overhead = { value = 62, unit = 'us'",
    }
    small = {**ENCODER, "config.schedule": ("sequential",), "accumulation": (4,), "recompute": ("none",)}
    cycles = []
    for key, text in said.items():
        (tmp_path / "m.toml").write_text(f"extends = 'pod4'\n{text}, source = 'x', kind = 'assumed' }}\n")
        multiplied = Sweep({**small, "machine": ("pod4",), f"machine.{key}": (1, 2)}, model="encoder")
        found = run_sweep(multiplied, tmp_path / key, table="csv")
        file = run_sweep(
            Sweep({**small, "machine": ("m.toml",)}, model="encoder", folder=str(tmp_path)),
            tmp_path / f"{key}-file",
            table=None,
        )
        assert found["cycles"][1] == file["cycles"][0] != found["cycles"][0]
        cycles.append(found["cycles"][0])
    assert len(set(cycles)) == 1


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["encoder", "script"])
def test_rows_are_kept(name: str, script: Path, golden: Golden) -> None:
    """Every figure of a row, and what cannot be run."""
    if name == "encoder":
        factors = {**ENCODER, "accumulation": (2, 6), "machine": ("pod4", "gc200-1"), "machine.chip.clock": (1, 2)}
        sweep = Sweep(factors, model="encoder")
    else:
        factors = {"machine": ("pod4", "auto", "gc200-1"), "prefetch_depth": (1, 3, 0), "callback_threads": (1, 4)}
        factors |= {"width": (8, 16)}
        chosen = ("prefetch_depth == 1 or width < 9", "callback_threads < 4 or machine == 'pod4'")
        sweep = Sweep(factors, str(script), ("--width={width}",), constraints=chosen)
    said = []
    for row in rows(sweep, sweep.configurations()):
        kept = {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()}
        varied = [kept.pop(key) for key in sweep.factors]
        said.append(f"{varied} { {key: kept[key] for key in kept if key not in ('took_seconds', 'ipuperf')} }")
    golden([line.replace(str(script.parent), "THERE") for line in said])
