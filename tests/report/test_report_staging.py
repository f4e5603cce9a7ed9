"""A report is there whole or not at all."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ipuperf.report import folder, folder_kept, write_report
from ipuperf.report.staging import staged
from ipuperf.trace import Trace


def _tree(place: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


def _full_disk(trace: Trace, path: Path) -> None:
    """As a writer whose disk is full after the first bytes."""
    path.write_bytes(b"first bytes")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("good", [0, 1, 4, 7])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_full_disk_leaves_what_was_there(
    good: int, earlier: bool, trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "deep" / "report"
    if earlier:
        target.mkdir(parents=True)
        (target / "summary.txt").write_text("an earlier report")
    before = _tree(tmp_path)
    views = [replace(view, write=lambda _, path: path.write_text("x")) for view in folder.VIEWS]
    views[good] = replace(views[good], write=_full_disk)
    monkeypatch.setattr(folder, "VIEWS", views)
    with pytest.raises(OSError, match="the report cannot be written: No space left on device") as caught:
        write_report(trace, target)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(target)
    assert _tree(tmp_path) == before


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), staged(tmp_path / "a" / "b") as temporary:  # noqa: PT012
        (temporary / "file").write_text("x")
        raise KeyboardInterrupt
    assert _tree(tmp_path) == {}


def test_files_of_others_stay_and_those_of_the_same_name_are_replaced(tmp_path: Path) -> None:
    target = tmp_path / "report"
    target.mkdir()
    for name in ("notes.txt", "summary.txt"):
        (target / name).write_text("old")
    with staged(target) as temporary:
        (temporary / "summary.txt").write_text("new")
        assert (target / "summary.txt").read_text() == "old", "nothing is seen before all is there"
    assert _tree(tmp_path) == {"report": None, "report/notes.txt": b"old", "report/summary.txt": b"new"}


def test_the_mode_is_that_of_any_new_folder(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with staged(tmp_path / "report"):
        pass
    assert (tmp_path / "report").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_that_stays_empty_goes_again_with_the_parents_made_for_it(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with folder_kept(tmp_path / "old" / "a" / "b"):
        assert (tmp_path / "old" / "a" / "b").is_dir()
        (tmp_path / "old" / "file").write_text("x")
    assert _tree(tmp_path) == {"old": None, "old/file": b"x"}
    with folder_kept(tmp_path / "old"):
        pass
    assert (tmp_path / "old").is_dir()


def test_a_file_in_the_way_is_named(tmp_path: Path, trace: Trace) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="the folder cannot be made or written to") as caught:
        write_report(trace, tmp_path / "file" / "report")
    assert caught.value.filename == str(tmp_path / "file" / "report")
    assert _tree(tmp_path) == {"file": b"x"}
