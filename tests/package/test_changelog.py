"""The changelog begins with what is unreleased; the version below it is the package's, and the citation's."""

import re
from pathlib import Path

from ipuperf.base.version import __version__

ROOT = Path(__file__).parents[2]


def test_the_newest_version_is_that_of_the_package() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:2] == ["Unreleased", __version__]
    versions = [tuple(map(int, heading.split("."))) for heading in headings[1:]]
    assert versions == sorted(set(versions), reverse=True)


def test_the_citation_has_the_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
