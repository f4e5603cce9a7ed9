"""What the acceptance tests share: the simulated table, sessions of the model, the tutorials as programs that run."""

import gzip
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def table(installed_front_ends: Callable) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Rows and traces of the scenario on a POD4, by name of the placement."""
    with installed_front_ends():
        from ipuperf.scenarios import rts_mnist

        rows, traces = rts_mnist.run("pod4")
    return {row["name"]: row for row in rows}, traces


@pytest.fixture(scope="session")
def table_sessions(installed_front_ends: Callable) -> dict[str, Any]:
    """The session of each placement."""
    with installed_front_ends():
        from ipuperf.models.mnist_mlp import TrainingOptions, training_session
        from ipuperf.scenarios.rts_mnist import PLACEMENTS

        return {p.name: training_session(TrainingOptions(threshold=p.threshold)).session for p in PLACEMENTS}


@pytest.fixture(scope="session")
def sgd_session(installed_front_ends: Callable) -> Any:
    """One training step of the network with SGD on one IPU, as the tutorial on basic concepts builds it."""
    with installed_front_ends():
        import popxl
        import popxl_addons as addons
        from popxl import ops

        from ipuperf.models.mnist_mlp import Classifier

        ir = popxl.Ir(replication=1)
        with ir.main_graph:
            image = ops.host_load(popxl.h2d_stream((8, 28, 28), popxl.float32, "image"))
            labels = ops.host_load(popxl.h2d_stream((8,), popxl.int32, "labels"))
            factories, forward = Classifier((512, 512, 512), 10).create_graph(image)
            backward = addons.autodiff(forward)
            variables = factories.init()
            info = forward.bind(variables).call_with_info(image)
            loss, gradient = addons.ops.cross_entropy_with_grad(info.outputs[0], labels)
            ops.host_store(popxl.d2h_stream(loss.shape, loss.dtype, "loss"), loss)
            calls = backward.call_with_info(gradient, args=backward.grad_graph_info.inputs_dict(info))
            grads = backward.grad_graph_info.fwd_parent_ins_to_grad_parent_outs(info, calls)
            for variable in variables.tensors:
                ops.scaled_add_(variable, grads[variable], b=-0.05)
        return popxl.Session(ir, "ipu_hw")


# -- the tutorials -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Document:
    """Code cells and printed outputs of a tutorial, verbatim and in order."""

    cells: tuple[str, ...]
    outputs: tuple[str, ...]

    def output(self, text: str) -> str:
        """The only output that contains ``text``."""
        (found,) = [output for output in self.outputs if text in output]
        return found


#: Fenced Python of the documents that illustrates a sentence: names in it stand for something, or it is a fragment of
#: the program below it.
ILLUSTRATIONS = {
    "001": lambda cell: "import popxl\n" not in cell,
    "003": lambda cell: cell.startswith(("outputs = bound_graph.call(x)\n", "call(graph, x, inputs_dict=")),
}


def _notebook_cells(text: str) -> tuple[str, ...]:
    """Cells of a notebook printed as ``In [None]:``. A cell ends before the Markdown heading that follows it."""
    cells = []
    for part in re.split(r"^In \[None\]:\n", text, flags=re.M)[1:]:
        heading = re.search(r"^\n#{2,3} \w", part, flags=re.M)
        cells.append(part[: heading.start()] if heading else part)
    return tuple(cells)


def _fenced(text: str) -> list[tuple[str, str]]:
    """(language, body) of every fenced block that begins a line."""
    return [(m[1], m[2]) for m in re.finditer(r"^```(\w*)\n(.*?)^```", text, flags=re.S | re.M)]


def read_document(number: str, text: str) -> Document:
    """The tutorial ``number`` from its text: a notebook's dump, or Markdown."""
    if "In [None]:\n" in text:
        return Document(_notebook_cells(text), ())
    blocks, left_out = _fenced(text), ILLUSTRATIONS[number]
    cells = [body for language, body in blocks if language == "python" and not left_out(body)]
    return Document(tuple(cells), tuple(body for language, body in blocks if language in ("output", "")))


