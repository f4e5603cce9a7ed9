"""Every notebook runs from top to bottom in a kernel of this interpreter, and draws its figures.

The kernel is described in a temporary Jupyter data folder, so it does not matter which kernels are registered on the
machine. It works in an empty folder and is not told where MNIST is: a notebook must run anywhere.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
kernelspec = pytest.importorskip("ipykernel.kernelspec")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(find_spec("sklearn") is None, reason="the notebooks train on the digits of scikit-learn"),
]

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))

FIGURES = {
    "remote_variables": 9,
    "pipelining": 11,
    "analysis_tour": 3,
    "optimum": 2,
    "keras": 2,
    "lightning": 2,
    "from_popvision": 3,
}
"""Figures a notebook draws at least; one that is not named here draws at least one."""

NEEDS = {
    "pipelining": "torch",
    "optimum": "optimum.graphcore",
    "keras": "tensorflow",
    "lightning": "lightning",
    "from_torch_profiler": "torch",
}
"""A package that a notebook imports and that need not be installed."""

KERNEL = "ipuperf-test"
CELL_SECONDS = 300
"""A cell that takes longer hangs; this is no measure of speed."""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a kernel that is this interpreter, known to this test alone."""
    data = tmp_path / "jupyter"
    kernelspec.write_kernel_spec(str(data / "kernels" / KERNEL))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(data))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    for variable in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.delenv("JUPYTER_PATH", raising=False)
    monkeypatch.delenv("IPUPERF_DATA", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # many threads on a busy machine take many times as long
    return KERNEL


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def _installed(package: str) -> bool:
    """Whether a package is there; it is not imported (Optimum imports ``poptorch``)."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # what it is in
        return False


def _read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def _code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks() -> None:
    assert set(FIGURES) <= set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_is_stored_without_outputs(name: str) -> None:
    notebook = _read(name)
    nbformat.validate(notebook)
    assert [cell.id for cell in _code_cells(notebook) if cell.outputs or cell.execution_count] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs(name: str, kernel: str, empty: Path) -> None:
    if name in NEEDS and not _installed(NEEDS[name]):
        pytest.skip(f"needs {NEEDS[name]}")
    notebook = _read(name)
    client = nbclient.NotebookClient(
        notebook, kernel_name=kernel, timeout=CELL_SECONDS, resources={"metadata": {"path": str(empty)}}
    )
    client.execute()  # raises CellExecutionError with the traceback of the cell
    outputs = [output for cell in _code_cells(notebook) for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error"] == []
    assert [cell.id for cell in _code_cells(notebook) if cell.execution_count is None] == []
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(figures) >= FIGURES.get(name, 1)
    assert list(empty.iterdir()) == []  # nothing is left behind
