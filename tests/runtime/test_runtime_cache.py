"""The cache of lowered programs: where it is, what it holds, how it stays small, many writers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from test_program_store import another_process, program

from ipuperf import cli
from ipuperf.runtime import cache
from ipuperf.runtime import executable as executables
from ipuperf.runtime.executable import Executable, LoweringOptions
from ipuperf.runtime.program_store import ProgramStore
from ipuperf.runtime.settings import RunSettings


def kept(folder: Path, size: int, used: float, number: int) -> Path:
    path = folder / f"{number:064x}.program"
    path.write_bytes(bytes(size))
    os.utime(path, (used, used))
    return path


@pytest.mark.parametrize(
    ("named", "xdg", "folder"),
    [
        ("off", "/var/xdg", None),
        ("/var/mine", "/var/xdg", "/var/mine"),
        ("~/mine", "", "/srv/me/mine"),
        ("", "/var/xdg", "/var/xdg/ipuperf"),
        ("", "relative", "/srv/me/.cache/ipuperf"),
        ("", "", "/srv/me/.cache/ipuperf"),
    ],
)
def test_where_it_is(named: str, xdg: str, folder: str | None, monkeypatch: Any) -> None:
    for name, value in ((cache.VARIABLE, named), ("XDG_CACHE_HOME", xdg), ("HOME", "/srv/me")):
        monkeypatch.setenv(name, value)
    assert cache.cache_folder() == (None if folder is None else Path(folder))


def test_a_user_without_a_home_has_none(monkeypatch: Any) -> None:
    monkeypatch.setenv(cache.VARIABLE, "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    assert cache.cache_folder() is None


@pytest.mark.parametrize("again", [True, False])
def test_large_programs_of_every_front_end_are_kept(again: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """What the user names stays as it is, small programs are not kept, and nothing is where it is off."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "new"))

    def simulated() -> Any:
        with another_process():
            lowering = LoweringOptions(again=again)
            return Executable(program(), "gc200-1", settings=RunSettings(), lowering=lowering).trace

    wanted = simulated()
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(executables, "_LARGE", 3)
    assert simulated() == wanted
    (file,) = cache.kept_files(tmp_path / "new")
    with monkeypatch.context() as reading:
        reading.setattr(ProgramStore, "write", None)
        assert simulated() == wanted
    file.path.write_bytes(b"damaged")
    assert simulated() == wanted
    assert cache.kept_files(tmp_path / "new")[0].size == file.size
    monkeypatch.setenv(cache.VARIABLE, "off")
    cache.clear(tmp_path / "new")
    assert simulated() == wanted
    assert cache.kept_files(tmp_path / "new") == []


def test_a_folder_that_cannot_be_written_is_no_news(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    monkeypatch.setattr(executables, "_LARGE", 0)
    with another_process():
        assert Executable(program(), "gc200-1", settings=RunSettings()).trace
    assert caplog.text == ""


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    paths = [kept(tmp_path, 100, 1000.0 + number, number) for number in range(5)]
    other = tmp_path / "mine.program"
    other.write_bytes(bytes(1000))
    unfinished = [tmp_path / f".{name}.tmp" for name in ("old", "new")]
    for folder in unfinished:
        folder.mkdir()
    os.utime(unfinished[0], (1000, 1000))
    cache.use(paths[0])
    cache.trim(tmp_path, 250)
    assert [path.exists() for path in paths] == [True, False, False, False, True]
    assert [path.exists() for path in (other, *unfinished)] == [True, False, True]
    cache.trim(tmp_path / "gone")


def test_writers_at_once_leave_whole_files(tmp_path: Path) -> None:
    """Three processes write the same programs and trim the folder meanwhile; each reads what it wrote or nothing."""
    code = """
import sys
from unittest import mock
sys.path[:0] = sys.argv[2:]
from test_program_store import executable, everything, program
from ipuperf.runtime import cache, program_store
store = program_store.ProgramStore(sys.argv[1], trimmed=True)
lowered = [executable(None, program(rows=rows)).device_program for rows in (32, 48)]
with mock.patch.object(program_store, "trim", lambda folder: cache.trim(folder, 20_000)):
    for number in range(30):
        for key, made in enumerate(lowered):
            digest = f"{10 * (number % 3) + key:064x}"
            store.write(digest, made)
            found = store.read(digest)
            assert found is None or everything(found) == everything(made)
"""
    arguments = [sys.executable, "-c", code, str(tmp_path), *sys.path]
    processes = [subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    assert "it is written anew" not in "".join(errors)


def test_the_command_says_and_clears(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    kept(tmp_path, 1_500_000, 1000.0, 1)

    def said(*words: str) -> str:
        result = CliRunner().invoke(cli.cli, ["cache", *words], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    assert said() == f"{tmp_path}: 1 program, 1.5 MB of 1,073.7 MB\n"
    assert said("clear") == "removed 1 program, 1.5 MB\n"
    assert said() == f"{tmp_path}: 0 programs, 0.0 MB of 1,073.7 MB\n"
    monkeypatch.setenv(cache.VARIABLE, "off")
    assert "off" in said()
    assert said("clear") == "removed 0 programs, 0.0 MB\n"
