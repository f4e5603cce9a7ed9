"""Blocks of code on the pages of the documentation, and how they run.

A page is a session in an empty folder, from its first block to its last:

- ``python`` runs in the names that the blocks before it left; with ``title="FILE"`` it is written to that file instead,
  as are ``toml`` and ``text`` blocks with a title;
- ``sh`` runs in Bash and has to end with code 0, or with that of ``exit=N``;
- ``diff`` with a title replaces lines of that file, or of ``from="FILE"``: ``- old`` by the ``+ new`` below it;
- ``text`` without a title is what the block before it printed: its lines have to be there in this order. ``...`` stands
  for anything, numbers may differ by :data:`TOLERANCE`;
- ``none`` is a drawing.

The folder of a developer's page is a copy of the checkout.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOLERANCE = 0.02
"""By which share a printed number may differ from the page, or by one in its last digit."""

_BLOCK = re.compile(r"^```(?P<language>[\w{}-]+)(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_GENERATED = re.compile(r"<!-- table .*?<!-- end of table -->", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?![\w.]*\w\.)")


@dataclass(frozen=True)
class Block:
    """``title``: the file that it is, ``exit``: the code with which it ends, ``source``: the file that it changes."""

    language: str
    text: str
    title: str = ""
    exit: int = 0
    source: str = ""


@dataclass
class Step:
    """``kind``: ``python``, ``sh``, or ``write`` of the file ``title``; ``prints``: texts that the page shows of it."""

    kind: str
    text: str
    title: str = ""
    exit: int = 0
    prints: list[str] = field(default_factory=list)


def pages() -> list[str]:
    """README and every page of the site, as paths within the project."""
    files = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(path.relative_to(ROOT).as_posix() for path in files)]


def text_of(page: str) -> str:
    """A page without its generated tables."""
    return _GENERATED.sub("", (ROOT / page).read_text(encoding="utf-8"))


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page in their order."""
    blocks = []
    for match in _BLOCK.finditer(text_of(page)):
        title = re.search(r'title="([^"]+)"', match["info"])
        code = re.search(r"exit=(\d+)", match["info"])
        source = re.search(r'from="([^"]+)"', match["info"])
        blocks.append(
            Block(
                match["language"],
                match["text"],
                title[1] if title else "",
                int(code[1]) if code else 0,
                source[1] if source else "",
            )
        )
    return blocks


_DRIVER = """
import contextlib, io, json, linecache, os, subprocess, sys, traceback
steps, names, done = json.load(open(sys.argv[1])), {"__name__": "__main__"}, []
sys.path.insert(0, os.getcwd())
for number, (kind, name, text) in enumerate(steps):
    out, code = io.StringIO(), 0
    if kind == "write":
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w") as file:
            file.write(text)
    elif kind == "sh":
        command = ["bash", "-c", "set -e\\n" + text]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        out.write(run.stdout)
        code = run.returncode
    else:
        file = f"block{number}.py"
        with open(file, "w") as written:
            written.write(text)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                exec(compile(text, file, "exec"), names)
            except BaseException:
                traceback.print_exc()
                code = 1
    done.append([code, out.getvalue()])
    if kind == "python" and code:
        break
json.dump(done, open(sys.argv[2], "w"))
"""


def steps_of(blocks: Iterable[Block]) -> list[Step]:
    """What is to be done for the blocks of a page.

    Raises:
        ValueError: a block of another language, an output of nothing.
        KeyError: a change of a file that is not there.
    """
    steps: list[Step] = []
    files: dict[str, str] = {}
    for block in blocks:
        if block.language == "diff":
            files[block.title] = edited(files[block.source or block.title], block.text)
            steps.append(Step("write", files[block.title], block.title))
        elif block.title:
            files[block.title] = block.text
            steps.append(Step("write", block.text, block.title))
        elif block.language in ("python", "sh"):
            steps.append(Step(block.language, block.text, exit=block.exit))
        elif block.language == "text" and steps:
            steps[-1].prints.append(block.text)
        elif block.language != "none":
            raise ValueError(f"a block of {block.language!r} does not run: {block.text}")
    return steps