@pytest.fixture(scope="session")
def documents(seeds_folder: Path) -> dict[str, Document]:
    """Tutorials 000, 001 and 003."""
    texts = {n: next(seeds_folder.glob(f"{n}_*.txt")).read_text(encoding="utf-8") for n in ("000", "001", "003")}
    return {number: read_document(number, text) for number, text in texts.items()}


PART = {"train": 12_000, "t10k": 4_000}
"""Images of MNIST that tutorials get in a quick test; all of them (60,000 and 10,000) are for ``pytest -m slow``."""


@pytest.fixture(scope="session")
def part_of_mnist(mnist_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for ``IPUPERF_DATA`` with the first images of MNIST (:data:`PART`) and their labels, as IDX files."""
    folder = tmp_path_factory.mktemp("part")
    (folder / "mnist").mkdir()
    for name, count in PART.items():
        for kind, header, size in (("images-idx3", 16, 28 * 28), ("labels-idx1", 8, 1)):
            file = f"{name}-{kind}-ubyte"
            packed = mnist_folder / f"{file}.gz"
            whole = gzip.decompress(packed.read_bytes()) if packed.is_file() else (mnist_folder / file).read_bytes()
            start = whole[:4] + count.to_bytes(4, "big") + whole[8:header]
            (folder / "mnist" / file).write_bytes(start + whole[header : header + count * size])
    return folder


@dataclass
class Running:
    """A tutorial under ``ipuperf run``: started when its first test comes."""

    command: list[str]
    environment: dict[str, str]
    folder: Path
    reports: Path
    _done: subprocess.CompletedProcess[str] | None = field(default=None, init=False)

    def wait(self) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        if self._done is None:
            self._done = subprocess.run(
                self.command,
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=1200,
                check=False,
            )
        return self._done.returncode, self._done.stdout, self._done.stderr


@pytest.fixture(scope="session")
def tutorials_with(
    documents: dict[str, Document],
    ipuperf_command: list[str],
    child_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Path], dict[str, Running]]:
    """``tutorials_with(data)``: all three tutorials, each in an empty folder with its script elsewhere; 000 writes
    reports.

    The scripts are the documents' cells and nothing else. Their loaders shuffle without a seed, so PyTorch is seeded
    from outside (``sitecustomize``), and every test run sees the same order of samples.
    """
    pytest.importorskip("torch")

    def prepared(data: Path) -> dict[str, Running]:
        programs, outside = tmp_path_factory.mktemp("programs"), tmp_path_factory.mktemp("outside")
        (outside / "sitecustomize.py").write_text("import torch\n\ntorch.manual_seed(0)\n", encoding="utf-8")
        environment = {**child_environment, "IPUPERF_DATA": str(data), "PYTHONPATH": str(outside)}
        running = {}
        for number, document in documents.items():
            script, reports = programs / f"tutorial_{number}.py", programs / f"report_{number}"
            script.write_text("\n".join(document.cells), encoding="utf-8")
            options = ["--report", str(reports)] if number == "000" else []
            command = [*ipuperf_command, "run", str(script), *options]
            running[number] = Running(command, environment, tmp_path_factory.mktemp(f"run_{number}"), reports)
        return running

    return prepared


@pytest.fixture(scope="session")
def tutorial_runs(tutorials_with: Callable[[Path], dict[str, Running]], part_of_mnist: Path) -> dict[str, Running]:
    """The tutorials on a part of MNIST."""
    return tutorials_with(part_of_mnist)


@pytest.fixture(scope="session")
def whole_tutorial_runs(tutorials_with: Callable[[Path], dict[str, Running]], data_folder: Path) -> dict[str, Running]:
    """The tutorials on all of MNIST, as they were published."""
    return tutorials_with(data_folder)
