"""Files: what is written comes back, and a damaged file is named."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuperf.trace import Trace, TraceError, replacing, store

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


@settings(max_examples=20, deadline=None)
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
        (lambda head: head.update(schema_version=3), "schema version 3, this ipuperf reads 2"),
        (lambda head: head.update(format="other"), "is a trace of ipuperf"),
        (lambda head: head["rows"].update(runs=7), "table 'runs' has [2] rows, meta.json says 7"),
        (lambda head: head["meta"].pop("clock_hz"), "missing key 'clock_hz'"),
        (lambda head: head.pop("rows"), "truncated, damaged or not a trace (rows)"),
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