def checkout(folder: Path) -> None:
    """Copy what a developer works with; ``results`` of the real checkout stay as they are."""
    beside = shutil.ignore_patterns(".git", "results", "build", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, folder, ignore=beside, dirs_exist_ok=True)


def run(steps: list[Step], folder: Path, environment: dict[str, str]) -> list[tuple[int, str]]:
    """Run steps in a folder: exit code and printed text of each; Python that fails is the last."""
    programs = folder.parent / f"{folder.name}-programs"
    programs.mkdir()
    scripts = {
        "ipuperf": f"#!{sys.executable}\nfrom ipuperf.cli import main\nif __name__ == '__main__':\n    main()\n",
        "python": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n',
        "pytest": f'#!/bin/sh\nexec "{sys.executable}" -m pytest -p no:cacheprovider "$@"\n',
    }
    for name, text in scripts.items():
        file = programs / name
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
    (programs / "driver.py").write_text(_DRIVER, encoding="utf-8")
    listed = [(step.kind, step.title, step.text) for step in steps]
    (programs / "steps.json").write_text(json.dumps(listed), encoding="utf-8")
    if not (folder / "scenarios").exists():
        (folder / "scenarios").symlink_to(ROOT / "scenarios")
    package = folder if (folder / "ipuperf").is_dir() else ROOT
    path = f"{programs}{os.pathsep}{environment['PATH']}"
    subprocess.run(
        [sys.executable, programs / "driver.py", programs / "steps.json", programs / "done.json"],
        cwd=folder,
        env=environment | {"PATH": path, "PYTHONPATH": f"{package}{os.pathsep}{folder}", "COLUMNS": "200"},
        check=True,
        timeout=3600,
    )
    done: list[tuple[int, str]] = json.loads((programs / "done.json").read_text(encoding="utf-8"))
    return done


def edited(text: str, change: str) -> str:
    """A file after a ``diff`` block."""
    old, new = (re.findall(rf"^\{sign} ?(.*)$", change, re.MULTILINE) for sign in "-+")
    if len(old) != len(new):
        raise ValueError(f"{len(old)} lines to take out, {len(new)} to put in: {change}")
    for before, after in zip(old, new, strict=True):
        if text.count(before) != 1:
            raise ValueError(f"{before!r} is there {text.count(before)} times")
        text = text.replace(before, after)
    return text


def missing(expected: str, printed: str) -> list[str]:
    """Lines of a ``text`` block that were not printed, in their order."""
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    at, absent = 0, []
    for line in expected.splitlines():
        words = " ".join(line.split())
        if words in ("", "..."):
            continue
        here = next((number for number in range(at, len(lines)) if matches(words, lines[number])), None)
        if here is None:
            absent.append(line)
        else:
            at = here + 1
    return absent


def matches(expected: str, printed: str) -> bool:
    """Whether a printed line begins as the page says, numbers within the tolerance."""
    pattern, last = "", 0
    numbers = []
    for number in _NUMBER.finditer(expected):
        pattern += _words(expected[last : number.start()]) + r"([+-]?\d[\d,]*(?:\.\d+)?)"
        numbers.append(number[0])
        last = number.end()
    match = re.match(pattern + _words(expected[last:]), printed)
    return match is not None and all(close(a, b) for a, b in zip(numbers, match.groups(), strict=True))


def _words(text: str) -> str:
    return ".*?".join(re.escape(part) for part in text.split("..."))


def close(expected: str, printed: str) -> bool:
    """Whether two numbers agree: within the tolerance, or one in the last digit of the page's."""
    a, b = (float(text.replace(",", "")) for text in (expected, printed))
    digits = len(expected.partition(".")[2])
    return abs(a - b) <= max(TOLERANCE * abs(a), 1.01 * 10.0**-digits if digits else 0)
