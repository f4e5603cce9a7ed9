"""Perfetto bytes parsed by Perfetto's own classes, Chrome JSON by the json module."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipuperf.report import OWNERS, to_chrome_json, to_perfetto, waits
from ipuperf.report.excerpt import MAX_SLICES
from ipuperf.report.perfetto import timestamps
from ipuperf.report.protobuf import blob, double, text, uint, varint
from ipuperf.report.tracks import pack
from ipuperf.trace import fitting_window, slice_count

NS = 1e9 / 1.85e9


def parse(path):
    pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    message = pb2.Trace()
    message.ParseFromString(path.read_bytes())
    return message


def decode(message):
    """Slices as (group, track, name, category, start, end, args), counters as {(group, track): [(t, value)]}."""
    tracks, names, open_slices, slices, counters = {}, {1: {}, 2: {}, 3: {}, 29: {}}, {}, [], {}
    for packet in message.packet:
        interned = packet.interned_data
        for field, entries in ((1, interned.event_categories), (2, interned.event_names)):
            names[field].update({entry.iid: entry.name for entry in entries})
        names[3].update({entry.iid: entry.name for entry in interned.debug_annotation_names})
        names[29].update({entry.iid: entry.str.decode() for entry in interned.debug_annotation_string_values})
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        track = tracks[event.track_uuid]
        place = (tracks[track.parent_uuid].name, track.name)
        if event.type == event.TYPE_SLICE_BEGIN:
            args = {}
            for annotation in event.debug_annotations:
                value = getattr(annotation, annotation.WhichOneof("value"))
                is_interned = annotation.HasField("string_value_iid")
                args[names[3][annotation.name_iid]] = names[29][value] if is_interned else value
            head = (*place, names[2][event.name_iid], names[1][event.category_iids[0]])
            open_slices.setdefault(event.track_uuid, []).append((head, packet.timestamp, args))
        elif event.type == event.TYPE_SLICE_END:
            head, start, args = open_slices[event.track_uuid].pop()
            slices.append((*head, start, packet.timestamp, args))
        elif event.type == event.TYPE_COUNTER:
            value = event.counter_value if event.HasField("counter_value") else event.double_counter_value
            counters.setdefault(place, []).append((packet.timestamp, value))
    assert not any(open_slices.values())
    return slices, counters


def test_perfetto_holds_every_slice(trace, tmp_path):
    path = tmp_path / "x.pftrace"
    to_perfetto(trace, path, unit="cycles")
    slices, counters = decode(parse(path))
    frame = trace.expand()
    lanes = [s for s in slices if s[1] == "compute tiles"]
    got = sorted((s[0], s[4], s[5], s[3]) for s in lanes)
    assert got == sorted((f"IPU {r.ipu}", r.start, r.start + r.dur, r.kind) for r in frame.itertuples())
    names = {s[2] for s in lanes}
    assert {"exchange", "sync", "fwd0.0/MatMul", "remote_load"} <= names
    one = next(s for s in lanes if s[2] == "fwd0.0/MatMul")
    assert (one[6]["cycles"], one[6]["op"]) == (9000, "fwd0.0/MatMul")
    assert one[6]["program"] == "fwd0.0/MatMul/compute"
    assert one[6]["tile_balance"] == 0.75
    work = [s for s in slices if s[1] == "micro-batches"]
    assert len(work) == len(trace.table("instances"))
    assert any(s[2] == "bwd mb 7" and s[6]["micro_batch"] == 7 for s in work)
    assert sorted((s[1], s[2]) for s in slices if s[0] == "Host") == [
        *[("data loader", "load batch")] * 2,
        *[("popxl", "session.run")] * 2,
    ]
    assert ("Links", "ipu0->ipu1 use") in counters


def test_link_use_is_bytes_over_bandwidth(trace, tmp_path):
    path = tmp_path / "x.pftrace"
    to_perfetto(trace, path, unit="cycles")
    _, counters = decode(parse(path))
    values = counters["Links", "ipu0->ipu1 use"]
    assert max(value for _, value in values) == pytest.approx(100 * 50_000 / (1500 / 1.85e9) / 64e9)
    assert values[-1][1] == 0
    transfer = trace.table("transfers").query("link_id == 0").iloc[0]
    assert values[0][0] == transfer.start
    assert values[1][0] == transfer.start + transfer.dur


def test_live_memory_finds_its_program(synthetic, tmp_path):
    build = synthetic.Builder()
    extent = synthetic.add_segment(build, 0, 0, "fwd", [("a", "compute", 10), ("b", "compute", 20), ("c", "sync", 5)])
    build.add("instances", 0, 0, 0, 0, 0, 0, 100, extent, 0)
    for step, (name, live) in enumerate((("a/compute", 3), ("b/compute", 9), ("b/compute", 4))):
        build.add("liveness", 0, step, name, 1000, live, 10, 0)
    build.add("counters", "queue", 105, 2.5)
    path = tmp_path / "x.pftrace"
    to_perfetto(build.trace(), path, unit="cycles")
    _, counters = decode(parse(path))
    assert counters["IPU 0", "live memory"] == [(100, 1003), (110, 1009)]
    assert counters["Counters", "queue"] == [(105, 2.5)]


def test_real_time_is_rounded_from_absolute_cycles(trace, tmp_path):
    path = tmp_path / "x.pftrace"
    window = (500_000, 600_000)
    to_perfetto(trace, path, window=window)
    slices, _ = decode(parse(path))
    frame = trace.expand(window)
    got = sorted((s[4], s[5]) for s in slices if s[1] == "compute tiles")
    assert got == sorted((round(r.start * NS), round((r.start + r.dur) * NS)) for r in frame.itertuples())


def test_overlapping_slices_get_tracks_of_their_own(synthetic, tmp_path):
    build = synthetic.Builder()
    for lane, start, dur in ((0, 0, 10), (1, 2, 10), (3, 0, 4)):
        build.add("steps", 0, lane, -1, -1, "host_mid", start, dur, float(dur), 1, 0, 0, 0, 0, lane, -1)
    for number, replica in enumerate((0, 0, 1)):
        build.add("instances", number, 0, 0, replica, -1, 0, 5 * number, 12, 0)
    path = tmp_path / "x.pftrace"
    to_perfetto(build.trace(replicas=1), path, unit="cycles")
    slices, _ = decode(parse(path))
    first = "replica 0 IPU 0"
    assert sorted((s[1], s[4], s[5]) for s in slices if s[0] == first) == [
        ("I/O tiles", 2, 12),
        ("I/O tiles (2)", 7, 17),
        ("compute tiles", 0, 10),
        ("compute tiles (2)", 5, 15),
        ("lane 3", 0, 4),
        ("lane 3", 5, 9),
        ("micro-batches", 0, 12),
        ("micro-batches (2)", 5, 17),
    ]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=15))
def test_no_row_holds_two_at_once(intervals):
    start = np.array([i[0] for i in intervals], dtype=np.int64)
    dur = np.array([i[1] for i in intervals], dtype=np.int64)
    row = pack(start, dur)
    most = 0
    for cycle in range(40):
        busy = row[(start <= cycle) & (cycle < start + dur)].tolist()
        assert len(busy) == len(set(busy))
        most = max(most, len(busy))
    assert len(set(row.tolist())) == most


def test_too_many_slices_are_refused_with_a_remedy(trace, tmp_path):
    for export in (to_perfetto, to_chrome_json):
        with pytest.raises(ValueError, match=r"2,112 slices, allowed are 2,111: give a shorter window"):
            export(trace, tmp_path / "x", max_slices=2111)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="unit 'us': allowed are 'ns' and 'cycles'"):
        to_perfetto(trace, tmp_path / "x", unit="us")
    with pytest.raises(ValueError, match="before 0"):
        timestamps(np.array([-1]), 1e9, "ns")


def test_chrome_json(trace, tmp_path):
    to_chrome_json(trace, tmp_path / "x.json")
    to_chrome_json(trace, tmp_path / "x.json.gz")
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    assert json.loads(gzip.decompress((tmp_path / "x.json.gz").read_bytes()))["traceEvents"] == events
    threads = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    lanes = [e for e in events if e["ph"] == "X" and threads[e["tid"]] == "compute tiles"]
    frame = trace.expand()
    assert len(lanes) == len(frame)
    assert sum(e["dur"] for e in lanes) == pytest.approx(frame.dur.sum() / 1.85e3, rel=1e-5)
    assert {"compute", "link"} <= {e["cat"] for e in lanes}
    assert any(e["ph"] == "C" and e["args"].get("%") for e in events)


@given(st.integers(0, 2**64 - 1))
def test_varint_is_protobuf(value):
    encoder = pytest.importorskip("google.protobuf.internal.encoder")
    parts = []
    encoder._VarintEncoder()(parts.append, value, False)
    assert varint(value) == b"".join(parts)


def test_fields_on_the_wire():
    # Examples of the protobuf encoding guide: field 1 = 150, field 2 = "testing", a negative int64 takes ten bytes.
    assert uint(1, 150) == bytes.fromhex("089601")
    assert text(2, "testing") == bytes.fromhex("120774657374696e67")
    assert blob(3, uint(1, 150)) == bytes.fromhex("1a03089601")
    assert uint(1, -2) == bytes.fromhex("08feffffffffffffffff01")
    assert double(1, 1.0) == bytes.fromhex("09000000000000f03f")
    with pytest.raises(ValueError, match="64 bits"):
        varint(1 << 64)


def test_copies_are_arrows_from_the_sender_to_what_the_receiver_does_then(trace, tmp_path):
    path = tmp_path / "x.pftrace"
    to_perfetto(trace, path, unit="cycles")
    leaving, arriving = {}, {}
    tracks = {}
    for packet in parse(path).packet:
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            event = packet.track_event
            place = tracks.get(event.track_uuid), packet.timestamp
            leaving.update(dict.fromkeys(event.flow_ids, place))
            arriving.update(dict.fromkeys(event.terminating_flow_ids, place))
    transfers = trace.table("transfers").query("kind == 'p2p'")
    links = trace.table("links").set_index("link_id")
    assert len(leaving) == len(transfers) > 0
    assert set(arriving) <= set(leaving)
    assert len(arriving) > len(leaving) / 2
    for number, row in enumerate(transfers.itertuples(), 1):
        source, start = leaving[number]
        assert tracks[source.parent_uuid].name == f"IPU {row.ipu}"
        assert start <= row.start
        if number in arriving:
            target, begin = arriving[number]
            assert "ipu" + tracks[target.parent_uuid].name.removeprefix("IPU ") == links.destination[row.link_id]
            assert begin >= row.start + row.dur > start


def test_waits_are_named_by_whom_they_belong_to(trace, tmp_path):
    path = tmp_path / "x.pftrace"
    to_perfetto(trace, path, unit="cycles")
    slices, _ = decode(parse(path))
    shown = [s for s in slices if s[1] == "waiting"]
    expected = pd.concat([waits(trace, run).table() for run in trace.table("runs")["run"]])
    assert sorted((s[0], s[4], s[5] - s[4]) for s in shown) == sorted(
        (f"IPU {row.ipu}", row.start, row.dur) for row in expected.itertuples()
    )
    for name in OWNERS:
        assert sum(s[6].get(f"{name}_cycles", 0) for s in shown) == expected[name].sum()
    assert all(s[2] == "waits: " + max(OWNERS, key=lambda n: s[6].get(f"{n}_cycles", 0)) for s in shown)


def test_slices_name_the_line_that_made_them_and_loops_their_trips(synthetic, tmp_path):
    build = synthetic.Builder()
    build.add("ops", 0, "main/Add.1", "Add", "main", "fwd", 5, "model.py:12", "")
    build.add("steps", 0, 0, -1, 0, "compute", 0, 10, 10.0, 1, 0, 0, 0, 0, 0, 0)
    build.add("loops", 0, -1, 1000, 20)
    build.add("instances", 0, 0, 0, 0, -1, -1, 100, 20_000, 0)
    path = tmp_path / "x.pftrace"
    to_perfetto(build.trace(), path, window=(100, 200), unit="cycles")
    slices, _ = decode(parse(path))
    unrolled = [s for s in slices if s[1] == "compute tiles"]
    assert [s[4] for s in unrolled] == [100, 120, 140, 160, 180]  # the window; the rest is the loop's mark
    assert unrolled[0][6]["line"] == "model.py:12"
    assert unrolled[0][6]["executions_of_an_instance"] == 1000
    (loop,) = [s for s in slices if s[1] == "loops"]
    assert (loop[2], loop[4], loop[5]) == ("loop of 1,000 trips", 100, 20_100)
    assert (loop[6]["trips"], loop[6]["cycles_of_a_trip"]) == (1000, 20)


@pytest.mark.heavy
def test_the_timeline_of_a_report_stays_below_20_megabytes(synthetic, tmp_path):
    build = synthetic.Builder()
    for ipu in range(4):
        for seq in range(20):
            kind = ("compute", "exchange", "sync", "link", "sync_external")[seq % 5]
            build.add("steps", ipu, seq, -1, -1, kind, 10 * seq, 10, 7.5, 1000, 3, 1 << 30, 1 << 30, 1 << 40, 0, -1)
        for number in range(2048):
            build.add("instances", 2048 * ipu + number, ipu, ipu, 0, number, -1, 300 * number, 200, 0)
    made = build.trace()
    assert slice_count(made) > MAX_SLICES
    to_perfetto(made, tmp_path / "x.pftrace", fitting_window(made, MAX_SLICES))
    assert 1e6 < (tmp_path / "x.pftrace").stat().st_size < 20e6
