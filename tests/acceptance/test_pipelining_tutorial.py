"""The PopTorch pipelining tutorial (002), its code cells verbatim, under ``ipuperf run`` on MNIST.

The quick tests give it a part of MNIST and compare with what PyTorch alone reaches on that part; with all of MNIST it
reaches the published figures (``pytest -m slow``).
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

Finished = subprocess.CompletedProcess[str]
Run = Callable[[Path], Finished]
PUBLISHED = {"epochs": (95.78, 97.10, 97.80), "test": 98.41}


@pytest.fixture(scope="module")
def cells(seeds_folder: Path) -> list[str]:
    """Bodies of the fenced Python blocks, all of them and in order: they are one program."""
    (path,) = seeds_folder.glob("002_*.txt")
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.S | re.M)


@pytest.fixture(scope="module")
def run(cells: list[str], run_ipuperf: Callable, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``run(data)``: the program, run from an empty folder, with PyTorch seeded from outside (``sitecustomize``)."""
    pytest.importorskip("torch")

    def finished(data: Path) -> Finished:
        programs, folder = tmp_path_factory.mktemp("pipelining"), tmp_path_factory.mktemp("empty")
        (programs / "sitecustomize.py").write_text("import torch\n\ntorch.manual_seed(0)\n", encoding="utf-8")
        script = programs / "walkthrough.py"
        script.write_text("\n".join(cells), encoding="utf-8")
        env = {"IPUPERF_DATA": str(data), "PYTHONPATH": str(programs)}
        done: Finished = run_ipuperf("run", script, cwd=folder, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        assert list(folder.iterdir()) == []
        return done

    return finished


@pytest.fixture(scope="module")
def finished(run: Run, part_of_mnist: Path) -> Finished:
    """On a part of MNIST."""
    return run(part_of_mnist)


@pytest.fixture(scope="module")
def finished_on_all(run: Run, data_folder: Path) -> Finished:
    """On all of MNIST, as it was published."""
    return run(data_folder)


def _epochs(finished: Finished, steps: int) -> list[tuple[float, float]]:
    """Loss and accuracy on the last 4,000 images of each epoch, which the progress bars show."""
    last = re.findall(rf"Loss:([\d.]+) \| Accuracy:([\d.]+)%: 100%\|[^|]*\| {steps}/{steps}", finished.stderr)
    return [(float(loss), float(accuracy)) for loss, accuracy in dict.fromkeys(last)]  # a bar is drawn more than once


def _test_accuracy(finished: Finished) -> float:
    (accuracy,) = re.findall(r"Accuracy on test set: ([\d.]+)%", finished.stdout)
    return float(accuracy)


def test_cells_are_taken_whole(cells: list[str]) -> None:
    assert len(cells) == 23
    for number, cell in enumerate(cells):
        compile(cell, f"002[{number}]", "exec")
    text = "".join(cells)
    for part in ("class Network(", "def train(", "PipelinedExecution(", "setOptimizerLocation(", "def test("):
        assert part in text


def test_it_prints_what_the_document_shows(finished: Finished) -> None:
    lines = finished.stdout.split("\n")
    assert lines[:3] == ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"]
    assert re.fullmatch(r"Accuracy on test set: \d+\.\d\d%", lines[3])
    assert lines[4:] == [""]
    assert finished.stderr.count("Graph compilation: 100%") >= 2, "one for training, one for inference"


def test_each_epoch_learns(finished: Finished) -> None:
    """PyTorch alone, on this part, in six orders of samples: losses of the three epochs 0.49 to 0.56, 0.24 to 0.32,
    0.17 to 0.25, accuracies (%) 83.8 to 85.5, 90.8 to 92.6, 92.7 to 95.0; this program: 0.546, 0.270, 0.201 and 85.2,
    92.0, 94.0."""
    epochs = _epochs(finished, 3)
    assert [loss for loss, _ in epochs] == [pytest.approx(loss, abs=0.06) for loss in (0.525, 0.28, 0.21)]
    assert [accuracy for _, accuracy in epochs] == [pytest.approx(found, abs=1.5) for found in (84.7, 91.7, 93.9)]


def test_the_test_set(finished: Finished) -> None:
    """PyTorch alone, on this part, in six orders of samples: 91.1 to 93.3 %; this program: 93.12 %."""
    assert _test_accuracy(finished) == pytest.approx(92.2, abs=1.8)


@pytest.mark.slow
def test_each_epoch_reaches_the_published_accuracy(finished_on_all: Finished) -> None:
    losses, accuracies = zip(*_epochs(finished_on_all, 15), strict=True)
    assert losses[0] > losses[1] > losses[2]
    assert accuracies == tuple(pytest.approx(published, abs=1.5) for published in PUBLISHED["epochs"])


@pytest.mark.slow
def test_the_test_set_has_the_published_accuracy(finished_on_all: Finished) -> None:
    """At least 97.5 %; published 98.41 %.

    The document seeds nothing: first weights and orders of samples are left to chance. With PyTorch's seeds 0 to 7 this
    program gave 98.45, 98.26, 98.02, 98.43, 98.49, 98.34, 97.98 and 98.38 %; the test takes seed 0.
    """
    assert _test_accuracy(finished_on_all) >= 97.5
