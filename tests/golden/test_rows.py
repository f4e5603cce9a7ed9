"""A golden row holds for its text alone, and says where a text that moved is."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rows


@pytest.fixture
def test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A test of a room, as far as :func:`rows.check` looks at it."""
    for name in ("FOLDER", "TESTS", "TEXTS"):
        monkeypatch.setattr(rows, name, tmp_path / name.lower())
    rows.FOLDER.mkdir()
    option = SimpleNamespace(golden_texts=None, update_baselines=True)
    config = SimpleNamespace(option=option, stash=pytest.Stash())
    rows.pytest_configure(config)
    yield SimpleNamespace(path=rows.TESTS / "room" / "test_x.py", name="test[a b/c]", config=config)
    rows._read.cache_clear()


def written(test: Any, *texts: Any) -> None:
    """Write the rows of some texts, one part of the test each, in a session of its own."""
    for number, text in enumerate(texts):
        rows.check(test, text, f"part {number}")
    rows.pytest_sessionfinish(SimpleNamespace(config=test.config))
    rows.pytest_configure(test.config)


def test_rows_are_those_of_the_texts(test: Any) -> None:
    written(test, ["one", "two"], {"key": 3})
    written(test, "one\ntwo")
    lines = (rows.FOLDER / "room.txt").read_text().splitlines()
    assert [line[8:] for line in lines] == ["     2 test_x test[a b/c] part 0", "     1 test_x test[a b/c] part 1"]
    test.config.option.update_baselines = False
    for text in ("one\ntwo", ["one", ["two"]], ["one\ntwo"]):
        rows.check(test, text, "part 0")
    rows.check(test, "key: 3", "part 1")


@pytest.mark.parametrize("text", ["one\ntwo ", "one\n\ntwo", "one", ""])
def test_another_text_fails_and_is_written(test: Any, text: str) -> None:
    written(test, "one\ntwo")
    test.config.option.update_baselines = False
    with pytest.raises(pytest.fail.Exception, match=rf"{len(text.splitlines())} lines, 2 before") as failure:
        rows.check(test, text, "part 0")
    (file,) = rows.TEXTS.glob("room/*.txt")
    assert file.read_text() == f"{text}\n"
    assert str(file) in str(failure.value)


def test_all_texts_are_written_where_asked(test: Any, tmp_path: Path) -> None:
    test.config.option.golden_texts = tmp_path / "texts"
    written(test, "one", "two")
    assert sorted(file.read_text() for file in (tmp_path / "texts").rglob("*.txt")) == ["one\n", "two\n"]


def test_what_is_no_text_is_refused(test: Any) -> None:
    with pytest.raises(TypeError, match="golden: 3"):
        rows.check(test, ["one", 3])
