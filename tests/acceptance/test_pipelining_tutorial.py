"""The PopTorch pipelining tutorial (002), its code cells verbatim, under ``ipuperf run`` on MNIST."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PUBLISHED = {"epochs": (95.78, 97.10, 97.80), "test": 98.41}


@pytest.fixture(scope="module")
def cells(seeds_folder: Path) -> list[str]:
    """Bodies of the fenced Python blocks, all of them and in order: they are one program."""
    (path,) = seeds_folder.glob("002_*.txt")
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.S | re.M)


@pytest.fixture(scope="module")
def finished(
    cells: list[str], data_folder: Path, run_ipuperf: Callable, tmp_path_factory: pytest.TempPathFactory
) -> subprocess.CompletedProcess[str]:
    """The program, run from an empty folder, with PyTorch seeded from outside (``sitecustomize``)."""
    pytest.importorskip("torch")
    programs, folder = tmp_path_factory.mktemp("pipelining"), tmp_path_factory.mktemp("empty")
    (programs / "sitecustomize.py").write_text("import torch\n\ntorch.manual_seed(0)\n", encoding="utf-8")
    script = programs / "walkthrough.py"
    script.write_text("\n".join(cells), encoding="utf-8")
    env = {"IPUPERF_DATA": str(data_folder), "PYTHONPATH": str(programs)}
    done: subprocess.CompletedProcess[str] = run_ipuperf("run", script, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list(folder.iterdir()) == []
    return done


def test_cells_are_taken_whole(cells: list[str]) -> None:
    assert len(cells) == 23
    for number, cell in enumerate(cells):
        compile(cell, f"002[{number}]", "exec")
    text = "".join(cells)
    for part in ("class Network(", "def train(", "PipelinedExecution(", "setOptimizerLocation(", "def test("):
        assert part in text


def test_it_prints_what_the_document_shows(finished: subprocess.CompletedProcess[str]) -> None:
    lines = finished.stdout.split("\n")
    assert lines[:3] == ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"]
    assert re.fullmatch(r"Accuracy on test set: \d+\.\d\d%", lines[3])
    assert lines[4:] == [""]
    assert finished.stderr.count("Graph compilation: 100%") >= 2, "one for training, one for inference"


def test_each_epoch_learns(finished: subprocess.CompletedProcess[str]) -> None:
    """Losses and accuracies on the last 4,000 images of each epoch, which the progress bars show."""
    last = re.findall(r"Loss:([\d.]+) \| Accuracy:([\d.]+)%: 100%\|[^|]*\| 15/15", finished.stderr)
    epochs = dict.fromkeys(last)  # a bar is drawn more than once
    losses, accuracies = ([float(pair[n]) for pair in epochs] for n in (0, 1))
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]
    for found, published in zip(accuracies, PUBLISHED["epochs"], strict=True):
        assert found == pytest.approx(published, abs=1.5)


def test_the_test_set(finished: subprocess.CompletedProcess[str]) -> None:
    """At least 97.5 %; published 98.41 %.

    The document seeds nothing: first weights and orders of samples are left to chance. With PyTorch's seeds 0 to 7 this
    program gave 98.45, 98.26, 98.02, 98.43, 98.49, 98.34, 97.98 and 98.38 %; the test takes seed 0.
    """
    (accuracy,) = re.findall(r"Accuracy on test set: ([\d.]+)%", finished.stdout)
    assert float(accuracy) >= 97.5
