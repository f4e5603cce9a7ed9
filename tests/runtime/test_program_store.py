"""Lowered programs on disk: what comes from a file is what lowering would make; a file that is no good is replaced."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf import ops
from ipuperf.ir import FLOAT16, Builder, Ir, Stream, TensorSpec, Variable
from ipuperf.lowering import Again, DeviceProgram, DoesNotFitError, stored
from ipuperf.lowering.compilation import Compilation
from ipuperf.lowering.program import OpInfo
from ipuperf.lowering.stored import UnlistedValue, restored
from ipuperf.runtime import program_store
from ipuperf.runtime.executable import Executable, LoweringOptions
from ipuperf.runtime.run_context import RUN
from ipuperf.runtime.settings import RunSettings


def program(trips: int = 8, *, rows: int = 48, op: type = ops.Gelu, replicas: int = 1) -> Ir:
    """A stream, a loop around a product, a result."""
    made = Ir(replication_factor=replicas)
    main, body = made.main_graph, made.create_graph("body")
    spec, square = TensorSpec((rows, 64), FLOAT16), TensorSpec((64, 64), FLOAT16)
    weights = main.add(Variable("w", square, main, np.zeros(square.shape, np.float16), made.grouping()))
    given = [body.add_input(spec, "x"), body.add_input(square, "w")]
    inner = Builder(body)
    body.add_output(inner.op(op, [inner.op(ops.MatMul, given, "product")], "y"))
    body.add_output(given[1])
    build = Builder(main)
    stream = main.add(Stream("in", spec, main, "h2d"))
    empty = build.op(ops.Init, [], "empty", shape=spec.shape, dtype=spec.dtype, init="undefined")
    x = build.op(ops.HostLoad, [empty], "x", stream=stream)
    x, _ = build.create(ops.Loop, [x, weights], ["y", "w"], callee=body, trip_count=trips).outputs
    build.op(ops.Softmax, [x], "z")
    return made


def executable(
    folder: Path | None, ir: Ir, machine: str = "gc200-1", name: str = "program", **lowering: Any
) -> Executable:
    options = LoweringOptions(again=True, kept_in=None if folder is None else str(folder), **lowering)
    return Executable(ir, machine, name=name, settings=RunSettings(), lowering=options)


@pytest.fixture
def lowered(monkeypatch: Any) -> list[int]:
    """One entry for each program that was really lowered."""
    made: list[int] = []
    inner = Compilation.__init__
    monkeypatch.setattr(Compilation, "__init__", lambda *args: made.append(1) or inner(*args))
    return made


@contextmanager
def another_process() -> Iterator[None]:
    """Nothing is known from before."""
    with RUN.fresh(Again):
        yield


def everything(found: DeviceProgram) -> Any:
    """All that a program holds, as JSON and tables."""
    document, tables = stored.stored(found)
    return document, {name: (table.dtype, table.tolist()) for name, table in tables.items()}


def test_from_the_file_comes_what_lowering_makes(tmp_path: Path, lowered: list[int]) -> None:
    traces, programs = [], []
    for folder in (None, tmp_path, tmp_path):
        with another_process():
            made = executable(folder, program())
            traces.append(made.trace)
            programs.append(made.device_program)
    assert len(lowered) == 2
    assert traces[0] == traces[1] == traces[2]
    fresh, _, found = programs
    assert everything(found) == everything(fresh)
    assert found.describe() == fresh.describe()
    assert found.warnings == fresh.warnings
    assert found.plans == fresh.plans
    assert [p.request for p in found.plans[next(iter(found.plans))]] == [
        p.request for p in fresh.plans[next(iter(fresh.plans))]
    ]


def test_another_count_is_found_too_and_all_else_is_not(tmp_path: Path, lowered: list[int]) -> None:
    with another_process():
        _ = executable(tmp_path, program()).device_program
    with another_process():
        made = executable(tmp_path, program(100), name="other")
        wanted = executable(None, program(100), name="other").changed(lowering=LoweringOptions())
        assert made.device_program.name == "other"
        assert made.trace == wanted.trace
    assert len(lowered) == 2
    changes: list[Any] = [
        lambda: executable(tmp_path, program(rows=96)),
        lambda: executable(tmp_path, program(op=ops.Exp)),
        lambda: executable(tmp_path, program(), "bow-1"),
        lambda: executable(tmp_path, program(), sync_pattern="full"),
        lambda: executable(tmp_path, program(), outlining=1.0),
        lambda: executable(tmp_path, program(1)),
    ]
    for number, change in enumerate(changes):
        with another_process():
            _ = change().device_program
        assert len(lowered) == 3 + number
    assert len(list(tmp_path.iterdir())) == 7


def test_a_program_that_does_not_fit(tmp_path: Path, lowered: list[int]) -> None:
    problems = []
    for folder in (None, tmp_path, tmp_path):
        with another_process():
            made = executable(folder, program(rows=4_000_000))
            _ = made.device_program
            problems.append(made.memory_problems())
    assert problems[0]
    assert problems[0] == problems[1] == problems[2]
    for _ in range(2):
        strict = executable(tmp_path, program(rows=4_000_000))
        strict.settings.strict_memory = True
        with another_process(), pytest.raises(DoesNotFitError) as raised:
            _ = strict.device_program
        assert str(raised.value) == "; ".join(problems[0])


def _changed(path: Path, **changes: Any) -> bytes:
    """The file with other members of its document or other tables."""
    made = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "document.json":
                document = json.loads(content)
                document["program"].update({key: value for key, value in changes.items() if key != "versions"})
                document["versions"] = changes.get("versions", document["versions"])
                content = json.dumps(document).encode()
            new.writestr(name, content)
    return made.getvalue()


def test_damaged_and_foreign_files_are_written_anew(tmp_path: Path, lowered: list[int]) -> None:
    with another_process():
        wanted = executable(tmp_path, program()).trace
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    inside = 200  # of the compressed document
    bad = [b"", b"no zip", good[: len(good) // 2], good[:inside] + bytes([good[inside] ^ 255]) + good[inside + 1 :]]
    bad += [_changed(path, versions={"format": "another"}), _changed(path, versions=None), _changed(path, atoms=[])]
    bad += [_changed(path, groups=groups) for groups in ([], [["Popen", [], 1]], [["DeviceProgram", ["name"], 1]])]
    bad += [_changed(path, groups=[["tuple", [], 1]]), _changed(path, groups=[["OpInfo", list(OpInfo._fields), 10**9]])]
    for number, content in enumerate(bad):
        path.write_bytes(content)
        with another_process():
            assert executable(tmp_path, program()).trace == wanted
        assert path.read_bytes() == good, number
        assert len(lowered) == 2 + number


def test_another_version_of_the_code_counts(tmp_path: Path, lowered: list[int], monkeypatch: Any) -> None:
    with another_process():
        _ = executable(tmp_path, program()).device_program
    now = program_store._versions()
    monkeypatch.setattr(program_store, "_versions", lambda: {**now, "ipuperf": "0.0"})
    for _ in range(2):
        with another_process():
            _ = executable(tmp_path, program()).device_program
    assert len(lowered) == 2


def test_sources_have_a_digest_by_name_and_content(tmp_path: Path) -> None:
    digests = set()
    for name, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2"), ("b.toml", "2")):
        folder = tmp_path / f"{name}{text}"
        folder.mkdir()
        (folder / name).write_text(text)
        digests.add(program_store.digest_of_sources([folder]))
    assert len(digests) == 4


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("")
    with another_process():
        assert executable(tmp_path / "file", program()).trace == executable(None, program()).trace
    assert "cannot be kept" in caplog.text


def test_an_op_of_a_users_own_is_not_kept(tmp_path: Path) -> None:
    class Own(ops.Gelu):
        type = "Own"

    with another_process():
        _ = executable(tmp_path, program(op=Own)).device_program
    assert not list(tmp_path.iterdir())


def test_only_what_is_listed_is_stored() -> None:
    found = replace(executable(None, program()).device_program, warnings=(object(),))
    with pytest.raises(UnlistedValue, match="object"):
        stored.stored(found)


def test_atoms_keep_their_types() -> None:
    values = (1, True, 1.0, -0.0, 0.0, float("inf"), None, "", "1", 2**70, 0.1)
    document, tables = stored.stored(replace(executable(None, program()).device_program, warnings=values))
    again = restored(json.loads(json.dumps(document)), tables)
    assert [(type(v), repr(v)) for v in again.warnings] == [(type(v), repr(v)) for v in values]


def test_what_is_one_object_stays_one() -> None:
    found = executable(None, program()).device_program
    again = restored(*stored.stored(found))
    steps, others = list(found.leaves()), list(again.leaves())
    assert [steps.index(s) for s in steps] == [others.index(s) for s in others]
    assert len({id(s) for s in steps}) == len({id(s) for s in others})
