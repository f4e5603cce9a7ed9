"""Every block of code and every command of README and docs runs, and prints what its page says (``blocks.py``)."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from blocks import (
    ROOT,
    Block,
    Step,
    blocks_of,
    checkout,
    close,
    edited,
    matches,
    missing,
    pages,
    run,
    steps_of,
    text_of,
)

NEEDS = {
    "docs/how-to/poptorch.md": ["torch"],
    "docs/how-to/pytorch-geometric.md": ["torch_geometric"],
    "docs/how-to/tensorflow.md": ["tensorflow", "tf_keras"],
    "docs/how-to/keras.md": ["tensorflow", "tf_keras"],
    "docs/how-to/ask-a-trace.md": ["duckdb"],
    "docs/how-to/calibrate.md": ["scipy"],
    "docs/tutorials/slow-step.md": ["torch"],
    "docs/tutorials/pipeline-split.md": ["torch"],
    "docs/how-to/find-what-to-change.md": ["torch"],
    "docs/how-to/pipelines.md": ["torch"],
    "docs/how-to/demo-and-scenarios.md": ["torch"],
    "docs/how-to/tune.md": ["torch", "optuna"],
    "docs/random-programs.md": ["torch", "tensorflow", "tf_keras"],
}
"""Packages of the programs of a page, where ipuperf's own are not enough."""

CHECKOUTS = ("docs/testing.md", "docs/random-programs.md")
"""Pages for developers, which are in a checkout."""

PROGRAM = "docs/tutorials/first-run.md"
MACHINE = "docs/how-to/choose-a-machine.md"
FILES = {
    "docs/how-to/find-what-to-change.md": {"docs/tutorials/pipeline-split.md": ["split.py"]},
    "docs/how-to/guard-cycles.md": {"docs/tutorials/cycles-in-ci.md": ["model.py", "conftest.py"]},
}
"""Files of other pages that a page uses, and says so."""

REPORT = "ipuperf run train.py --report report"
BEFORE = {
    "docs/how-to/run-a-program.md": "",
    "docs/how-to/simulated-time.md": "",
    "docs/how-to/choose-a-machine.md": "",
    "docs/how-to/compare-runs.md": "",
    "docs/how-to/machines-with-faults.md": "",
    "docs/how-to/sweep.md": "",
    "docs/how-to/calibrate.md": "",
    "docs/how-to/read-a-report.md": REPORT,
    "docs/how-to/find-what-to-change.md": REPORT,
    "docs/how-to/export.md": REPORT,
    "docs/how-to/tune.md": "",
    "README.md": "",
}
"""Pages whose commands run ``train.py`` of the first tutorial, and what happens before their first block."""

ELSEWHERE = {
    **dict.fromkeys(
        [
            f"docs/how-to/adding-{what}.md"
            for what in ("a-custom-op", "a-poptorch-op", "a-step", "an-op", "an-optimiser")
        ],
        "by tests/docs/test_adding_*.py",
    ),
    **dict.fromkeys(
        [f"docs/how-to/adding-{what}.md" for what in ("a-machine", "a-report-view", "a-schedule")],
        "by tests/docs/test_guides.py",
    ),
    **dict.fromkeys(
        [f"docs/applications/{page}.md" for page in ("index", "popxl", "poptorch", "tensorflow")],
        "by tests/docs/test_applications.py",
    ),
}
"""Pages whose blocks another test runs."""

INSTALLS = {
    ("README.md", "pip install '.[data]'"): ".ci/package",
    ("README.md", "pip install -e"): ".ci/run",
    ("docs/applications/optimum.md", "pip install"): ".ci/optimum",
}
"""Blocks that install: the script that takes their lines from the page and runs them in a fresh environment."""

SLOW = {
    ("docs/how-to/tune.md", "ipuperf tune bert"): "BERT-base and a published case",
    ("docs/random-programs.md", "for family"): "nine families start PyTorch and TensorFlow",
    ("docs/testing.md", "python tests/mutation"): "records tests, then runs mutants",
    ("docs/testing.md", "pytest tests/laws"): "whole programs",
}
"""Blocks that take minutes, which ``pytest -m slow`` runs, and why."""


def listed(table: dict[tuple[str, str], str], page: str, block: Block) -> bool:
    """Whether a block is in a table by page and beginning."""
    return any(where == page and block.text.startswith(start) for where, start in table)


