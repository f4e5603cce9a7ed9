"""Pages of the documentation: how long they and their sentences are, their places and their links."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from blocks import ROOT, pages, text_of
from prose import MEAN, MOST, sentences, words

LONGEST = 300
"""Lines of a page, generated tables left out."""

LONGER = {"docs/design.md": "one page by design: whoever changes a room reads it whole"}

_LINK = re.compile(r"(?<!`)\[[^]]*\]\(([^)\s]+)\)")
_RAW = re.compile(r"^(```|~~~).*?^\1\s*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", pages())
def test_sentences_are_short(page: str) -> None:
    counts = {sentence: words(sentence) for sentence in sentences(page)}
    assert not [sentence for sentence, count in counts.items() if count > MOST]
    assert sum(counts.values()) <= MEAN * len(counts), "`python tests/docs/prose.py --over 20 PAGE` shows the long ones"


def test_sentences_are_found() -> None:
    assert sum(len(sentences(page)) for page in pages()) > 2000


def test_how_sentences_are_counted() -> None:
    counted = sentences("docs/concepts/index.md")
    assert "Half an hour." in counted
    assert words("A `b c` d: (e), 1.5 - f") == 7


@pytest.mark.parametrize("page", [page for page in pages() if page not in LONGER])
def test_a_page_is_short(page: str) -> None:
    assert len(text_of(page).splitlines()) <= LONGEST


def test_every_page_has_its_place() -> None:
    order = re.findall(r"file: (\S+)|root: (\S+)", (ROOT / "docs" / "_toc.yml").read_text(encoding="utf-8"))
    assert sorted(f"docs/{file or root}.md" for file, root in order) == [
        page for page in pages() if page != "README.md"
    ]


@cache
def anchors(page: str) -> frozenset[str]:
    """The anchors of the headings of a page, as code hosts and the site make them."""
    headings = re.findall(
        r"^#+ (.*)$", _RAW.sub(lambda raw: raw[0].strip("`") if raw[1] is None else "", text_of(page)), re.M
    )
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", [*pages(), "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "notebooks/README.md"])
def test_links_anchors_and_pictures_are_there(page: str) -> None:
    for target in _LINK.findall(_RAW.sub("", text_of(page))):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file.resolve().relative_to(ROOT).as_posix()), target


def test_pictures_of_the_concepts_are_drawn_by_the_script() -> None:
    script = (ROOT / "docs" / "pictures.py").read_text(encoding="utf-8")
    for picture in (ROOT / "docs" / "images" / "concepts").iterdir():
        assert f'"{Path(picture).stem}":' in script, picture.name
        assert picture.read_bytes().startswith(b"\x89PNG")
