"""Reports of small random runs: what adds up in all of them, and what each view says, as checksums.

Steps without gaps and with, of no time, on two lanes, in loops; IPUs that begin and end together or not; links that are
shared: what a trace made by hand has once, or never.
"""

import random
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest import mock

import digest
import numpy as np
import pytest
from programtext import checksum
from rows import Golden

import ipuperf.report as report
from ipuperf.trace import KINDS, MEMORY_CATEGORIES, PHASES, TRANSFER_KINDS, Trace, check

facts = import_module("ipuperf.report.page.facts")
timeline = import_module("ipuperf.report.timeline")
pipeline = import_module("ipuperf.report.pipeline")
marks = import_module("ipuperf.report.marks")
window = import_module("ipuperf.report.arguments")
SEEDS = range(8)
TILES = 5


def steps_of(build: Any, pick: random.Random, segment: int, ops: int) -> int:
    """The steps of a segment; its extent."""
    at = seq = 0
    for _ in range(pick.randint(1, 4)):
        at += pick.choice((0, 0, 3))
        trips = pick.choice((1, 1, 3))
        loop, begin, outer = -1, at, -1
        if trips > 1:
            if pick.random() < 0.5:  # a loop of nothing but this one
                outer = build.add("loops", len(build.rows["loops"]), -1, 2, 0)
            loop = build.add("loops", len(build.rows["loops"]), outer, trips, 0)
        for _ in range(pick.randint(1, 3)):
            kind, op, dur = pick.choice(KINDS[:-1]), pick.randint(-1, ops - 1), pick.choice((0, 2, 5, 9))
            build.add("programs", len(build.rows["programs"]), -1, 0, "Sync", f"p{pick.randint(0, 5)}", op, -1)
            moved = (pick.randint(0, 99), pick.randint(0, 99), 3 * dur if kind == "compute" else 0)
            row = (
                segment,
                seq,
                len(build.rows["programs"]) - 1,
                op,
                kind,
                at,
                dur,
                dur * pick.choice((0.5, 0.875, 1.0)),
            )
            build.add("steps", *row, pick.randint(0, TILES), pick.randint(-1, TILES - 1), *moved, 0, loop)
            at, seq = at + dur, seq + 1
        if trips > 1:
            period = at - begin + pick.choice((0, 2))
            build.rows["loops"][loop] = (loop, outer, trips, period)
            at = begin + trips * period
            if outer >= 0:
                period = at - begin + pick.choice((0, 2))
                build.rows["loops"][outer] = (outer, -1, 2, period)
                at = begin + 2 * period
    if pick.random() < 0.4 and at:
        begin, op = pick.randint(0, at - 1), pick.randint(-1, ops - 1)
        kind = pick.choice(("host_mid", "remote_load", "exchange"))
        build.add("steps", segment, seq, -1, op, kind, begin, at - begin, 1.0, 1, -1, 8, 9, 0, 1, -1)
    return at


def memory_of(build: Any, pick: random.Random, ipu: int, steps: int) -> None:
    for tile in pick.sample(range(TILES), 3):
        for category in pick.sample(MEMORY_CATEGORIES, 4):
            build.add("tile_memory", ipu, tile, category, pick.choice((0, 40, 300)))
    for step in pick.sample(range(steps), steps):
        held = pick.randint(100, 400)
        build.add("liveness", ipu, step, f"p{pick.randint(0, 5)}", 300, held, 300, pick.randint(0, TILES - 1))
    for number in range(4):
        name, number = f"v{number}", 10 * ipu + number
        for first in pick.sample((0, 2, 3), pick.randint(1, 2)):
            row = (number, name, pick.randint(-1, 2), pick.choice("ab"), "float16", ipu, first, first + 1)
            build.add(
                "variables", *row, pick.randint(1, 90), name == "v0", pick.choice(("tile", "tile", "remote")), number
            )
        begin = pick.randint(0, steps - 1)
        build.add("live_intervals", number, begin, pick.randint(begin + 1, steps))


