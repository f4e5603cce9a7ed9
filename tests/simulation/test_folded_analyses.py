"""Waits, critical path and parts of a run: of a folded trace as of one in which every trip and replica is followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import simprograms as s
from pagefacts import facts_of, occurrences, slices_of

from ipuperf.report import critical_path, path_cycles, report_page, step_time, summary_text, waits, why_text
from ipuperf.report.critical_path import path_stretches
from ipuperf.report.limits import limits
from ipuperf.report.page.facts import page_facts
from ipuperf.simulation import simulate
from ipuperf.trace import FoldedInstances, Trace

TIMED = s.machine(run=3e-8, callback=2e-8, stream=3e-9, remote=1e-8, sync=7)


def alternating(trips: int, **options: int):
    """Two IPUs that hand data on, the second of which works longer."""
    first = s.repeat(trips, s.h2d(300), s.phase(10), s.copy(0, 1, 64))
    return s.program(s.seq(first), s.seq(s.repeat(trips, s.copy(0, 1, 64), s.phase(20), s.d2h(10, "loss"))), **options)


def beside(trips: int):
    """A third IPU waits until the loop of the other two has ended."""
    first = s.seq(s.repeat(trips, s.phase(30), s.copy(0, 1, 64), s.phase(11)))
    second = s.seq(s.repeat(trips, s.copy(0, 1, 64), s.phase(50)), s.copy(1, 2, 64))
    return s.program(first, second, s.seq(s.phase(9), s.copy(1, 2, 64), s.phase(40)))


def nested(trips: int):
    """Loops in a loop, and local loops in them."""
    inner = s.repeat(trips, s.phase(30), s.copy(0, 1, 64), s.repeat(3, s.phase(4), s.phase(3)))
    first = s.repeat(trips, s.h2d(80), inner, s.phase(100), s.copy(1, 0, 800))
    second = s.repeat(trips, s.phase(3), s.repeat(trips, s.copy(0, 1, 64), s.phase(50)), s.copy(1, 0, 800))
    return s.program(s.seq(first), s.seq(second))


def successive(trips: int):
    """Two loops after each other, with another IPU that sets the pace in each, and Streaming Memory."""
    first = s.seq(s.repeat(trips, s.phase(30), s.copy(0, 1, 64)), s.repeat(trips, s.load(64), s.copy(1, 0, 640)))
    return s.program(first, s.seq(s.repeat(trips, s.copy(0, 1, 64), s.phase(50)), s.repeat(trips, s.copy(1, 0, 640))))


PROGRAMS: Mapping[str, Callable] = {
    "alternating": alternating,
    "replicas": lambda trips: alternating(trips, replicas=2),
    "beside": beside,
    "nested": nested,
    "successive": successive,
}


def analyses(trace: Trace) -> dict[str, object]:
    time = step_time(trace)
    path = critical_path(trace)
    stretches = path_stretches(path)
    assert len(stretches.table) == stretches.total
    tables = {"waits": waits(trace).table(), "blamed": time.waits.by_blamed(), "path": path.table()}
    tables |= {"costs": path_cycles(trace, path), "places": stretches.table}
    told = {"parts": time.parts, "sentence": time.sentence(), "waiting": time.waits.by_ipu()}
    told |= {"why": why_text(trace), "last run": summary_text(trace).partition("Execution:")[2]}
    told["limits"] = limits(trace, trace.summary(), trace.operations_by_ipu(of_each_class=True))
    return {**told, **{name: table.astype(str).to_numpy().tolist() for name, table in tables.items()}}


@pytest.mark.parametrize("name", PROGRAMS)
def test_analyses_say_the_same_of_a_folded_trace(name: str) -> None:
    program = PROGRAMS[name](30)
    folded, plain = simulate(program, TIMED), simulate(program, TIMED, fold=False, symmetry=False)
    assert folded.short.cuts.places
    assert not plain.short.cuts.places
    assert analyses(folded) == analyses(plain)


def shown(trace: Trace) -> dict[str, object]:
    """What a page shows over time, each occurrence by itself."""
    facts = facts_of(report_page(trace))
    line = facts["timeline"]
    keys = zip(*(line["rows"][name] for name in ("replica", "ipu", "lane")), strict=True)
    carried = [occurrences(transfers, "dur", "bytes") for transfers in line["transfers"]]
    ops = facts["operations"]
    costs = zip(*(ops[name] for name in ("op", "ipu", "ipus", "cycles", "waiting_cycles", "bytes")), strict=True)
    return {
        "slices": {key: slices_of(line, row) for row, key in enumerate(keys)},
        "copies": occurrences(line["flows"], "dur", "source", "target"),
        "links": {lane["name"]: carried[lane["course"]] for lane in line["lanes"]},
        "host": occurrences(line["host"], "dur", "label"),
        "use of links": facts["links"],
        "cycles of ops": (ops["total_cycles"], sum(cycles * ipus for _, _, ipus, cycles, *_ in costs)),
        "memory": (facts["memory"], facts["variables"]),
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_page_shows_the_same_of_a_folded_trace(name: str) -> None:
    program = PROGRAMS[name](30)
    folded, plain = simulate(program, TIMED), simulate(program, TIMED, fold=False, symmetry=False)
    assert shown(folded) == shown(plain)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_longer_run_is_followed_as_fast(name: str) -> None:
    """A million trips have no more cuts and steps than 300, and parts, path and waits still add up to the run."""
    few, many = (simulate(PROGRAMS[name](trips), TIMED) for trips in (300, 10**6))
    assert many.short.trace.rows("instances") == few.short.trace.rows("instances")
    time = step_time(many)
    assert time.total == int(many.columns("runs")["dur"][-1])
    assert path_cycles(many, critical_path(many))["cycles"].sum() == time.total
    blamed = time.waits.blamed >= 0
    each = (time.waits.end - time.waits.start) * time.waits.times
    members = np.array([len(twins) for twins in time.waits.followed.twins])[time.waits.blames.line]
    assert time.waits.by_blamed()["dur"].sum() == (each * members)[blamed].sum()
    why_text(many)
    assert page_facts(many, 1_000)["limits"]
    assert len(report_page(many)) < 1.3 * len(report_page(few))  # the path has more pieces, up to a limit


def test_a_page_has_what_equal_replicas_do_once() -> None:
    few, many = (simulate(alternating(30, replicas=replicas), s.machine("pod128")) for replicas in (2, 64))
    facts = facts_of(report_page(many))
    assert len(facts["timeline"]["rows"]["ipu"]) == 128
    assert len(facts["timeline"]["courses"]) == 2
    assert sum(facts["operations"]["ipus"]) == 64 * len(facts["operations"]["op"])
    assert len(report_page(many)) < 1.3 * len(report_page(few))


def test_other_repeats_than_those_of_the_simulation_are_followed_too() -> None:
    """Of a trace whose instances stay as they are, nothing is left out."""
    trace = simulate(alternating(5), TIMED)
    assert isinstance(trace.folded("instances"), FoldedInstances)
    assert not trace.short.cuts.places
