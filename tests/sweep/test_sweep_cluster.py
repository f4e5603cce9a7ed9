"""A Dask cluster that suffers: the table is that of a run in which nothing happened."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd
import pytest

from ipuperf.sweep import Sweep, SweepError, run_sweep
from ipuperf.tools.sweep import cluster as clusters

from .test_sweep_run import same

SLOW = """
import sys, time
import numpy as np
import popxl
from popxl import ops
width, megabytes = map(int, sys.argv[1:])
held = np.ones((megabytes, 131072))
time.sleep(0.3)
ir = popxl.Ir()
with ir.main_graph:
    x = ops.host_load(popxl.h2d_stream((4, width), popxl.float32, "x"))
    ops.host_store(popxl.d2h_stream(x.shape, x.dtype, "y"), ops.gelu(x))
with popxl.Session(ir, "ipu_hw") as session:
    session.run({})
"""


class Cluster:
    """A scheduler and workers, each a process of its own."""

    def __init__(self) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = str(found.getsockname()[1])
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.all: list[subprocess.Popen[bytes]] = []
        self.scheduler = self.schedule()

    def start(self, tool: str, *words: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            f"distributed.cli.dask_{tool}",
            *words,
            "--host",
            "127.0.0.1",
            "--no-dashboard",
        ]
        settings = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "3s", "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "false"}
        environment = {**os.environ, **settings}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.all.append(process)
        return process

    def schedule(self) -> subprocess.Popen[bytes]:
        return self.start("scheduler", "--port", self.port)

    def work(self, *words: str) -> subprocess.Popen[bytes]:
        return self.start("worker", self.address, "--nthreads", "1", *words)

    def wait(self, workers: int) -> None:
        from distributed import Client

        with Client(self.address, timeout=60, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """None of its processes is left, stopped ones included."""
    made = Cluster()
    try:
        yield made
    finally:
        for process in made.all:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def sweep_of(folder: Path, megabytes: int = 1) -> Sweep:
    script = folder / "slow.py"
    script.write_text(SLOW)
    widths = (8, 16, 24, 32, 48, 64)
    factors = {"machine": ("pod4", "bow-pod4"), "width": widths, "megabytes": (megabytes,)}
    return Sweep(factors, str(script), ("{width}", "{megabytes}"))


@contextmanager
def after_rows(out: Path, action: Callable[[], object]) -> Iterator[None]:
    """Does something when the first rows are there."""

    def watch() -> None:
        end = time.monotonic() + 100
        while len(list(out.glob("runs/*/row.json"))) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join()


def killed_worker(made: Cluster) -> None:
    os.killpg(made.all[-1].pid, signal.SIGKILL)


def partitioned_worker(made: Cluster) -> None:
    """It is heard of no more, and is back when others have done its work."""
    os.killpg(made.all[-1].pid, signal.SIGSTOP)
    threading.Timer(6, lambda: os.killpg(made.all[2].pid, signal.SIGCONT)).start()


def lost_scheduler(made: Cluster) -> None:
    os.killpg(made.scheduler.pid, signal.SIGKILL)
    made.scheduler.wait()
    made.schedule()
    made.work("--no-nanny")


@pytest.mark.heavy
@pytest.mark.parametrize("fault", [killed_worker, partitioned_worker, lost_scheduler])
def test_what_happens_to_a_cluster_does_not_show(fault: Callable[[Cluster], None], tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    sweep, out = sweep_of(tmp_path), tmp_path / "out"
    with cluster() as made:
        made.work("--no-nanny")
        made.work("--no-nanny")
        made.wait(2)
        with after_rows(out, lambda: fault(made)):
            found = run_sweep(sweep, out, table=None, jobs=3, scheduler=made.address)
    check(found, sweep, tmp_path)


@pytest.mark.heavy
def test_a_worker_that_is_short_of_memory(tmp_path: Path) -> None:
    """It is killed for each configuration; the worker with more memory runs what the cluster gives up."""
    pytest.importorskip("distributed")
    sweep = sweep_of(tmp_path, 700)
    with cluster() as made:
        made.work("--memory-limit", "600MB", "--nanny")
        made.work("--memory-limit", "4GB", "--nanny")
        made.wait(2)
        found = run_sweep(sweep, tmp_path / "out", table=None, jobs=3, scheduler=made.address)
    check(found, sweep, tmp_path)


@pytest.mark.heavy
def test_a_scheduler_that_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is finished is there, and the others can be run without a cluster."""
    pytest.importorskip("distributed")
    monkeypatch.setattr(clusters, "_RETURN", 1)
    monkeypatch.setattr(clusters, "_PATIENCE", 3)
    sweep, out = sweep_of(tmp_path), tmp_path / "out"
    with cluster() as made:
        made.work("--no-nanny")
        made.wait(1)
        with (
            after_rows(out, lambda: os.killpg(made.scheduler.pid, signal.SIGKILL)),
            pytest.raises(SweepError, match="the same command goes on with what is missing"),
        ):
            run_sweep(sweep, out, table=None, jobs=3, scheduler=made.address)
    assert 2 <= len(list(out.glob("runs/*/row.json"))) < 12
    check(run_sweep(sweep, out, table=None, jobs=1), sweep, tmp_path)


def check(found: pd.DataFrame, sweep: Sweep, folder: Path) -> None:
    """The table is that of an unbroken run in this computer's processes, where nothing failed."""
    unbroken = run_sweep(sweep, folder / "unbroken", table=None, jobs=1)
    assert len(unbroken) == 12
    assert unbroken["failure"].isna().all()
    same(found, unbroken)