def made(synthetic: ModuleType, seed: int) -> Trace:
    pick, build = random.Random(seed), synthetic.Builder()
    replicas, ipus, ops = pick.randint(1, 2), pick.randint(1, 3), 5
    for op in range(ops):
        graph = pick.choice(("main", "net"))
        line = pick.choice(("", f"m.py:{op}"))
        build.add("ops", op, f"{graph}/s/op{op}", f"T{op % 3}", graph, pick.choice(PHASES), op, line, "float16")
    extents = [steps_of(build, pick, segment, ops) for segment in range(4)]
    for number in range(3):
        build.add("links", number, f"l{number}", "ipu_link", f"ipu{number % 2}", f"ipu{number // 2}", 1e11, 2)
    start = 0
    for run in range(pick.randint(1, 2)):
        end = start
        for replica in range(replicas):
            for ipu in range(ipus):
                at = start + pick.choice((0, 0, 4))
                for _ in range(pick.randint(1, 4)):
                    segment = pick.randint(0, 3)
                    row = (
                        len(build.rows["instances"]),
                        segment,
                        replica * ipus + ipu,
                        replica,
                        pick.randint(-1, 2),
                        -1,
                    )
                    build.add("instances", *row, at, extents[segment], run)
                    at += extents[segment] + pick.choice((0, 0, 6))
                end = max(end, at)
        for number in range(pick.randint(0, 5)):
            row = (pick.randint(0, 2), pick.randint(start, end), pick.choice((0, 3, 8)), pick.randint(0, 90))
            build.add("transfers", number, *row, pick.randint(-1, ops - 1), pick.choice(TRANSFER_KINDS), 0)
        build.add("runs", run, f"run {run}", start, end - start + pick.choice((0, 5)))
        start = end + 10
    for ipu in range(ipus):
        memory_of(build, pick, ipu, pick.randint(1, 6))
    trace = build.trace(
        num_ipus=replicas * ipus, replicas=replicas, tiles_per_ipu=TILES, bytes_per_tile=900, clock_hz=10**9,
        ipuperf_version="1.0", peak_flops_per_cycle={"float16": 64},
    )  # fmt: skip
    assert not [text for text in check(trace) if "steps" in text or "loops" in text or "instances" in text]
    return trace


def instances_of(trace: Trace) -> list[list[int]]:
    """Replica and IPU of each line of a timeline."""
    return np.unique(np.stack([trace.columns("instances")[key] for key in ("replica", "ipu")]), axis=1).T.tolist()


def drawn(trace: Trace) -> Any:
    """How much of each pixel of every IPU each kind covers, and all of the picture."""
    cover = timeline.kind_cover(trace, [tuple(pair) for pair in instances_of(trace)], window.whole(trace), 23)
    return {"cover": np.round(cover, 6).ravel(), "figure": report.timeline_figure(trace)}


def paths(trace: Trace) -> Any:
    path = report.critical_path(trace)
    stretches = import_module("ipuperf.report.critical_path").path_stretches(path).table
    return {"path": path, "cycles": report.path_cycles(trace, path), "stretches": stretches}


VIEWS: Mapping[str, Callable[[Trace], Any]] = {
    "facts": lambda t: {
        k: v for k, v in facts.page_facts(t, 10**6).items() if k not in ("kinds", "phases", "categories")
    },
    "facts cut": lambda t: {k: facts.page_facts(t, 5)[k] for k in ("timeline", "liveness")},
    "summary": report.summary_text,
    "why": report.why_text,
    "waits": lambda t: report.waits(t).table(),
    "path": paths,
    "drawn": drawn,
    "live": lambda t: {str(k): v for k, v in {**report.live_memory(t), **report.link_use(t)}.items()},
    "split": lambda t: {str(ipu): parts for ipu, parts in report.pipeline_split(t, window.whole(t)).items()},
    "memory": lambda t: {"steps": report.liveness_figure(t), "tiles": report.tile_memory_figure(t)},
    "pipeline": lambda t: report.pipeline_timeline_figure(t, window.whole(t)),
    "stages": lambda t: [str(work) for work in pipeline.stage_work(t, 0, window.whole(t))],
    "arrows": lambda t: [str(arrow) for arrow in marks.arrows(t, None)],
    "operations": lambda t: t.operations(),
}


