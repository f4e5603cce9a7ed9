"""The commands of the pages of the vendor's applications, where these and their packages are at hand."""

from __future__ import annotations

import csv
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import ROOT, Block, blocks_of, run, steps_of, text_of

EXAMPLES = ROOT.parent / "shared" / "upstream" / "examples"
PAGES = tuple(f"docs/applications/{page}.md" for page in ("popxl", "poptorch", "tensorflow"))
BESIDE = "docs/applications/index.md"
"""Its files make what programs would download, and let ``popxl`` stand for ipuperf in test runs."""
DATA = "docs/applications/make_data.py"

with (ROOT / "docs" / "applications" / "folders.csv").open(encoding="utf-8", newline="") as _file:
    FOLDERS = {row["folder"]: row for row in csv.DictReader(_file)}

_SECTION = re.compile(r"^## [^\n]*\(`([\w/.-]+)`\)$(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def sections(page: str) -> dict[str, list[Block]]:
    """The blocks of each application's section, by its folder."""
    blocks = blocks_of(page)
    inside = {
        folder: [block for block in blocks if block.text in text] for folder, text in _SECTION.findall(text_of(page))
    }
    return {folder: of_it for folder, of_it in inside.items() if of_it}


SECTIONS = {folder: blocks for page in PAGES for folder, blocks in sections(page).items()}


def test_every_block_belongs_to_an_application() -> None:
    assert sum(map(len, SECTIONS.values())) == sum(len(blocks_of(page)) for page in PAGES)


def test_the_table_has_each_application_of_the_pages() -> None:
    assert {folder for folder in SECTIONS if FOLDERS[folder]["runs"] == "no"} == set()
    for folder, row in FOLDERS.items():
        assert row["runs"] in ("trains", "infers", "no"), folder
        cells = ("stops",) if row["runs"] == "no" else ("numbers", "simulated")
        assert {name for name in ("numbers", "simulated", "stops") if row[name]} == set(cells), folder


def test_the_table_has_each_application_of_the_vendor() -> None:
    if not EXAMPLES.is_dir():
        pytest.skip("the vendor's applications are not at hand")
    areas = ("gnn", "multimodal", "nlp", "speech", "vision")
    there = {path.relative_to(EXAMPLES).as_posix() for area in areas for path in (EXAMPLES / area).glob("*/*/")}
    assert there == {folder for folder in FOLDERS if folder.split("/")[0] in areas}
    assert len({folder.rpartition("/")[0] for folder in there}) == 27


@pytest.mark.parametrize("folder", SECTIONS)
def test_the_runner_has_the_blocks_of_the_page(folder: str) -> None:
    runner = runpy.run_path(str(ROOT / "docs" / "applications" / "runner.py"))
    there = [text for _, _, text, _ in runner["blocks"](runner["sections"]()[folder])]
    assert there == [block.text for block in SECTIONS[folder]]


@pytest.mark.parametrize(("rate", "weight"), [(1e-4, 1.0), (1e-3, 0.9990234375)])
def test_a_copy_beside_the_program_rounds_weights_of_float16(rate: float, weight: float) -> None:
    torch = pytest.importorskip("torch")
    from ipuperf import poptorch

    twin = runpy.run_path(str(ROOT / "docs" / "applications" / "beside_eager.py"))["Twin"]
    module = torch.nn.Linear(1, 1, bias=False).half()
    torch.nn.init.ones_(module.weight)
    copy = twin(module, torch.optim.SGD(module.parameters(), rate), poptorch.Options())
    copy.call((torch.ones(1, 1, dtype=torch.float16),), {})
    assert copy.module.weight.item() == weight
    assert copy.module.weight.dtype == torch.float32


@pytest.mark.slow("minutes")
@pytest.mark.parametrize("folder", SECTIONS)
def test_the_commands_of_an_application_run(folder: str, tmp_path: Path, child_environment: dict[str, str]) -> None:
    if not EXAMPLES.is_dir():
        pytest.skip("the vendor's applications are not at hand")
    needs = FOLDERS[folder]["needs"].replace(" ", ", ")
    imports = subprocess.run([sys.executable, "-c", f"import {needs}"], capture_output=True, text=True, check=False)
    if imports.returncode:
        pytest.skip(imports.stderr.splitlines()[-1])
    copy = tmp_path / "page"
    shutil.copytree(EXAMPLES / folder, copy, copy_function=shutil.copyfile)
    shutil.copyfile(ROOT / DATA, copy / "make_data.py")
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)
    steps = steps_of([*blocks_of(BESIDE), *SECTIONS[folder]])
    for step, (code, printed) in zip(steps, run(steps, copy, child_environment), strict=False):
        assert code == step.exit, f"exit code {code} of\n{step.text}\n{printed[-3000:]}"
