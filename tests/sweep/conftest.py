"""Programs to sweep, small enough that processes take longer than they do."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ipuperf.sweep import Sweep, run
from ipuperf.sweep.spec import Configuration
from ipuperf.sweep.work import rows

SCRIPT = """
import argparse
import numpy as np
import popxl
from popxl import ops

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--replicas", type=int, default=1)
parser.add_argument("--twice", action="store_true")
given = parser.parse_args()
ir = popxl.Ir(replication=given.replicas)
with ir.main_graph:
    x = popxl.h2d_stream((4, given.width), popxl.float32, "x")
    y = ops.host_load(x)
    w = popxl.variable(np.random.normal(size=(given.width, given.width)).astype(np.float32), name="w")
    for _ in range(1 + given.twice):
        y = ops.gelu(y @ w)
    out = popxl.d2h_stream(y.shape, y.dtype, "y")
    ops.host_store(out, y)
with popxl.Session(ir, "ipu_hw") as session:
    for _ in range(10):
        print(session.run({x: np.zeros((4, given.width), np.float32)}))
"""

ENCODER = {
    "machine": ("pod4", "pod16", "bow-pod4", "gc200-1"),
    "config.schedule": ("popart_pipeline",),
    "config.stages": (2,),
    "accumulation": (4, 6),
    "recompute": ("none", "standard"),
    "precision": ("f16.16",),
    "optimiser": ("sgd",),
    "io": ("streams",),
    "micro_batch": (1,),
    "config.layers": (2,),
    "config.hidden": (32,),
    "config.heads": (2,),
    "config.sequence": (16,),
    "config.feed_forward": (64,),
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A PopXL program with arguments."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def encoder() -> Sweep:
    """A sweep of the encoder over machines, accumulation and recomputation."""
    return Sweep(ENCODER, model="encoder")


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[Configuration]:
    """No processes are started; the configurations that were run."""
    ran: list[Configuration] = []

    def here(sweep: Sweep, pieces: Sequence[Sequence[Configuration]], jobs: int) -> Iterator[dict[str, Any]]:
        for piece in reversed(pieces):
            ran.extend(piece)
            yield from rows(sweep, piece)

    monkeypatch.setattr(run, "in_processes", here)
    return ran
