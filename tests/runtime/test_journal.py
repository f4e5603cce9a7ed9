"""What runs leave on disk, step by step: journals, reports, what is recovered, what is replaced and what stays."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rows import Golden

from ipuperf import popxl
from ipuperf.popxl import ops
from ipuperf.report import folder
from ipuperf.runtime import reports
from ipuperf.runtime.clock import SimulatedClock, activate
from ipuperf.runtime.origin import Origin, OriginError, origin_of, read_origin
from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.trace import Trace


@cache
def _trace(size: int) -> Trace:
    ir = popxl.Ir()
    with ir.main_graph:
        ops.host_store(popxl.d2h_stream((size,), popxl.float32), popxl.variable(np.ones(size, np.float32)) * 2)
    return popxl.Session(ir, "ipu_hw").executable.trace


def executable(name: str = "train", size: int = 4, *, simulated: bool = True, runs: int = 1) -> Any:
    """What a journal asks of an executable."""
    made = SimpleNamespace(name=name, is_simulated=simulated, runs=runs, is_compiled=simulated or runs > 0)
    made.as_called = lambda: SimpleNamespace(trace=_trace(size))
    return made


def origin(script: str = "/p/train.py") -> Origin:
    return Origin(script, "0", version="1", arithmetic="any")


def settings(place: Path, *made: Any, journal: bool = True) -> RunSettings:
    """Settings of a run into ``place`` that has made these executables."""
    place.mkdir(parents=True, exist_ok=True)
    found = RunSettings(report_directory=place, executables=list(made), origin=origin())
    found.journal = reports.Journal(place, origin()) if journal else None
    return found


def listing(place: Path) -> list[str]:
    """Every file below a folder with the program and session that it is of."""
    said = []
    for file in sorted(place.rglob("*")):
        name = re.sub(r"unfinished-[0-9a-f]{8}", "unfinished", str(file.relative_to(place)))
        if file.name == "run.json":
            with suppress(OriginError):
                found = read_origin(file.parent)
                name += f" ({found.script} {found.session})"
        said += [name] if file.is_file() else []
    return said


def at(place: Path, seconds: int) -> None:
    """Let all files below have been written then."""
    for file in place.rglob("run.json"):
        os.utime(file, (seconds, seconds))


@pytest.fixture(autouse=True)
def few_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "VIEWS", tuple(v for v in folder.VIEWS if v.name in ("summary.json", "trace.ipt")))


STEPS: dict[str, Callable[[Path, pytest.MonkeyPatch], Any]] = {}


def step(function: Any) -> Any:
    STEPS[function.__name__] = function
    return function


@step
def kept_once(place: Path, patch: pytest.MonkeyPatch) -> Any:
    """A session is written again only if its trace is another one."""
    run = settings(place, executable())
    journal = run.journal
    said = [journal.holds_sessions]
    for size in (4, 4, 8):
        run.executables[0].as_called = lambda size=size: SimpleNamespace(trace=_trace(size))
        journal.keep(0, run.executables[0])
        kept = journal.file_of("0-train", _trace(size))
        said += [kept is not None, kept and kept.stat().st_mtime_ns > 10**10, journal.file_of("0-train", _trace(2))]
        os.utime(journal.folder / "0-train" / "trace.ipt", (1, 1))
    (journal.folder / "0-train" / "trace.ipt").unlink()
    return said, journal.file_of("0-train", _trace(8)), journal.holds_sessions


@step
def without_a_trace(place: Path, patch: pytest.MonkeyPatch) -> Any:
    run = settings(place, executable())
    run.executables[0].as_called = lambda: 1 / 0
    run.journal.keep(0, run.executables[0])
    return run.journal.holds_sessions


@step
def full_disk(place: Path, patch: pytest.MonkeyPatch) -> Any:
    run = settings(place, executable())
    patch.setattr(Trace, "save", lambda self, path: (_ for _ in ()).throw(OSError(28, "no space")))
    run.journal.keep(0, run.executables[0])
    return run.journal.holds_sessions, run.journal.file_of("0-train", _trace(4))


@step
def which_are_kept(place: Path, patch: pytest.MonkeyPatch) -> Any:
    """Simulated ones; on the wall clock also those that have run."""
    cases = [(False, 0), (False, 1), (True, 0), (True, 1)]
    found = []
    for clock in (None, SimulatedClock()):
        said: list[int] = []
        run = RunSettings(executables=[executable(simulated=a, runs=b) for a, b in cases])
        run.journal = SimpleNamespace(keep=lambda number, one, said=said: said.append(number))
        with activate(clock) if clock else use_settings(run):
            reports.keep_finished(run)
        found.append(said)
    run.journal = None
    return found, reports.keep_finished(run)


@step
def names_and_order(place: Path, patch: pytest.MonkeyPatch) -> Any:
    names = ("train", "a b/c", "--", "", "ü", "x.y_z-1", "-a-")
    for number in (0, 2, 10, 9):
        (place / f"{number}-x").mkdir(parents=True)
        (place / f"{number}-x" / "run.json").write_text("{}")
    (place / "x-1").mkdir()
    return [reports._folder_name(3, executable(name)) for name in names], [f.name for f in reports._folders(place)]


@step
def all_reports(place: Path, patch: pytest.MonkeyPatch) -> Any:
    run, told = settings(place, executable("a"), executable("b", simulated=False, runs=0)), []
    return [f.name for f in reports.write_reports(run, written=lambda f: told.append(f.name))], told


@step
def compiled_reports(place: Path, patch: pytest.MonkeyPatch) -> Any:
    run = settings(place, executable("a", simulated=False, runs=0), executable("b", simulated=False), journal=False)
    with use_settings(run):
        return [f.name for f in reports.write_reports(compiled=True)]


@step
def no_folder(place: Path, patch: pytest.MonkeyPatch) -> Any:
    return reports.write_reports(RunSettings(executables=[executable()])), reports.write_reports()


@step
def nobody_said_how(place: Path, patch: pytest.MonkeyPatch) -> Any:
    run = settings(place, executable(), journal=False)
    run.origin = None
    return [f.name for f in reports.write_reports(run)]


@step
def the_trace_is_one_file(place: Path, patch: pytest.MonkeyPatch) -> Any:
    """The report's trace is the journal's, by a link or a copy."""
    found = []
    for name in ("link", "copy"):
        if name == "copy":
            patch.setattr(os, "link", lambda *given: (_ for _ in ()).throw(OSError()))
        run, saved = settings(place / name, executable()), []
        reports.keep_finished(run)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Trace, "save", lambda self, path, saved=saved: saved.append(path))
            reports.write_reports(run)
        found.append((len(saved), (place / name / "0-train" / "trace.ipt").stat().st_size > 0))
    return found


@step
def earlier_reports(place: Path, patch: pytest.MonkeyPatch) -> Any:
    """A run replaces those of its program that are older, whatever their number, and rubbish of its own sessions."""
    for number in range(3):
        reports.write_reports(settings(place, *[executable(f"old{n}") for n in range(number + 1)], journal=False))
    at(place, 100)
    (place / "1-old1" / "notes.txt").write_text("mine")
    (place / ".0-train.abc.tmp").mkdir()
    (place / ".1-old1.abc.tmp").mkdir()
    reports.write_reports(settings(place, executable()))
    return [f.name for f in sorted(place.iterdir())]


@step
def a_run_that_made_nothing(place: Path, patch: pytest.MonkeyPatch) -> Any:
    reports.write_reports(settings(place, executable("old"), journal=False))
    at(place, 100)
    return reports.write_reports(settings(place))


@step
def another_program(place: Path, patch: pytest.MonkeyPatch) -> Any:
    reports.write_reports(settings(place, executable(), journal=False))
    (place / "7-x").mkdir()
    (place / "7-x" / "run.json").write_text("no JSON")
    reports.Journal(place, origin("/p/other.py"))


@step
def an_unreadable_one_is_nobodys(place: Path, patch: pytest.MonkeyPatch) -> Any:
    (place / "7-x").mkdir(parents=True)
    (place / "7-x" / "run.json").write_text("{}")
    return reports.Journal(place, origin()).holds_sessions


@step
def no_room_for_a_journal(place: Path, patch: pytest.MonkeyPatch) -> Any:
    place.mkdir()
    patch.setattr(reports, "_write_origin", lambda *given: (_ for _ in ()).throw(OSError(28, "no space")))
    reports.Journal(place, origin())


def cut_short(place: Path, *made: Any) -> None:
    reports.keep_finished(settings(place, *made))


@step
def recovered(place: Path, patch: pytest.MonkeyPatch) -> Any:
    told: list[str] = []
    cut_short(place, executable("a"), executable("b", 8))
    reports.recover(place, lambda f: told.append(f.name))
    return told


@step
def recovered_beside_reports(place: Path, patch: pytest.MonkeyPatch) -> Any:
    """A whole report that is newer stays; an older one, and one with rubbish beside it, are written again."""
    reports.write_reports(settings(place, *(executable(name, 2) for name in "abc"), journal=False))
    at(place / "0-a", 50)
    at(place / "1-b", 200)
    at(place / "2-c", 200)
    (place / ".2-c.x.tmp").mkdir()
    cut_short(place, *(executable(name, 4) for name in "abc"))
    at(reports.unfinished(place)[0], 100)
    reports.recover(place)
    return [Trace.load(place / name / "trace.ipt") == _trace(4) for name in ("0-a", "1-b", "2-c")]


@step
def nothing_was_cut_short(place: Path, patch: pytest.MonkeyPatch) -> Any:
    place.mkdir()
    reports.recover(place)


@step
def nothing_had_finished(place: Path, patch: pytest.MonkeyPatch) -> Any:
    cut_short(place)
    reports.recover(place)


@step
def all_have_reports(place: Path, patch: pytest.MonkeyPatch) -> Any:
    reports.write_reports(settings(place, executable(), journal=False))
    cut_short(place)
    reports.recover(place)


@step
def the_earliest_first(place: Path, patch: pytest.MonkeyPatch) -> Any:
    for number, name in enumerate(("bb", "aa", "cc")):
        (place / f"unfinished-{name}").mkdir(parents=True)
        os.utime(place / f"unfinished-{name}", (number + 1, number + 1))
    return [f.name for f in reports.unfinished(place)]


@step
def who_is_older(place: Path, patch: pytest.MonkeyPatch) -> Any:
    place.mkdir()
    for name, seconds in (("a", 1), ("b", 2), ("c", 2)):
        (place / name).write_text("")
        os.utime(place / name, (seconds, seconds))
    return [reports._is_older(place / one, place / other) for one in "abd" for other in "abcd"]


@step
def what_has_changed(place: Path, patch: pytest.MonkeyPatch) -> Any:
    place.mkdir()
    (place / "p.py").write_text("1")
    (place / "m.toml").write_text("")
    patch.setenv("POPLAR_X", "1")
    patch.setenv("OTHER_X", "1")
    patch.chdir(place)
    found = origin_of(Path("p.py"), ["a"], "m.toml", "wall")
    said = [Path(found.script).name, found.arguments, Path(found.machine).is_absolute(), found.clock, found.changed()]
    said += [found.environment.get("POPLAR_X"), found.environment.get("OTHER_X"), found.sha256[:8], found.session]
    said.append(origin_of(Path("p.py"), [], "pod4", "wall").machine)
    said.append(replace(found, folder="/nowhere").changed())
    (place / "p.py").write_text("2")
    said.append(found.changed().partition("p.py")[2])
    (place / "p.py").unlink()
    return [*said, found.changed().partition("p.py")[2]]


@step
def origins_that_cannot_be_read(place: Path, patch: pytest.MonkeyPatch) -> Any:
    place.mkdir()
    said = []
    for text in (None, "", "[]", "{}", '{"arguments": 1}', '{"arguments": [], "other": 1}'):
        if text is not None:
            (place / "run.json").write_text(text)
        try:
            said.append(read_origin(place))
        except OriginError as error:
            said.append(str(error).replace(str(place), "").partition(": ")[0])
    return said


@pytest.mark.parametrize("name", STEPS)
def test_every_step(
    name: str, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "out"
    try:
        said = repr(STEPS[name](place, monkeypatch))
    except (reports.ReportFolderError, OSError) as error:
        said = f"{type(error).__name__}: {error}"
    monkeypatch.undo()
    found = listing(place) if place.exists() else []
    text = said.replace(str(tmp_path), "")
    golden({"says": text, "stderr": capsys.readouterr().err.strip(), "files": "; ".join(found)})
