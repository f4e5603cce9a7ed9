"""Damaged files: whatever one cell holds and wherever a file ends, it is refused with its place, or it is of use."""

import contextlib
import io
import json
import os
import re
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ipuperf
from ipuperf import popxl
from ipuperf.popxl import ops
from ipuperf.report import report_page, summary_text
from ipuperf.trace import TABLES, Trace, TraceError, check
from ipuperf.trace.folded import FOLDED, REPEATS
from ipuperf.trace.schema import BELOW


def _simulated() -> Trace:
    """A loop on two replicas, with host transfers and a collective: tables that are folded."""
    ir = popxl.Ir(replication=2)
    ir.num_host_transfers = 3
    with ir.main_graph, popxl.in_sequence():
        x = ops.host_load(popxl.h2d_stream((4, 8), popxl.float32, "in"))
        w = popxl.variable(np.ones((8, 8), np.float32), name="w")
        y = ops.collectives.replicated_all_reduce(ops.matmul(x, w))
        ops.host_store(popxl.d2h_stream(y.shape, y.dtype, "out"), y)
    return ipuperf.simulate_session(popxl.Session(ir, "ipu_hw"), machine="pod4")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, synthetic: ModuleType) -> dict[str, dict[str, bytes]]:
    """Members of the files of two traces: one simulated, one with all tables."""
    found = {}
    for name, trace in (("simulated", _simulated()), ("written", synthetic.pipeline_trace())):
        path = tmp_path_factory.mktemp("traces") / f"{name}.ipt"
        trace.save(path)
        assert check(Trace.load(path)) == []
        with zipfile.ZipFile(path) as archive:
            found[name] = {member: archive.read(member) for member in archive.namelist()}
    return found


def _write(members: dict[str, bytes], path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _with_cell(members: dict[str, bytes], member: str, array: str, place: int, value: object) -> dict[str, bytes]:
    with np.load(io.BytesIO(members[member])) as kept:
        arrays = dict(kept)
    cells = arrays[array]
    if isinstance(value, int) and cells.dtype.kind in "iu":
        cells = cells.astype(np.int64)
    elif isinstance(value, str):
        cells = cells.astype("U32")
    cells = cells.copy()
    cells.reshape(-1)[place % cells.size] = value
    buffer = io.BytesIO()
    np.savez(buffer, **{**arrays, array: cells})
    return {**members, member: buffer.getvalue()}


def _cells(members: dict[str, bytes]) -> list[tuple[str, str, np.dtype]]:
    found = []
    for member in (name for name in members if name.endswith(".npz")):
        with np.load(io.BytesIO(members[member])) as arrays:
            found += [(member, name, arrays[name].dtype) for name in arrays.files if arrays[name].size]
    return found


def _refusal(path: Path) -> str:
    """The message with which a file is refused; "" for one that is of use."""
    try:
        trace = Trace.load(path)
    except TraceError as error:
        return str(error)
    with contextlib.suppress(TraceError):  # said by the reader itself, as of too many slices
        check(trace)
        summary_text(trace)
        trace.operations_by_ipu()
        report_page(trace)
    return ""


EXAMPLES = int(os.environ.get("DAMAGES", "50"))
VALUES = [-1, -2, -(2**31), 2**31 - 1, 2**31, 2**62, 2**63 - 1, 0, 1, 7, 10**9, 0.5, float("nan"), float("inf"), "a"]


@pytest.mark.heavy
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_cell_of_any_table(files: dict, tmp_path: Path, data: st.DataObject) -> None:
    members = files[data.draw(st.sampled_from(sorted(files)))]
    member, array, _ = data.draw(st.sampled_from(_cells(members)))
    place, value = data.draw(st.integers(0, 10**6)), data.draw(st.sampled_from(VALUES))
    with np.errstate(all="ignore"):
        try:
            _write(_with_cell(members, member, array, place, value), tmp_path / "bad.ipt")
        except (ValueError, OverflowError):
            return  # the array cannot hold it
    said = _refusal(tmp_path / "bad.ipt")
    assert not said or re.fullmatch(rf"cannot read trace {re.escape(str(tmp_path))}/bad\.ipt: .+", said)


REFERENCES = {*((table, "op_id") for table in ("steps", "programs", "variables", "code", "transfers", "plans"))}
REFERENCES |= {("steps", "program_id"), ("programs", "parent"), ("transfers", "link_id"), ("instances", "segment")}
REFERENCES |= {("instances", "parent"), ("tile_runs", "segment"), ("steps", "loop"), ("live_intervals", "class_id")}
"""Columns that name a row of another table."""


def _impossible() -> list[tuple[str, str, int]]:
    """Of each column of numbers, what no trace holds."""
    found = []
    for table in TABLES.values():
        for column in table.columns:
            if column.dtype in ("i4", "i8") and column.least is not None:
                found.append((table.name, column.name, column.least - 1))
                if column.dtype == "i8":
                    found.append((table.name, column.name, BELOW))
            if (table.name, column.name) in REFERENCES:
                found.append((table.name, column.name, 2**31 - 2))
            if column.name in ("ipu", "replica", "tile", "tile_from", "tile_to", "active_tiles", "argmax_tile"):
                found.append((table.name, column.name, 2**31 - 2))
    return found


@pytest.mark.heavy
@pytest.mark.parametrize(("table", "column", "value"), _impossible())
def test_what_no_trace_holds_is_refused_with_table_column_and_row(
    files: dict, tmp_path: Path, table: str, column: str, value: int
) -> None:
    tried = 0
    for members in files.values():
        member = f"{table}.npz" if f"{table}.npz" in members else f"{table}.folded.npz"
        if (member, column) not in [cell[:2] for cell in _cells(members)] or (table in FOLDED and column in REPEATS):
            continue
        _write(_with_cell(members, member, column, 0, value), tmp_path / "bad.ipt")
        with pytest.raises(TraceError) as error:
            Trace.load(tmp_path / "bad.ipt")
        assert table in str(error.value)
        tried += 1
    if not tried:
        pytest.skip("no row of it in these traces")


@pytest.mark.parametrize(
    ("key", "value"),
    [("prefetch_depth", "a"), ("prefetch_depth", -1), ("num_ipus", 10**9), ("num_ipus", 0), ("replicas", 2**40),
     ("tiles_per_ipu", 10**9), ("bytes_per_tile", 2**60), ("program", 3), ("machine", []), ("clock_hz", -1),
     ("clock_hz", 1e400), ("oom", 2), ("fidelity", None)],
)  # fmt: skip
def test_meta_that_cannot_be(files: dict, tmp_path: Path, key: str, value: object) -> None:
    members = dict(files["simulated"])
    head = json.loads(members["meta.json"])
    head["meta"][key] = value
    _write({**members, "meta.json": json.dumps(head).encode()}, tmp_path / "bad.ipt")
    with pytest.raises(TraceError, match=rf"bad\.ipt.*{key}"):
        Trace.load(tmp_path / "bad.ipt")


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_ends_anywhere_is_refused(files: dict, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "cut.ipt"
    _write(files["simulated"], path)
    content = path.read_bytes()
    (tmp_path / "cut.ipt").write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    assert _refusal(path).startswith(f"cannot read trace {path}: the file is truncated")
