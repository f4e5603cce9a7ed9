"""The tutorial of a slow step: its programs and commands run, and print the lines that the page shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-slow-step.md"


@pytest.mark.heavy
def test_the_tutorial_runs_as_printed(run_ipuperf: Callable, tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ((_, program),) = [block for block in blocks if block[0] == "python"]
    (tmp_path / "slow.py").write_text(program, encoding="utf-8")
    printed = ""
    for kind, text in blocks:
        if kind:
            continue
        if not text.startswith("ipuperf "):
            assert all(line in printed.splitlines() for line in text.splitlines()), (text, printed)
            old, new = (re.findall(rf"^ +\{sign} (options.*)$", text, re.MULTILINE) for sign in "-+")
            for before, after in zip(old, new, strict=True):
                assert before in program
                (tmp_path / "fast.py").write_text(program.replace(before, after), encoding="utf-8")
            continue
        done = run_ipuperf(*text.split()[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        printed = done.stdout + done.stderr
    assert (tmp_path / "before" / "0-Classifier-training" / "report.html").is_file()
