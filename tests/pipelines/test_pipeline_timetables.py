"""Timetables in which values wait: random ones, and the schedules of the literature, against plain accumulation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelinecases import FUNCTIONS
from test_pipeline_values import assert_like_plain_accumulation
from timetablecases import made, needs, placements

from ipuperf.pipelines import Offload
from ipuperf.schedules import ScheduleError, popart_pipeline, timetable_of

COPIES = ("every step", "when needed")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_timetables(data: st.DataObject) -> None:
    cells, ipus, count, period = data.draw(placements())
    stages = len(ipus)
    pairs = [(a, b) for b in range(stages) for a in range(b - 1)]
    skips = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=3)) if pairs else []
    functions = data.draw(st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=stages, max_size=stages))
    offload = Offload(activations=data.draw(st.booleans()))
    table = made(cells, ipus, count, period)
    assert_like_plain_accumulation(table, data.draw(st.sampled_from(COPIES)), 2, 1, offload, skips, functions)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_random_timetables_that_break_a_rule_are_refused(data: st.DataObject) -> None:
    cells, ipus, count, _ = data.draw(placements())
    index = data.draw(st.integers(0, len(cells) - 1))
    step, _, cell = cells[index]
    steps = {other: at for at, _, other in cells}
    before = [steps[other] for other in needs(cell, len(ipus))]
    ways = {"twice": True, "early": bool(before), "missing": cell.kind != "W" or count > 1}
    how = data.draw(st.sampled_from([way for way, possible in ways.items() if possible]))
    changed = [*cells[:index], *cells[index + 1 :]]
    if how == "twice":
        changed = [*cells, (step, 9, cell)]
    elif how == "early":
        least = min(before)
        changed.append((data.draw(st.integers(0, least)), -1, cell))
    with pytest.raises(ScheduleError, match=rf"stage {cell.stage}, micro-batch {cell.micro_batch}\b"):
        made(changed, ipus, count)


GRID = [
    *[("1f1b", stages, count, {}) for stages, count in ((1, 1), (1, 3), (2, 1), (2, 5), (3, 3), (4, 9))],
    ("1f1b", 3, 7, {"devices": [2, 0, 1]}),
    *[("zb_h1", stages, count, {}) for stages, count in ((1, 1), (1, 4), (2, 2), (2, 9), (3, 2), (4, 11))],
    ("zb_h1", 3, 8, {"devices": [1, 0, 2]}),
    *[("interleaved_1f1b", stages, count, {}) for stages, count in ((2, 3), (4, 2), (4, 12))],
    ("interleaved_1f1b", 6, 4, {"chunks": 3}),
    ("interleaved_1f1b", 4, 4, {"devices": [1, 0, 1, 0]}),
    ("interleaved_1f1b", 3, 3, {"chunks": 1}),
]


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize(("name", "stages", "count", "options"), GRID, ids=str)
def test_schedules_with_flush(name: str, stages: int, count: int, options: dict, copies: str) -> None:
    skips = [(0, stages - 1)] if stages > 2 else []
    table = timetable_of(name, stages, count, **options)
    assert_like_plain_accumulation(table, copies, 2, 1, Offload(), skips)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "interleaved_1f1b"])
@pytest.mark.parametrize(
    ("offload", "options"),
    [
        (Offload(activations=True, accumulators=True), {}),
        (Offload(weights=True, shard_optimiser_state=True), {"reduction": "sum", "loss_scale": 8.0}),
        (Offload(), {"reduction": "running_mean"}),
    ],
    ids=["activations", "weights", "running_mean"],
)
def test_with_offloading_replicas_and_reductions(name: str, offload: Offload, options: dict) -> None:
    table = timetable_of(name, 4, 8)
    assert_like_plain_accumulation(table, "when needed", 2, 2, offload, [(0, 3), (1, 3)], **options)


def test_a_running_mean_of_stages_that_share_an_ipu() -> None:
    """Each stage counts its own micro-batches."""
    table = popart_pipeline(3, 7, devices=[0, 1, 0])
    assert_like_plain_accumulation(table, "every step", 2, 1, Offload(), [], reduction="running_mean")