def quick(page: str) -> list[Block]:
    """The blocks of a page that run here. ``{eval-rst}`` runs as the site is built, with warnings as errors."""
    blocks = [block for block in blocks_of(page) if block.language != "{eval-rst}"]
    return [block for block in blocks if not listed(INSTALLS, page, block) and not listed(SLOW, page, block)]


RUNS = [page for page in pages() if page not in ELSEWHERE and quick(page)]


def prepared(page: str) -> list[Step]:
    """What is there before the first block of a page."""
    wanted = {where: set(names) for where, names in FILES.get(page, {}).items()}
    blocks = [
        block
        for where, names in wanted.items()
        for block in blocks_of(where)
        if block.title in names and block.language != "diff"
    ]
    if page in BEFORE:
        blocks += [block for where in (PROGRAM, MACHINE) for block in blocks_of(where) if block.title]
    commands = [Step("sh", BEFORE[page])] if BEFORE.get(page) else []
    return [*steps_of(blocks), *commands]


def check(page: str, blocks: list[Block], folder: Path, environment: dict[str, str]) -> None:
    """Run blocks of a page in an empty folder, or in a copy of the checkout, and compare what they print."""
    absent = [name for name in NEEDS.get(page, ()) if importlib.util.find_spec(name) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    folder.mkdir()
    if page in CHECKOUTS:
        checkout(folder)
    steps = prepared(page) + steps_of(blocks)
    for step, (code, printed) in zip(steps, run(steps, folder, environment), strict=False):
        assert code == step.exit, f"exit code {code} of\n{step.text}\n{printed[-3000:]}"
        for expected in step.prints:
            assert not missing(expected, printed), f"not printed: {missing(expected, printed)}\n{printed[-5000:]}"


@pytest.mark.heavy
@pytest.mark.parametrize("page", RUNS)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, child_environment: dict[str, str]) -> None:
    check(page, quick(page), tmp_path / "page", child_environment)


@pytest.mark.slow("minutes")
@pytest.mark.parametrize(("page", "start"), SLOW)
def test_the_slow_blocks_run(page: str, start: str, tmp_path: Path, child_environment: dict[str, str]) -> None:
    blocks = [block for block in blocks_of(page) if block.text.startswith(start)]
    check(page, blocks, tmp_path / "page", child_environment)


@pytest.mark.parametrize(("page", "start"), INSTALLS)
def test_a_script_of_ci_runs_the_lines_that_install(page: str, start: str) -> None:
    """Its ``sed`` commands are asked for what they take from the page."""
    (block,) = (block for block in blocks_of(page) if block.text.startswith(start))
    script = (ROOT / INSTALLS[page, start]).read_text(encoding="utf-8")
    commands: list[str] = re.findall(rf"\$\((sed .* {re.escape(page)})\)", script)
    assert commands
    words = [
        subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    assert " && ".join(text.strip() for text in words) == block.text.strip()


def test_what_runs_otherwise_is_there() -> None:
    for page, start in (*INSTALLS, *SLOW):
        assert [block for block in blocks_of(page) if block.text.startswith(start)], (page, start)
    assert not [page for page in (*ELSEWHERE, *NEEDS, *BEFORE, *FILES, *CHECKOUTS) if not blocks_of(page)]


@pytest.mark.parametrize("page", pages())
def test_every_block_says_its_language(page: str) -> None:
    text = text_of(page)
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(blocks_of(page))
    assert not re.findall(r"\n\n    (?:\$ )?(?:ipuperf|python|pip|pytest) .*", text)


def test_how_outputs_are_compared() -> None:
    printed = "first 721.7 us a run (956,201 cycles)\n  second: 3 of 40 %\n"
    assert missing("first 725 us a run (956,201 ...\nsecond: 3 of 40 %\n", printed) == []
    assert missing("second: 3 of 40 %\nfirst 721.7 us\n", printed) == ["first 721.7 us"]
    assert missing("first 821.7 us\n", printed) == ["first 821.7 us"]
    assert not matches("a 3 b", "a 4 b")
    assert close("0.1", "0.2")
    assert not close("1.0", "1.2")
    assert edited("a = 1\nb = 2\n", "- b = 2\n+ b = 3\n") == "a = 1\nb = 3\n"
    with pytest.raises(ValueError, match="is there 0 times"):
        edited("a\n", "- b\n+ c\n")
