"""What viewers are shown of runs that are too long for them: a stated window, repeats marked."""

import json

import pytest

from ipuperf import schedules
from ipuperf.lowering import lower
from ipuperf.machine import load_machine
from ipuperf.models.encoder import EncoderOptions, encoder
from ipuperf.pipelines import build_pipeline
from ipuperf.report import to_chrome_json, to_perfetto
from ipuperf.report.excerpt import Excerpt
from ipuperf.report.folder import VIEWS
from ipuperf.simulation import simulate
from ipuperf.trace import fitting_window, slice_count

CUT = 12_000


@pytest.fixture(scope="module")
def traces():
    """A pipeline of four stages on four replicas, 64 and 4,096 micro-batches."""
    machine = load_machine("pod16")
    found = {}
    for micro_batches in (64, 4096):
        sizes = {"layers": 4, "hidden": 32, "heads": 2, "sequence": 8, "feed_forward": 64}
        model = encoder(EncoderOptions(stages=4, replicas=4, **sizes), seed=None)
        timetable = schedules.popart_pipeline(4, micro_batches)
        build_pipeline(
            model.ir, model.parts, timetable, outputs=model.outputs, training=model.training, copies="every step"
        )
        found[micro_batches] = simulate(lower(model.ir, machine), machine)
    return found


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("ipuperf.report.excerpt.MAX_SLICES", CUT)
    monkeypatch.setattr("ipuperf.report.chrome.CUT_SLICES", CUT)


def events_of(trace, path, **options):
    to_chrome_json(trace, path, **options)
    return json.loads(path.read_text())["traceEvents"]


@pytest.mark.heavy
def test_a_long_run_is_shown_in_part_and_says_so(traces, tmp_path):
    trace = traces[4096]
    excerpt = Excerpt.default(trace)
    alone = trace.of_each_class()
    assert excerpt.replicas == {0: 4}
    assert excerpt.window == fitting_window(alone, CUT)
    assert slice_count(alone, excerpt.window) <= CUT
    marks = [event for event in events_of(trace, tmp_path / "x.json") if event.get("cat") in ("window", "repeat")]
    said = marks[0]["name"]
    assert said == f"shown: {excerpt.sentence()}"
    assert f"cycles {excerpt.window[0]:,} to {excerpt.window[1]:,} only, of 0 to " in said
    assert "replica 0 for 4 that do the same" in said
    (repeat,) = (one for one in trace.repeats if one.depth == 0 and one.start < excerpt.window[1])
    assert [mark["name"] for mark in marks[1:]] == [
        f"x {repeat.trips:,}, period {repeat.period:,} cycles, from cycle {repeat.start:,} to {repeat.end:,}"
    ]
    assert marks[1]["args"] == {
        "trips": repeat.trips,
        "period_cycles": repeat.period,
        "start": repeat.start,
        "end": repeat.end,
    }


def test_the_slices_shown_are_those_of_the_first_replica(traces, tmp_path):
    trace = traces[64]
    window = Excerpt.default(trace).window
    events = [event for event in events_of(trace, tmp_path / "x.json") if event["ph"] == "X"]
    lanes = {"window", "repeat", "instance", "waiting", "loop", "host"}
    kinds = sorted(event["cat"] for event in events if event["cat"] not in lanes)
    frame = trace.expand(window)
    assert kinds == sorted(frame[frame["replica"] == 0]["kind"].astype(str))


def test_as_large_with_any_number_of_micro_batches(traces, tmp_path):
    """Repeats are marked, not written out."""
    sizes = []
    for micro_batches, trace in traces.items():
        to_perfetto(trace, tmp_path / f"{micro_batches}.pftrace")
        sizes.append((tmp_path / f"{micro_batches}.pftrace").stat().st_size)
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)
    assert sizes[1] < 300 * CUT


def test_what_is_asked_for_is_shown_or_refused(traces, tmp_path):
    trace = traces[64]
    with pytest.raises(ValueError, match="allowed are 10: give a shorter window"):
        to_perfetto(trace, tmp_path / "x.pftrace", max_slices=10)
    window = (0, trace.repeats[0].period)
    assert Excerpt.of(trace, window, None, 10**6, CUT).replicas == {}
    to_perfetto(trace, tmp_path / "x.pftrace", window)


def test_the_index_of_a_report_says_what_is_shown(traces):
    (view,) = (view for view in VIEWS if view.name == "trace.pftrace")
    assert view.remark(traces[64]) == f", {Excerpt.default(traces[64]).sentence()}"
