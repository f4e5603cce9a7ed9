"""Processes that are killed, and Dask."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from ipuperf.sweep import Sweep, SweepError, read_table, run_sweep
from ipuperf.sweep.cluster import on_cluster
from ipuperf.sweep.spec import Configuration

from .test_sweep_run import same

SUICIDAL = """
import os, pathlib, signal, sys
name, tries = sys.argv[1:]
if tries != "-":
    mark = pathlib.Path(sys.argv[0]).with_name(f"{name}-{tries}")
    mark.write_text(mark.read_text() + "x" if mark.exists() else "x")
    if len(mark.read_text()) <= int(tries):
        os.kill(os.getpid(), signal.SIGKILL)
raise SystemExit(f"{name} lives")
"""


@pytest.mark.heavy
def test_killed_worker_is_tried_once_more(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(SUICIDAL)
    factors = {"name": ("a",), "tries": ("-", "1", "9")}
    found = run_sweep(Sweep(factors, str(script), ("{name}", "{tries}")), tmp_path / "out", table=None, jobs=1)
    for _, row in found.iterrows():
        wanted = "was killed 2 times (signal 9)" if row["tries"] == "9" else f"{row['name']} lives"
        assert row["failure"].endswith(wanted)
    assert len((tmp_path / "a-9").read_text()) == 2


@pytest.mark.heavy
def test_killed_half_way_and_resumed(tmp_path: Path, script: Path, in_this_process: list[Configuration]) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        'script = "train.py"\narguments = ["--width={width}", "{twice?--twice}"]\n[factors]\n'
        'machine = ["pod4", "bow-pod4"]\nwidth = [8, 12, 16, 24, 32, 48]\ntwice = [true, false]\n'
    )
    command = [sys.executable, "-m", "ipuperf", "sweep", str(file), "--jobs", "1", "--format", "csv", "--out"]
    killed = tmp_path / "killed"
    with subprocess.Popen([*command, str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 120
        while len(list(killed.glob("runs/*/row.json"))) < 6 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    there = len(list(killed.glob("runs/*/row.json")))
    assert 6 <= there < 24
    assert not (killed / "table.csv").exists()
    done = subprocess.run([*command, str(killed)], capture_output=True, text=True, check=True)
    assert "24 configurations, 0 do not fit, 0 failed" in done.stderr
    assert not list(killed.glob("runs/.*"))
    again = run_sweep(file, tmp_path / "whole", table="csv", jobs=1)
    same(read_table(killed / "table.csv"), pd.read_csv(tmp_path / "whole" / "table.csv").astype(again.dtypes))


@pytest.mark.heavy
def test_dask_gives_the_same_table(tmp_path: Path, encoder: Sweep, in_this_process: list[Configuration]) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None, protocol="tcp"
    ) as cluster:
        found = run_sweep(encoder, tmp_path / "dask", table=None, scheduler=cluster.scheduler_address)
    same(found, run_sweep(encoder, tmp_path / "here", table=None, jobs=1))


@pytest.mark.heavy
def test_dask_does_not_answer_with_an_earlier_run(tmp_path: Path) -> None:
    """Another client still holds the rows of the same configurations, and what the script reads has changed."""
    distributed = pytest.importorskip("distributed")
    script, failures = tmp_path / "s.py", []
    script.write_text("import pathlib, sys\nraise SystemExit(pathlib.Path(sys.argv[0]).with_name('word').read_text())")
    sweep = Sweep({"name": ("a",)}, str(script), ("{name}",))
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
    ) as cluster:
        runs = []
        for word in ("earlier", "later"):
            (tmp_path / "word").write_text(word)
            runs.append(on_cluster(sweep, [sweep.configurations()], cluster.scheduler_address))
            failures.append(next(runs[-1])["failure"])
        for run in runs:
            run.close()
    assert [failure.split()[-1] for failure in failures] == ["earlier", "later"]


@pytest.mark.heavy
def test_killed_worker_of_dask(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    import dask

    script = tmp_path / "s.py"
    script.write_text(SUICIDAL)
    sweep = Sweep(
        {"name": ("a", "b"), "tries": ("-", "1", "9")},
        str(script),
        ("{name}", "{tries}"),
        constraints=("tries == '-' or name == 'a'",),
    )
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
    ):
        found = run_sweep(sweep, tmp_path / "out", table=None, jobs=4, scheduler=cluster.scheduler_address)
    wanted = ["a lives", "a lives", "was killed each time", "b lives"]
    assert [text.endswith(end) for text, end in zip(found["failure"], wanted, strict=True)] == [True] * 4
    assert len((tmp_path / "a-9").read_text()) >= 2


def test_unreachable_scheduler(tmp_path: Path, encoder: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("ipuperf.sweep.cluster._PATIENCE", 0.5)
    for address in ("tcp://127.0.0.1:1", "nonsense://x"):
        with pytest.raises(SweepError, match=f"scheduler '{address}' cannot be reached"):
            run_sweep(encoder, tmp_path, table=None, scheduler=address)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SweepError, match=r"pip install 'distributed<.*'pyarrow<"):
        run_sweep(encoder, tmp_path, table=None, scheduler="tcp://127.0.0.1:1")
