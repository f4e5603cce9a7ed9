"""The project stands alone: nothing in it names a file outside of it, and every section that it cites is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
FOLDERS = ("ipuperf", "models", "scenarios", "notebooks", "docs", "tests", "benchmarks")
SUFFIXES = {".py", ".md", ".toml", ".ipynb", ".csv", ".json", ".html"}
MAY_LOOK_OUTSIDE = {"tests/conftest.py", "tests/docs/test_reference.py"}
"""The one place where tests look for data beside the checkout, and this file, which says what is looked for."""

OUTSIDE = re.compile(
    r"(?<![\w/])(?:\.\./)*shared/\w|(?<![\w.])/work/|/home/\w|/root/|\bseeds/\d|\bcost-model\.md"
    r"|(?<!docs/)(?<!\]\()(?<!\.\./)\breference/\w+\.(?:md|csv)|the reference's \d|\(reference,? \d"
)
NUMBER = r"\d+(?:\.\d+)*"
CITATION = re.compile(
    rf"docs/reference/(\w+\.\w+)(?:`{{0,2}}(?:\n\s*)?(?:#:? )? ?({NUMBER}(?:(?:, | and | to ){NUMBER})*)(?![\w%]))?"
)
WITHIN = re.compile(rf"\[(\w+\.md)\]\(\w+\.md\) ({NUMBER})")


def texts() -> Iterator[tuple[str, str]]:
    """(path within the project, text) of every file that can cite something."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    for path in sorted([*found, ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "pyproject.toml"]):
        if "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@cache
def sections(page: str) -> frozenset[str]:
    """The numbers of the headings of a page."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return frozenset(re.findall(rf"^##+ ({NUMBER})\.? ", text, flags=re.M))


def wrong(text: str) -> list[str]:
    """Citations in ``text`` of pages or sections that are not there."""
    found = [(page, numbers) for page, numbers in CITATION.findall(text) if not numbers]
    found += [(page, one) for page, many in CITATION.findall(text) for one in re.findall(NUMBER, many)]
    missing = [page for page, _ in found if not (REFERENCE / page).is_file()]
    there = [(page, number) for page, number in found if number and page not in missing]
    return missing + [f"{page} {number}" for page, number in there if number not in sections(page)]


@pytest.mark.heavy
def test_no_path_outside_the_project() -> None:
    lines = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts()
        if name not in MAY_LOOK_OUTSIDE and OUTSIDE.search(text)
        for number, line in enumerate(text.splitlines(), start=1)
        if OUTSIDE.search(line)
    ]
    assert not lines


def test_every_section_that_is_cited_is_there() -> None:
    found = {name: wrong(text) for name, text in texts() if not name.startswith("tests/docs/")}
    assert not {name: missing for name, missing in found.items() if missing}


@pytest.mark.parametrize("page", sorted(path.name for path in REFERENCE.glob("*.md")))
def test_pages_cite_sections_of_each_other(page: str) -> None:
    text = (REFERENCE / page).read_text(encoding="utf-8")
    assert not [found for found in WITHIN.findall(text) if found[1] not in sections(found[0])]
    for target in re.findall(r"\]\((\w[\w.]+)\)", text):
        assert (REFERENCE / target).is_file(), target
    for path in re.findall(r"`((?:ipuperf|docs|tests)/[\w/.-]+\.(?:py|md|toml))`", text):
        assert (ROOT / path).is_file(), path


def test_every_page_is_listed() -> None:
    listed = (REFERENCE / "README.md").read_text(encoding="utf-8")
    assert not [path.name for path in REFERENCE.iterdir() if path.name != "README.md" and path.name not in listed]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("``docs/reference/cycles.md`` 2.1", []),
        ("``docs/reference/cycles.md`` 2.1 and 99.9", ["cycles.md 99.9"]),
        ("(docs/reference/pipelines.md 2.3 to 2.5)", []),
        ("# docs/reference/memory.md 1: 64 tiles", []),
        ("``docs/reference/cycles.md``\n    98, so", ["cycles.md 98"]),
        ("``docs/reference/nothing.md``", ["nothing.md"]),
    ],
)
def test_wrong_citations_are_seen(text: str, found: list[str]) -> None:
    assert wrong(text) == found
