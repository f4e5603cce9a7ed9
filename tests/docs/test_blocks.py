"""Every block of code and every command of README and docs runs, and prints what its page says (``blocks.py``)."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from blocks import Block, Step, blocks_of, close, edited, matches, missing, pages, run, steps_of, text_of

NEEDS = {
    "docs/how-to/poptorch.md": ["torch"],
    "docs/how-to/pytorch-geometric.md": ["torch_geometric"],
    "docs/how-to/tensorflow.md": ["tensorflow", "tf_keras"],
    "docs/how-to/keras.md": ["tensorflow", "tf_keras"],
    "docs/how-to/ask-a-trace.md": ["duckdb"],
    "docs/how-to/calibrate.md": ["scipy"],
    "docs/tutorials/slow-step.md": ["torch"],
    "docs/tutorials/pipeline-split.md": ["torch"],
}
"""Packages of the programs of a page, where ipuperf's own are not enough."""

PROGRAM = "docs/tutorials/first-run.md"
REPORT = "ipuperf run train.py --report report"
BEFORE = {
    "docs/how-to/run-a-program.md": "",
    "docs/how-to/simulated-time.md": "",
    "docs/how-to/choose-a-machine.md": "",
    "docs/how-to/compare-runs.md": "",
    "docs/how-to/sweep.md": "",
    "docs/how-to/calibrate.md": "",
    "docs/how-to/read-a-report.md": REPORT,
    "docs/how-to/find-what-to-change.md": REPORT,
    "docs/how-to/export.md": REPORT,
    "README.md": "",
}
"""Pages whose commands run ``train.py`` of the first tutorial, and what happens before their first block."""

ELSEWHERE = {
    **dict.fromkeys(
        [f"docs/how-to/adding-{what}.md" for what in ("a-custom-op", "a-step", "an-op", "an-optimiser")],
        "by tests/docs/test_adding_*.py",
    ),
    **dict.fromkeys(
        [f"docs/how-to/adding-{what}.md" for what in ("a-machine", "a-report-view", "a-schedule")],
        "by tests/docs/test_guides.py",
    ),
}
"""Pages whose blocks another test runs."""

_PARTS = "a part of a program: it stands for code of the reader's"
_LONG = "takes minutes"
_VENDORS = "the vendor's applications and their packages are no part of ipuperf"
_FUZZ = "long runs of the tests themselves"
NOT_RUN = {
    ("README.md", "pip install '.[data]'"): "installs; .ci/run begins with it, and a test runs the demo",
    ("README.md", "pip install -e"): "installs and tests; .ci/run takes the line from here",
    ("docs/how-to/adding-a-poptorch-op.md", "from ipuperf.poptorch"): _PARTS,
    ("docs/how-to/demo-and-scenarios.md", "python scenarios/design_space.py"): "BERT-Large, " + _LONG,
    ("docs/how-to/find-what-to-change.md", "What would change it, each simulated"): "the answer about a larger program",
    ("docs/how-to/guard-cycles.md", "from ipuperf.testing"): _PARTS + "; docs/tutorials/cycles-in-ci.md runs it",
    ("docs/how-to/guard-cycles.md", "from ipuperf.runtime"): _PARTS,
    ("docs/how-to/pipelines.md", "python scenarios/pipeline_mnist.py"): "PyTorch, all strategies: " + _LONG,
    ("docs/how-to/simulated-time.md", "import time"): _PARTS,
    ("docs/how-to/tune.md", "ipuperf tune bert"): "BERT-base and a published case: " + _LONG,
    ("docs/how-to/set-up-the-command-line.md", "eval"): "changes the reader's shell",
    ("docs/applications/index.md", "import argparse"): "needs simple-parsing; stands for a package of the vendor's",
    ("docs/applications/optimum.md", ""): _VENDORS,
    ("docs/applications/poptorch.md", ""): _VENDORS,
    ("docs/applications/popxl.md", ""): _VENDORS,
    ("docs/design.md", " user program"): "a diagram",
    ("docs/testing.md", ""): _FUZZ,
    ("docs/random-programs.md", ""): _FUZZ,
}
"""Blocks that do not run, by page and beginning, and why."""


def reason(page: str, block: Block) -> str | None:
    """Why a block does not run."""
    if block.language == "{eval-rst}":
        return "a part of the site, which is built with warnings as errors"
    reasons = [why for (where, start), why in NOT_RUN.items() if where == page and block.text.startswith(start)]
    return reasons[0] if reasons else None


RUNS = [page for page in pages() if page not in ELSEWHERE and not all(reason(page, block) for block in blocks_of(page))]


def prepared(page: str) -> list[Step]:
    """What is there before the first block of a page."""
    if page not in BEFORE:
        return []
    program, machine = (
        block for where in (PROGRAM, "docs/how-to/choose-a-machine.md") for block in blocks_of(where) if block.title
    )
    commands = [Step("sh", BEFORE[page])] if BEFORE[page] else []
    return [*steps_of([program, machine]), *commands]


@pytest.mark.heavy
@pytest.mark.parametrize("page", RUNS)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, child_environment: dict[str, str]) -> None:
    absent = [name for name in NEEDS.get(page, ()) if importlib.util.find_spec(name) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    steps = prepared(page) + steps_of(block for block in blocks_of(page) if not reason(page, block))
    folder = tmp_path / "page"
    folder.mkdir()
    for step, (code, printed) in zip(steps, run(steps, folder, child_environment), strict=False):
        assert code == step.exit, f"exit code {code} of\n{step.text}\n{printed[-3000:]}"
        for expected in step.prints:
            assert not missing(expected, printed), f"not printed: {missing(expected, printed)}\n{printed[-5000:]}"


def test_what_does_not_run_is_there() -> None:
    for page, start in NOT_RUN:
        assert [block for block in blocks_of(page) if block.text.startswith(start)], (page, start)
    assert not [page for page in (*ELSEWHERE, *NEEDS, *BEFORE) if not blocks_of(page)]


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
