"""Files: what is written comes back, and a damaged file is named."""

import io
import json
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf.trace import TABLES, Trace, TraceError, TraceSizeError, replacing, store

META = {"machine": "m", "clock_hz": 1e9, "tiles_per_ipu": 4, "bytes_per_tile": 1000, "num_ipus": 2}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def test_round_trip(trace, tmp_path):
    path = tmp_path / "run.ipt"
    trace.save(path)
    again = Trace.load(path)
    assert again == trace
    assert again.summary() == trace.summary()
    assert [p.name for p in tmp_path.iterdir()] == ["run.ipt"]
    with zipfile.ZipFile(path) as archive:
        assert {"meta.json", "steps.npz", "runs.npz"} <= set(archive.namelist())


def test_equal_traces_give_equal_bytes(trace, tmp_path):
    trace.save(tmp_path / "a.ipt")
    Trace.load(tmp_path / "a.ipt").save(tmp_path / "b.ipt")
    assert (tmp_path / "a.ipt").read_bytes() == (tmp_path / "b.ipt").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.ipt") as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}, "the earliest there is"


@pytest.mark.heavy
@settings(max_examples=20)
@given(st.lists(st.tuples(TEXT, st.integers(-(2**63), 2**63 - 1)), max_size=6))
def test_any_text_and_number_survives(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("t") / "x.ipt"
    counters = {"track": [r[0] for r in rows], "t": [r[1] for r in rows], "value": [0.1] * len(rows)}
    trace = Trace({**META, "note": "Straße µ\0"}, {"steps": {}, "instances": {}, "counters": counters})
    trace.save(path)
    assert Trace.load(path) == trace


def test_a_truncated_file_is_named(trace, tmp_path):
    path = tmp_path / "whole.ipt"
    trace.save(path)
    data = path.read_bytes()
    for part in (0, 1, 100, len(data) // 2, len(data) - 1):
        cut = tmp_path / "cut.ipt"
        cut.write_bytes(data[:part])
        with pytest.raises(TraceError, match=r"cannot read trace .*cut\.ipt: "):
            Trace.load(cut)


def test_a_damaged_byte_is_found(trace, tmp_path):
    path = tmp_path / "bad.ipt"
    trace.save(path)
    data = bytearray(path.read_bytes())
    place = data.find(b"steps.npz") + 200
    data[place] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(TraceError, match=r"bad\.ipt"):
        Trace.load(path)


def _rewrite(path, change):
    """Change the head of a trace file, the rest as it is."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    head = json.loads(members["meta.json"])
    change(head)
    members["meta.json"] = json.dumps(head).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda head: head.update(schema_version=9), "schema version 9, this ipuperf reads 8"),
        (lambda head: head.update(format="other"), "is a trace of ipuperf"),
        (lambda head: head["rows"].update(runs=7), "table 'runs' has [2] rows, meta.json says 7"),
        (lambda head: head["meta"].pop("clock_hz"), "missing key 'clock_hz'"),
        (lambda head: head.pop("rows"), "rows in meta.json is 'None', expected a JSON object"),
        (lambda head: head.update(meta=[1]), "meta in meta.json is '[1]', expected a JSON object"),
        (lambda head: head.update(meta="x"), "meta in meta.json is 'x', expected a JSON object"),
    ],
)
def test_another_schema_or_a_false_head_is_refused(trace, tmp_path, change, words):
    path = tmp_path / "old.ipt"
    trace.save(path)
    _rewrite(path, change)
    with pytest.raises(TraceError) as error:
        Trace.load(path)
    assert words in str(error.value)
    assert "old.ipt" in str(error.value)


def test_what_is_no_trace_at_all(tmp_path):
    other = tmp_path / "x.zip"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("hello.txt", "hello")
    other.write_bytes(buffer.getvalue())
    for path in (other, tmp_path / "missing.ipt", tmp_path):
        with pytest.raises(TraceError, match="cannot read trace"):
            Trace.load(path)


def test_a_failed_write_leaves_the_old_file(trace, tmp_path, monkeypatch):
    path = tmp_path / "run.ipt"
    path.write_text("old")

    def fail(columns):
        raise OSError("disk full")

    monkeypatch.setattr(store, "_pack", fail)
    with pytest.raises(OSError, match="disk full"):
        trace.save(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["run.ipt"]


def test_replacing_needs_the_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"), replacing(tmp_path / "no" / "x.txt"):
        pass


def test_a_folder_is_no_target_and_nothing_is_left(trace, tmp_path):
    (tmp_path / "folder.ipt").mkdir()
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        trace.save(tmp_path / "folder.ipt")
    assert [p.name for p in tmp_path.rglob("*")] == ["folder.ipt"]


def test_temporary_names_cannot_be_foreseen_and_are_gone(tmp_path):
    seen = []
    for _ in range(2):
        with replacing(tmp_path / "x.png") as temporary:
            assert temporary.suffix == ".png"
            assert temporary.parent.parent == tmp_path
            assert temporary.parent.stat().st_mode & 0o077 == 0
            seen.append(temporary.parent.name)
            temporary.write_text("new")
    assert len(set(seen)) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["x.png"]


def _packed(path, name, size):
    """A file whose member ``name`` unpacks to ``size`` zeros."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(name, "w", force_zip64=True) as member,
    ):
        for _ in range(size // 2**20):
            member.write(bytes(2**20))


def _peak(function, error):
    tracemalloc.start()
    with pytest.raises(error) as caught:
        function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return str(caught.value), peak


@pytest.mark.heavy
def test_a_small_file_cannot_take_much_memory(tmp_path):
    _packed(tmp_path / "bomb.ipt", "meta.json", 2**28)
    words, peak = _peak(lambda: Trace.load(tmp_path / "bomb.ipt"), TraceSizeError)
    assert "bomb.ipt: meta.json unpacks to 268,435,456 bytes, 16,777,216 are allowed" in words
    assert peak < 2**23


@pytest.mark.heavy
def test_a_table_that_unpacks_to_more_than_it_may_is_not_unpacked(trace, tmp_path):
    path = tmp_path / "bomb.ipt"
    trace.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    buffer = io.BytesIO()
    _packed(buffer, "start.npy", 2**28)
    members["runs.npz"] = buffer.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    words, peak = _peak(lambda: Trace.load(path, most_bytes=2**27), TraceSizeError)
    assert "table 'runs' unpacks to 268,435,456 bytes, 134,217,728 are allowed for all of the file" in words
    assert peak < 2**26


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [("steps", "dur", -1), ("instances", "dur", -5), ("transfers", "bytes", -1), ("steps", "flops", -7)],
)
def test_negative_figures_are_refused(trace, tmp_path, table, column, value):
    tables = {name: dict(trace.columns(name)) for name in TABLES}
    tables[table][column] = np.append(tables[table][column][:-1], value)
    Trace(trace.meta, tables).save(tmp_path / "n.ipt")
    with pytest.raises(TraceError, match=rf"n\.ipt: {table}\.{column}: negative, {value}"):
        Trace.load(tmp_path / "n.ipt")


@pytest.mark.parametrize(
    ("loops", "words"),
    [
        ({"parent": [0, 0]}, "loop 0: its parent is 0, allowed: -1 or a loop that stands before it"),
        ({"parent": [1, -1]}, "loop 0: its parent is 1"),
        ({"count": [0, 1]}, "0 trips of 5 cycles"),
        ({"period": [5, -1]}, "2 trips of -1 cycles"),
        ({"count": [2**40, 2**40]}, "allowed: below 2**62"),
        ({"period": [2**61, 5], "count": [4, 1]}, "allowed: below 2**62"),
        ({"loop": [3, 3]}, "3 appears more than once"),
    ],
)
def test_loops_that_cannot_be_are_refused(trace, loops, words):
    table = {"loop": [0, 1], "parent": [-1, 0], "count": [2, 2], "period": [5, 5], **loops}
    with pytest.raises(TraceError) as error:
        Trace(trace.meta, {**{name: trace.columns(name) for name in TABLES}, "loops": table})
    assert words in str(error.value)
