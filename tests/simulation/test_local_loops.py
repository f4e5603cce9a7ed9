"""Loops without a shared step are kept as loops: the same figures as trip by trip, whatever the number of trips."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import simprograms as s
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipuperf.lowering.program import OpInfo
from ipuperf.lowering.steps import Call, IoTiles, TileSetCopy
from ipuperf.report import (
    breakdown_cycles,
    pipeline_timeline_figure,
    timeline_figure,
    to_chrome_json,
    to_perfetto,
    write_report,
)
from ipuperf.simulation import SimulationError, simulate
from ipuperf.trace import Trace, TraceError, check, fitting_window, slice_count, slices

ONE = s.machine()
TIMED = s.machine(run=3e-8, callback=2e-8, stream=3e-9, remote=1e-8, sync=7)
HUGE = 10**12
OPS = tuple(OpInfo(n, f"op{n}", "Op", "main", "fwd", 7) for n in range(9))


def op(number, cycles, **changes):
    return replace(s.phase(cycles, **changes), op_id=number)


local = st.one_of(
    st.builds(op, st.integers(0, 5), st.integers(0, 9)),
    st.builds(s.sync, st.integers(0, 3)),
    st.just(Call(-1, "call", "f")),
)
nested = st.recursive(
    local, lambda inner: st.builds(lambda n, body: s.repeat(n, *body), st.integers(0, 4), st.lists(inner, max_size=3))
)
shared = st.one_of(st.builds(s.load, st.integers(0, 90)), st.builds(s.h2d, st.integers(0, 90)))


@st.composite
def programs(draw):
    """Local loops in each other, beside and inside loops with shared steps, on compute tiles and on I/O tiles."""
    main = draw(st.lists(nested, max_size=4))
    main.append(s.repeat(draw(st.integers(0, 6)), *draw(st.lists(nested, max_size=2)), draw(shared), draw(nested)))
    io_tiles = draw(st.booleans())
    if io_tiles:
        main.insert(0, IoTiles(-1, "io", tuple(draw(st.lists(nested, min_size=1, max_size=2)))))
        main.append(TileSetCopy(0, "copy", "io", 8, 2, 5))
    body = s.seq(*draw(st.lists(st.builds(op, st.integers(6, 8), st.integers(0, 9)), max_size=2)), name="f")
    program = s.program(s.seq(*main), functions={"f": body})
    return replace(program, ops=OPS, io_tiles=32 if io_tiles else 0)


many = settings(max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)


def rows_of(frame):
    frame = frame.drop(columns="instance").astype(dict.fromkeys(("kind", "op", "program"), str))
    return sorted(frame.itertuples(index=False, name=None))


@pytest.mark.heavy
@many
@given(programs(), st.integers(0, 300), st.integers(1, 60), st.integers(1, 40))
def test_loops_say_what_their_trips_say(program, begin, length, limit):
    plain, folded = simulate(program, TIMED, fold=False), simulate(program, TIMED)
    assert len(plain.columns("loops")["loop"]) == 0
    assert check(folded) == check(plain) == []
    assert rows_of(plain.expand()) == rows_of(folded.expand())
    assert s.end(plain) == s.end(folded)
    assert plain.totals().equals(folded.totals())
    assert plain.operations().equals(folded.operations())
    assert breakdown_cycles(plain) == breakdown_cycles(folded)
    window = (begin, begin + length)
    assert rows_of(plain.expand(window)) == rows_of(folded.expand(window))
    assert slice_count(folded, window) == slice_count(plain, window) == len(slices(plain, window))
    assert fitting_window(folded, limit) == fitting_window(plain, limit)


@pytest.mark.heavy
@settings(many, max_examples=25)
@given(programs())
def test_tiles_fold_local_loops_as_phases_do(program):
    phases, tiles = simulate(program, TIMED), simulate(program, TIMED, fidelity="tile")
    for table in ("steps", "loops", "instances", "runs", "transfers"):
        for name, values in phases.columns(table).items():
            np.testing.assert_array_equal(values, tiles.columns(table)[name], err_msg=f"{table}.{name}")


@pytest.mark.heavy
@settings(many, max_examples=25)
@given(programs())
def test_pictures_of_loops_are_those_of_their_trips(program):
    from ipuperf.report.timeline import _kind_strips, _rows, whole

    plain, folded = simulate(program, TIMED, fold=False), simulate(program, TIMED)
    if s.end(plain):
        one, two = (_kind_strips(trace, _rows(trace), whole(trace)) for trace in (plain, folded))
        np.testing.assert_allclose(one[0], two[0], atol=1e-6)
        np.testing.assert_allclose(one[1], two[1], atol=1e-6)


def huge(*, fidelity="phase"):
    body = (op(0, 5), s.sync(2), s.repeat(3, op(1, 1)))
    before, after = s.repeat(4, s.load(1000), op(2, 7)), s.h2d(64)
    program = s.program(s.seq(before, s.repeat(HUGE, *body), after))
    return simulate(replace(program, ops=OPS), ONE, fidelity=fidelity)


@pytest.mark.parametrize("fidelity", ["phase", "tile"])
def test_a_million_million_trips(fidelity, tmp_path):
    trace = huge(fidelity=fidelity)
    before = 4 * (-(-1000 * 1325 // 16000) + 7)
    assert HUGE * 10 < s.end(trace) < HUGE * 10 + before + 1000
    assert trace.columns("instances")["dur"].max() == HUGE * 10
    assert sum(len(trace.columns(name)["loop" if name == "loops" else "segment"]) for name in ("steps", "loops")) < 30
    totals = trace.totals().iloc[0]
    assert totals["compute"] == HUGE * 8 + 4 * 7
    assert totals["sync"] == HUGE * 2
    assert trace.summary()["flops"] == 7 * (4 * HUGE + 4)
    assert check(trace) == []
    trace.save(tmp_path / "t.ipt")
    assert (tmp_path / "t.ipt").stat().st_size < 100_000
    assert Trace.load(tmp_path / "t.ipt") == trace


def test_a_window_of_a_million_million_trips():
    trace = huge()
    start = int(trace.columns("instances")["start"][np.argmax(trace.columns("instances")["dur"])])
    frame = trace.expand((start + 10 * (HUGE - 2), start + 10 * (HUGE - 1)))
    assert list(frame["start"] - start - 10 * (HUGE - 2)) == [0, 5, 7, 8, 9]
    assert list(frame["dur"]) == [5, 2, 1, 1, 1]
    assert list(frame["iteration"]) == [HUGE - 2, HUGE - 2, 0, 1, 2]
    assert slice_count(trace, (start, start + 10 * HUGE)) == 5 * HUGE
    with pytest.raises(TraceError, match=r"5,000,000,000,\d+ slices .* at most 20,000,000 .* give a shorter window="):
        trace.expand()


def test_reports_of_a_million_million_trips(tmp_path):
    trace = huge()
    window = fitting_window(trace, 1000)
    assert window is not None
    assert slice_count(trace, window) <= 1000 < slice_count(trace, (window[0], window[1] + 1))
    with pytest.raises(ValueError, match="give a shorter window"):
        to_perfetto(trace, tmp_path / "t.pftrace", max_slices=1000)
    to_perfetto(trace, tmp_path / "t.pftrace", window)
    to_chrome_json(trace, tmp_path / "t.json", window)
    assert len(json.loads((tmp_path / "t.json").read_text())["traceEvents"]) > 1000
    parts = breakdown_cycles(trace)
    assert sum(parts.values()) == s.end(trace)
    assert parts["compute"] == HUGE * 8 + 4 * 7
    assert timeline_figure(trace) is not None
    assert pipeline_timeline_figure(trace) is not None


def test_the_report_folder_says_what_perfetto_shows(tmp_path, monkeypatch):
    monkeypatch.setattr("ipuperf.report.excerpt.MAX_SLICES", 1000)
    write_report(huge(), tmp_path / "r")
    assert "(too long for a viewer)" in (tmp_path / "r" / "index.md").read_text()


def test_nested_loops_multiply():
    step = op(0, 3)
    for _ in range(40):
        step = s.repeat(2, step)
    trace = simulate(s.program(s.seq(step)), ONE)
    assert s.end(trace) == 3 * 2**40
    assert len(trace.columns("steps")["segment"]) == 1
    assert list(trace.expand((3 * 2**39, 3 * 2**39 + 4))["start"] - 3 * 2**39) == [0, 3]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([s.repeat(2**62, s.phase(1))], "Repeat 'loop' of 4,611,686,018,427,387,904 trips takes 4.612e"),
        ([s.repeat(2**40, s.repeat(2**40, s.phase(9)))], "Repeat 'loop' of 1,099,511,627,776 trips"),
        ([s.repeat(2**62, s.phase(0))], "executions of steps, more than can be counted"),
        ([s.repeat(2**61, s.phase(1)), s.phase(1), s.repeat(2**61, s.phase(1))], "a stretch of local steps takes"),
        ([s.repeat(2**61, s.phase(1)), s.load(8), s.repeat(2**61, s.phase(1))], "the run takes 4.612e"),
        ([s.repeat(2**22, s.repeat(2**41, s.phase(1)), s.load(8))], "the run takes"),
    ],
)
def test_more_cycles_than_can_be_counted_are_one_clear_error(steps, words):
    with pytest.raises(SimulationError, match="more than can be counted") as error:
        simulate(s.program(s.seq(*steps)), ONE)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


PROGRAM = """
import time, numpy as np
from ipuperf import popxl
from ipuperf.popxl import ops
ir = popxl.Ir()
with ir.main_graph, popxl.in_sequence(True):
    t = popxl.variable(np.ones(4, np.float32))
    out = popxl.d2h_stream((4,), popxl.float32, "out")
    graph = ir.create_graph(lambda x: x + 1.0, t)
    r, = ops.repeat(graph, {trips}, t)
    ops.host_store(out, r)
