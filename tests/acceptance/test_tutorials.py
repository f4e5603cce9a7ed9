"""Tutorials 000, 001 and 003, their code cells verbatim, under ``ipuperf run`` on MNIST: what they print is what the
documents show, and they learn.

The quick tests give them a part of MNIST and compare with what PyTorch alone reaches on that part; with all of MNIST
they reach the published accuracies (``pytest -m slow``).
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from ipuperf.machine import load_machine

pytestmark = pytest.mark.heavy

SAMPLES_PER_STEP = {"train": 8 * 4 * 4, "test": 80}  # micro-batch x gradient accumulation x replicas of tutorial 000
CLOCK_QUERY_SECONDS = 50e-9  # what asking for the time costs on the simulated host
Runs = dict[str, Any]


def _plain(text: str) -> list[str]:
    """Lines that say something, without object addresses and blanks at their ends.

    Variables print as ``Variable[...]``, as the vendor's tests want it; the documents are older and print
    ``Tensor[...]``.
    """
    masked = re.sub(r"0x[0-9a-f]+", "0x", text).replace("Variable[", "Tensor[")
    return [line.strip(" ") for line in masked.split("\n") if line.strip()]


def _finished(runs: Runs, number: str) -> str:
    """Standard output of a tutorial that must have succeeded and left nothing in its folder."""
    code, out, err = runs[number].wait()
    assert code == 0, err[-2000:]
    assert list(runs[number].folder.iterdir()) == []
    return out


# -- the texts ---------------------------------------------------------------------------------------------------------


def test_cells_are_taken_whole(documents: dict[str, Any]) -> None:
    """Every cell compiles, and the illustrations that are left out are those known."""
    counts = {number: len(document.cells) for number, document in documents.items()}
    assert counts == {"000": 16, "001": 1, "003": 19}
    for number, document in documents.items():
        for position, cell in enumerate(document.cells):
            compile(cell, f"{number}[{position}]", "exec")
    everything = {number: "\n".join(document.cells) for number, document in documents.items()}
    assert "### " not in everything["000"].replace("# ----", "")
    for name in ("get_mnist_data", "evaluate_throughput", "remote_step", "train_program", "test_program"):
        assert f"def {name}(" in everything["000"]
    assert "call(graph, x" not in everything["003"]


@pytest.fixture(scope="module")
def demo_output(documents: dict[str, Any]) -> list[str]:
    """What tutorial 001 shows below its program on remote buffers."""
    return _plain(documents["001"].output("load_remote_subgraph"))


def test_remote_buffers_print_what_the_document_shows(tutorial_runs: Runs, demo_output: list[str]) -> None:
    assert _plain(_finished(tutorial_runs, "001")) == demo_output
    values = [int(line.split("[")[1].split(".")[0]) for line in demo_output if "w_" in line or "output" in line]
    assert values == [1, 2, 1, 2, 2, 3, 3, 4], "1/2 before, 2 and 3/4 after the update, as the comments say"


def test_the_later_tutorial_prints_the_same_demo(tutorial_runs: Runs, demo_output: list[str]) -> None:
    """Document 000 is the later edition of 001 and shows no outputs of its own; its demo is the same program."""
    printed = _plain(_finished(tutorial_runs, "000"))
    assert printed[: len(demo_output)] == demo_output


def test_basic_concepts_prints_what_the_document_shows(tutorial_runs: Runs, documents: dict[str, Any]) -> None:
    document = documents["003"]
    expected = [line for output in document.outputs[:5] for line in _plain(output)]
    printed = _plain(_finished(tutorial_runs, "003"))
    assert printed[: len(expected)] == expected
    rest = printed[len(expected) :]
    assert rest[0] == "Epoch 1/1"
    assert re.fullmatch(r"Accuracy on test set: \d+\.\d\d%", rest[1])
    assert len(rest) == 2


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("Graph : Linear_subgraph(0)", 10),
        ("two different bound graphs", 2),
        ("Graph : Net_subgraph(0)", 16),
        ("Graph : NetOutlined_subgraph(0)", 14),
        ("DotTree functionalities", 9),
    ],
)
def test_every_output_of_basic_concepts_is_compared(
    tutorial_runs: Runs, documents: dict[str, Any], text: str, lines: int
) -> None:
    """The comparison above would hold for an extractor that finds nothing; this one says what there is."""
    expected = _plain(documents["003"].output(text))
    assert len(expected) == lines
    assert documents["003"].outputs[:5].count(documents["003"].output(text)) == 1
    printed = _plain(_finished(tutorial_runs, "003"))
    starts = [i for i, line in enumerate(printed) if line == expected[0]]
    assert any(printed[i : i + lines] == expected for i in starts)


# -- training ----------------------------------------------------------------------------------------------------------


def _accuracy(text: str) -> float:
    (found,) = re.findall(r"Accuracy on test set: ([\d.]+)%", text)
    return float(found)


def test_sgd_learns(tutorial_runs: Runs) -> None:
    """PyTorch alone gave 90.22 to 91.35 % on this part in five orders of samples; this program gives 91.20 %."""
    assert _accuracy(_finished(tutorial_runs, "003")) == pytest.approx(90.8, abs=1.5)


def test_adam_on_four_replicas_learns(tutorial_runs: Runs) -> None:
    """PyTorch alone gave 89.35 to 91.22 % on this part in eight orders of samples; this program gives 90.62 %."""
    assert _accuracy(_finished(tutorial_runs, "000")) == pytest.approx(90.3, abs=1.5)


@pytest.mark.slow
def test_sgd_reaches_the_published_accuracy(whole_tutorial_runs: Runs) -> None:
    assert _accuracy(_finished(whole_tutorial_runs, "003")) >= 95.5, "published: 96.16 %"


@pytest.mark.slow
def test_adam_on_four_replicas_reaches_what_pytorch_reaches(whole_tutorial_runs: Runs) -> None:
    """With the order of samples that PyTorch's seed 0 gives (see ``tutorials_with``).

    The document leaves the order to chance, and an epoch of Adam ends where it ends: PyTorch alone, from the same first
    weights, gave 95.33 to 97.33 % over 70 orders. This program gave 95.38 to 97.02 % for the seeds 0 to 25, the same as
    PyTorch in the same order where that was tried (seed 7), and in one of three runs without a seed 94.53 %.
    """
    assert _accuracy(_finished(whole_tutorial_runs, "000")) >= 95.0


@pytest.mark.parametrize("which", ["train", "test"])
def test_printed_throughput_is_that_of_the_simulated_step(tutorial_runs: Runs, which: str) -> None:
    """The document's own ``evaluate_throughput`` measures with ``time()`` around five ``session.run``, of which
    the first one takes longer."""
    text = _finished(tutorial_runs, "000")
    found = re.search(rf"{which} session\nMean duration: (\S+) s Throughput: +([\d.]+) samples/s", text)
    assert found is not None, text[-500:]
    duration, throughput = float(found[1]), float(found[2])
    (path,) = tutorial_runs["000"].reports.glob(f"*-{which}_program")
    (run,) = json.loads((path / "summary.json").read_text(encoding="utf-8"))["runs"]
    expected = run["seconds"] + load_machine("pod4").host.first_run_seconds / 5 + CLOCK_QUERY_SECONDS
    assert duration == pytest.approx(expected, abs=0.3e-6), "time() resolves about 0.2 us"
    assert throughput == pytest.approx(SAMPLES_PER_STEP[which] / expected, rel=2e-3)


def test_the_replicas_of_the_tutorial_get_a_pod(tutorial_runs: Runs) -> None:
    _finished(tutorial_runs, "000")
    machines = {
        path.name.split("-", 1)[1]: json.loads((path / "summary.json").read_text(encoding="utf-8"))["machine"]
        for path in tutorial_runs["000"].reports.iterdir()
    }
    assert machines["train_program"] == "pod4"
    assert machines["test_program"] == "gc200-1"


def test_without_pytorch_the_tutorial_says_so(documents: dict[str, Any], run_ipuperf: Callable, tmp_path: Any) -> None:
    """A program's own dependency that is missing is the program's own error."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    (tmp_path / "tutorial.py").write_text("\n".join(documents["003"].cells), encoding="utf-8")
    done = run_ipuperf("run", "tutorial.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'torch'"