@pytest.mark.heavy
@pytest.mark.parametrize("view", VIEWS)
def test_view_of_random_runs(view: str, synthetic: ModuleType, golden: Golden) -> None:
    golden([line for seed in SEEDS for line in (f"seed {seed}", *digest.lines(VIEWS[view](made(synthetic, seed))))])


@cache
def _many(synthetic: ModuleType) -> list[Trace]:
    return [made(synthetic, seed) for seed in range(16)]


@pytest.mark.heavy
def test_parts_add_up_to_the_run(synthetic: ModuleType) -> None:
    """Time by part, waits by owner, the critical path and its stretches."""
    for trace in _many(synthetic):
        runs = trace.columns("runs")
        total, begin = int(runs["dur"][-1]), int(runs["start"][-1])
        assert sum(report.breakdown_cycles(trace).values()) == total
        assert sum(report.step_time(trace).parts.values()) == total
        waits = report.waits(trace).table()
        assert (waits.iloc[:, 6:].sum(axis=1) == waits["dur"]).all()
        assert (waits.iloc[:, 6:] >= 0).all(axis=None)
        path = report.critical_path(trace)
        assert path.start[0] == begin
        assert path.end[-1] == begin + total
        assert (path.start[1:] == path.end[:-1]).all()
        stretches = import_module("ipuperf.report.critical_path").path_stretches(path).table
        assert stretches["dur"].sum() == report.path_cycles(trace, path)["cycles"].sum() == total
        assert (stretches["start"][1:].to_numpy() == (stretches["start"] + stretches["dur"])[:-1].to_numpy()).all()


@pytest.mark.parametrize("width", [1, 3, 7, 900])
def test_narrow_instances_are_drawn_evenly(width: int, synthetic: ModuleType, golden: Golden) -> None:
    """Of a trace of too many slices: as much of each kind on each IPU, and the same where nothing is narrow."""
    rounded = []
    for trace in _many(synthetic):
        ipus = [tuple(pair) for pair in instances_of(trace)]
        covers = []
        for most in (10**6, -1):
            with mock.patch.object(timeline, "MOST_EXPANDED", most):
                covers.append(timeline.kind_cover(trace, ipus, window.whole(trace), width))
        exact, evenly = covers
        np.testing.assert_allclose(evenly.sum(axis=2), exact.sum(axis=2), atol=1e-6)
        if width == 900:
            np.testing.assert_allclose(evenly, exact, atol=1e-6)
        rounded.append(np.round(evenly + 0.0, 4).ravel())
    golden({"check": checksum(" ".join(f"{value:.4f}" for value in np.concatenate(rounded)))})


@pytest.mark.heavy
def test_waits_are_what_no_lane_fills(synthetic: ModuleType) -> None:
    """Cycle by cycle: an IPU waits where none of its steps but waiting ones is under way."""
    for trace in _many(synthetic):
        runs, slices = trace.columns("runs"), trace.expand()
        begin, end = int(runs["start"][-1]), int(runs["start"][-1] + runs["dur"][-1])
        instances = trace.columns("instances")
        in_run = slices[np.isin(slices["instance"], instances["instance"][instances["parent"] == runs["run"][-1]])]
        found = report.waits(trace).table()
        for (replica, ipu), own in in_run.groupby(["replica", "ipu"]):
            busy = np.zeros(end - begin, dtype=bool)
            for one in own[~own["kind"].isin(["sync_external", "idle"])].itertuples():
                busy[max(one.start - begin, 0) : max(one.start + one.dur - begin, 0)] = True
            waiting = np.zeros(end - begin, dtype=bool)
            for one in found[(found["replica"] == replica) & (found["ipu"] == ipu)].itertuples():
                waiting[one.start - begin : one.start + one.dur - begin] = True
            assert (waiting == ~busy).all()