executable = popxl.Session(ir, "ipu_model").executable
before = time.process_time()
cycles = executable.simulated_run_cycles
seconds = time.process_time() - before
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(cycles, seconds, int(peak.split()[1]) // 1024)
"""


def _simulated(trips):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(trips=trips)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=True,
    )
    cycles, seconds, megabytes = run.stdout.split()
    return int(cycles), float(seconds), int(megabytes)


@pytest.mark.heavy
def test_popxl_repeat_of_a_million_million_trips():
    """Exactly what the trips add: the cost of a trip is the difference between 2 and 3 of them."""
    two, three = (_simulated(trips)[0] for trips in (2, 3))
    cycles, seconds, megabytes = _simulated(HUGE)
    assert cycles == two + (HUGE - 2) * (three - two)
    assert megabytes < 200
    assert seconds < 1.0


def test_a_loop_with_a_shared_step_that_is_not_folded_and_too_long_is_an_early_error():
    """Its trips are kept one by one; the error names the loop, its trips, the step and what is allowed."""
    program = s.program(s.seq(op(0, 5), s.repeat(HUGE, op(1, 3), s.h2d(8, "image"))))
    with pytest.raises(SimulationError) as error:
        simulate(program, ONE, fold=False)
    for word in ("Repeat 'loop' of 1,000,000,000,000 trips", "'h2d image'", "2,000,000,000,001", "at most 20,000,000"):
        assert word in str(error.value)


def test_a_long_loop_with_a_shared_step_is_folded():
    """What a trip adds is the difference between 1,000 and 1,001 of them; any window is at hand, not all of it."""

    def run(trips):
        return simulate(s.program(s.seq(op(0, 5), s.repeat(trips, op(1, 3), s.h2d(8, "image")))), ONE)

    thousand, more, trace = run(1000), run(1001), run(HUGE)
    period = s.end(more) - s.end(thousand)
    assert s.end(trace) == s.end(thousand) + (HUGE - 1000) * period
    assert trace.rows("instances") == thousand.rows("instances") + (HUGE - 1000) * 2
    with pytest.raises(TraceError, match=r"has 2,000,000,\d+,\d+ rows, at most 20,000,000 .* look at a window"):
        trace.columns("instances")
    part = trace.within((0, 50 * period))
    assert rows_of(part.expand((0, 50 * period))) == rows_of(thousand.expand((0, 50 * period)))


def test_a_loop_that_does_not_settle_is_an_error_when_it_gets_too_long(monkeypatch):
    """Folding is looked for and not found; rows are counted as they come."""
    monkeypatch.setattr("ipuperf.simulation.validate.MOST_INSTANCES", 3000)
    monkeypatch.setattr("ipuperf.simulation.folding.Folder.look", lambda self: None)
    program = s.program(s.seq(s.repeat(HUGE, op(1, 3), s.h2d(8, "image"))))
    with pytest.raises(SimulationError, match="kept trip by trip"):
        simulate(program, ONE)


def test_a_loop_that_is_not_folded_and_too_long_is_an_early_error():
    program = s.program(s.seq(s.repeat(HUGE, op(1, 3))))
    with pytest.raises(SimulationError, match=r"of 1,000,000,000,000 trips is kept trip by trip \(no folding\)"):
        simulate(program, ONE, fold=False)
    assert simulate(program, ONE).summary()["total_cycles"] >= 3 * HUGE


def test_the_executions_of_a_run_are_those_of_its_trace(monkeypatch):
    """The bound is exact: on both sides of it, nested loops and replicas counted."""
    program = s.program(s.seq(op(0, 5), s.repeat(3, op(1, 3), s.repeat(4, s.h2d(8, "image"), op(2, 1)))))
    trace = simulate(program, ONE, fold=False)
    executions = len(trace.columns("instances")["dur"])
    monkeypatch.setattr("ipuperf.simulation.validate.MOST_INSTANCES", executions)
    simulate(program, ONE, fold=False)
    monkeypatch.setattr("ipuperf.simulation.validate.MOST_INSTANCES", executions - 1)
    with pytest.raises(SimulationError, match=f"{executions} executions in the trace"):
        simulate(program, ONE, fold=False)
