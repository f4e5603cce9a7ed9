"""The vendor's tutorials as code cells, and the front ends under their upstream names."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ipuperf.runtime.install import install, uninstall


@dataclass(frozen=True)
class Tutorial:
    """Code cells and printed outputs of a document, verbatim, in order."""

    cells: tuple[str, ...]
    outputs: tuple[str, ...]

    def cell(self, text: str) -> str:
        """The first cell that contains ``text``."""
        return next(c for c in self.cells if text in c)

    def output(self, text: str) -> str:
        """The first output that contains ``text``."""
        return next(o for o in self.outputs if text in o)


def _notebook_cells(text: str) -> list[str]:
    """Cells of a notebook printed as ``In [None]:``; a cell ends before the Markdown heading that follows it."""
    cells = []
    for part in re.split(r"^In \[None\]:\n", text, flags=re.M)[1:]:
        lines: list[str] = []
        for line in part.split("\n"):
            if re.match(r"#{2,3} \w", line) and lines and lines[-1] == "":
                break
            lines.append(line)
        cells.append("\n".join(lines))
    return cells


def _fenced(text: str, *languages: str) -> list[str]:
    return [body for language, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M) if language in languages]


@pytest.fixture
def tutorial(seeds_folder: Path) -> Callable[[str], Tutorial]:
    """``tutorial("003")``: the document whose file name starts so; the test is skipped where there are none."""

    def load(number: str) -> Tutorial:
        found = sorted(seeds_folder.glob(f"{number}_*.txt"))
        if not found:
            pytest.skip(f"no tutorial {number} in {seeds_folder}")
        text = found[0].read_text(encoding="utf-8")
        if "In [None]:" in text:
            return Tutorial(tuple(_notebook_cells(text)), ())
        return Tutorial(tuple(_fenced(text, "python")), tuple(_fenced(text, "output", "")))

    return load


@pytest.fixture
def front_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``import popxl`` works; torchvision and tqdm are empty modules unless they are installed."""
    for name in ("torchvision", "tqdm"):
        if name not in sys.modules:
            module = types.ModuleType(name)
            module.tqdm = iter
            monkeypatch.setitem(sys.modules, name, module)
    install()
    yield
    uninstall()


@pytest.fixture
def run_cells(
    front_ends: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[dict[str, object], str]]:
    """Write cells to a file, execute it as a program, return its globals and what it printed; skipped where they import
    PyTorch and it is not installed."""

    def run(*cells: str) -> tuple[dict[str, object], str]:
        if any(re.search(r"^\s*(import|from) torch\b", cell, re.MULTILINE) for cell in cells):
            pytest.importorskip("torch")
        path = tmp_path / "program.py"
        path.write_text("\n".join(cells), encoding="utf-8")
        module = types.ModuleType("user_program")
        monkey = sys.modules
        monkey["user_program"] = module
        capsys.readouterr()
        try:
            exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
        finally:
            del monkey["user_program"]
        return module.__dict__, capsys.readouterr().out

    return run
