"""Golden rows: one line for each text that only a meant change may move. ``docs/testing.md`` says how to use them.

``<room>.txt`` in this folder has the rows of the tests in ``tests/<room>``: a digest of the text, its number of lines,
and the name of the test. The texts themselves are not kept; ``--golden-texts DIR`` writes them.
"""

import hashlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent
TESTS = FOLDER.parent
TEXTS = TESTS.parent / "results" / "golden"
"""Where the texts of rows that moved are written."""
Golden = Callable[..., None]
"""The fixture ``golden``."""
_WRITTEN = pytest.StashKey[dict[Path, dict[str, str]]]()
"""New rows of a session, by file and name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--golden-texts DIR``; ``--update-baselines`` is an option of ipuperf's own plug-in."""
    parser.addoption(
        "--golden-texts", type=Path, metavar="DIR", help="write the texts of all golden rows to DIR/<room>/<test>.txt"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Start without new rows."""
    config.stash[_WRITTEN] = {}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the new rows into their files, which workers of xdist share."""
    for file, rows in session.config.stash[_WRITTEN].items():
        _merge(file, rows)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """``golden(text)``: fails unless the test has a row of this text; ``golden(text, "part")`` is for several texts.

    The text may be a list of lines or a mapping, which becomes a line for each item.
    """

    def compare(text: Any, part: str = "") -> None:
        __tracebackhide__ = True
        check(request.node, text, part)

    return compare


def check(test: pytest.Item, text: Any, part: str = "") -> None:
    """Compare a text with the row of the test, or keep the new row."""
    __tracebackhide__ = True
    name = f"{test.path.stem} {test.name}{part and f' {part}'}"
    room = test.path.relative_to(TESTS).parts[0]
    file, text = FOLDER / f"{room}.txt", "\n".join(lines_of(text))
    row = f"{hashlib.blake2s(text.encode(), digest_size=4).hexdigest()} {len(text.splitlines()):5}"
    if test.config.option.golden_texts:
        _write_text(test.config.option.golden_texts / room, name, text)
    if test.config.option.update_baselines:
        test.config.stash[_WRITTEN].setdefault(file, {})[name] = row
        return
    before = _read(file).get(name)
    if row != before:
        path = _write_text(TEXTS / room, name, text)
        lines = f"{before.split()[1]} before" if before else "there was no row before"
        place = shlex.quote(f"{test.path.relative_to(TESTS.parent).as_posix()}::{test.name}")
        pytest.fail(
            f"the golden row moved: {len(text.splitlines())} lines, {lines}; the text is in {path}.\nTo compare, "
            f"run `pytest {place} --golden-texts DIR` in a worktree of an earlier commit.\n"
            "If the change is meant, run the test with --update-baselines.",
            pytrace=False,
        )


def lines_of(value: Any) -> Iterator[str]:
    """A text as it is, a mapping as ``key: value``, and the lines of each item of a list."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (f"{key}: {item}" for key, item in value.items())
    elif isinstance(value, Iterable):
        yield from (line for item in value for line in lines_of(item))
    else:
        raise TypeError(f"golden: {value!r} is no text, mapping or list of them")


def _write_text(folder: Path, name: str, text: str) -> Path:
    """Write a text to a file with the name of its row, as far as file systems take it."""
    short = re.sub(r"[^\w.,=+-]+", "_", name).strip("_")
    if short != name.replace(" ", "_") or len(short) > 100:
        short = f"{short[:100]}-{hashlib.blake2s(name.encode(), digest_size=3).hexdigest()}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{short}.txt"
    path.write_text(f"{text}\n", encoding="utf-8")
    return path


def _parsed(text: str) -> dict[str, str]:
    return {line[15:]: line[:14] for line in text.splitlines()}


@cache
def _read(file: Path) -> dict[str, str]:
    return _parsed(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _merge(file: Path, rows: Mapping[str, str]) -> None:
    import fcntl

    with file.open("a+", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        merged = {**_parsed(stream.read()), **rows}
        stream.truncate(0)
        stream.write("".join(f"{merged[name]} {name}\n" for name in sorted(merged)))
