"""The pipelining tutorial's published execution profile (``docs/reference/pipelines.md`` 5) against the simulated
trace.

The figure shows one weight update of ten micro-batches on four IPUs, without offloading and, as IPU 3 sends next to
nothing, with the default output mode. The bounds are those of the issue: bytes and pipeline cycles exact, cycles per
update and per steady pipeline cycle within 10 %, their parts within 20 %.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

UPDATES, MICRO_BATCHES, STAGES, ROWS = 10, 10, 4, 40
CYCLES = MICRO_BATCHES + 2 * STAGES - 2
HOST_BYTES = 125_440
"""Forty images of 28 x 28 float32."""


@pytest.fixture(scope="module")
def model(seeds_folder: Path, installed_front_ends: Callable) -> Any:
    """The document's training model, compiled: its own cells up to the training, without offloading and output mode.
    Time does not depend on the data."""
    (path,) = seeds_folder.glob("002_*.txt")
    cells = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    unwanted = ("import os\n", "train_dataset = ", "train_opts.TensorLocations", "# Warning: impacts performance")
    end = next(number for number, cell in enumerate(cells) if cell.startswith("def train("))
    loaders = next(number for number, cell in enumerate(cells) if "DataLoader(" in cell)
    chosen = [cell for n, cell in enumerate(cells[:end]) if n != loaders and not cell.startswith(unwanted)]
    with installed_front_ends():
        import poptorch

        names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "poptorch": poptorch}
        for cell in chosen:
            exec(cell, names)
        options = names["train_opts"].showCompilationProgressBar(False)
        model = names["get_training_model"](options, names["model"])
        images = UPDATES * MICRO_BATCHES * ROWS
        model.compile(torch.zeros(images, 1, 28, 28), torch.zeros(images, dtype=torch.long))
        return model


@pytest.fixture(scope="module")
def rows(model: Any) -> Any:
    """Every step of every IPU."""
    return model.simulated_trace.expand()


@pytest.fixture(scope="module")
def copies(rows: Any) -> Any:
    """Exchanges between IPUs on IPU 1, which takes part in all: by update, pipeline cycle and direction (activations,
    then gradients)."""
    found = rows[(rows.ipu == 1) & (rows.kind == "link")].sort_values("start")
    assert len(found) == UPDATES * CYCLES * 2
    return found


@pytest.fixture(scope="module")
def ends(copies: Any) -> np.ndarray:
    """When each pipeline cycle is over (its copies are its last step)."""
    return (copies.start + copies.dur).to_numpy().reshape(UPDATES, CYCLES, 2)[:, :, 1]


@pytest.fixture(scope="module")
def steady(rows: Any, ends: np.ndarray) -> dict[int, Any]:
    """A pipeline cycle in the middle of an update, when all stages work: steps by IPU."""
    first, last = ends[UPDATES // 2, 7:9]
    inside = rows[(rows.start >= first) & (rows.start < last)]
    return {ipu: inside[inside.ipu == ipu] for ipu in range(STAGES)}


def test_sixteen_pipeline_cycles(copies: Any) -> None:
    """As many as the bars of inter-IPU copies in the figure; all copies run in every cycle, ramps included."""
    assert CYCLES == 16
    activations, gradients = (copies.iloc[n::2] for n in (0, 1))
    assert set(activations.bytes_in) == set(gradients.bytes_out) == {ROWS * 10 * 12 * 12 * 4}
    assert set(activations.bytes_out) == set(gradients.bytes_in) == {ROWS * 320 * 4}


def test_bytes_between_the_last_stages(rows: Any) -> None:
    link = rows[rows.kind == "link"].groupby("ipu")[["bytes_in", "bytes_out"]].sum() // UPDATES
    assert link.loc[3].tolist() == [640 * 1024, 640 * 1024] == [16 * 40 * 256 * 4] * 2
    assert link.loc[2].tolist() == [16 * (51_200 + 40_960)] * 2


def test_bytes_of_the_host(rows: Any) -> None:
    """Images to IPU 0, labels to IPU 3, nothing to the others; the predictions and the loss once per call."""
    host = rows[rows.kind == "host_mid"].groupby("ipu")[["bytes_in", "bytes_out"]].sum()
    assert host.loc[0].tolist() == [UPDATES * MICRO_BATCHES * HOST_BYTES, 0]
    assert host.loc[3].tolist() == [UPDATES * MICRO_BATCHES * ROWS * 4, ROWS * 10 * 4 + 4]
    assert sorted(host.index) == [0, 3]


def test_cycles_per_update(ends: np.ndarray) -> None:
    per_update = np.diff(ends[:, -1])
    assert len(set(per_update[:-1].tolist())) == 1, "updates are alike once the host has got going"
    assert per_update[-1] == pytest.approx(per_update[0], rel=0.01), "nothing is prepared for an update after the last"
    assert per_update[0] == pytest.approx(1_211_970, rel=0.10)


def test_cycles_of_a_call(model: Any) -> None:
    """Ten updates are ten times the figure's."""
    assert model.cycleCount() / UPDATES == pytest.approx(1_211_970, rel=0.10)


def test_a_steady_pipeline_cycle(ends: np.ndarray) -> None:
    lengths = np.diff(ends[UPDATES // 2])
    full = lengths[CYCLES - MICRO_BATCHES : MICRO_BATCHES - 1]
    assert len(set(full.tolist())) == 1
    assert full[0] == pytest.approx(100_000, rel=0.10)
    assert lengths.max() <= 1.12 * full[0], "while the pipeline fills, slices are asked for later than they are needed"


def test_all_stand_while_the_host_feeds(steady: dict[int, Any]) -> None:
    """``SyncPattern.Full``: 39 k cycles for 125,440 bytes, on all four IPUs."""
    stalls = {
        ipu: int(part[part.kind.isin(("host_begin", "host_mid", "host_end"))].dur.sum()) for ipu, part in steady.items()
    }
    assert len(set(stalls.values())) == 1, stalls
    assert stalls[1] == pytest.approx(39_000, rel=0.20)


def test_compute_of_the_longest_stage(steady: dict[int, Any]) -> None:
    compute = {ipu: int(part[part.kind == "compute"].dur.sum()) for ipu, part in steady.items()}
    assert max(compute, key=lambda ipu: compute[ipu]) == 1
    assert 41_000 * 0.8 <= compute[1] <= 44_000 * 1.2


def test_exchange_between_ipus(steady: dict[int, Any]) -> None:
    """Sync and transfer of the two exchanges of a pipeline cycle, on the longest stage, which nobody waits for."""
    part = steady[1]
    between = part[part.program.astype(str).str.startswith("IpuCopy") & part.kind.isin(("sync_external", "link"))]
    assert len(between) == 4
    assert between.dur.sum() == pytest.approx(7_500, rel=0.20)
