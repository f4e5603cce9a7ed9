"""Conservation: a sound trace passes, and each broken rule is reported."""

import numpy as np
import pytest

from ipuperf.trace import TABLES, Trace, check


def changed(trace, table, column, row, value, **meta) -> Trace:
    """The same trace with one cell replaced."""
    tables = {name: trace.columns(name) for name in TABLES}
    values = np.array(tables[table][column])
    values[row] = value
    tables[table][column] = values
    return Trace({**trace.meta, **meta}, tables)


@pytest.mark.parametrize("shape", [{}, {"ipus": 1}, {"ipus": 3, "scale": 1.6}, {"speed": 4.0, "memory": False}])
def test_a_sound_trace_passes(synthetic, shape):
    assert check(synthetic.pipeline_trace(**shape)) == []


def test_an_empty_trace_passes(synthetic):
    assert check(synthetic.Builder().trace()) == []


@pytest.mark.parametrize(
    ("table", "column", "row", "value", "words"),
    [
        ("steps", "dur", 3, -1, "steps.dur: negative, -1 (row 3)"),
        ("liveness", "not_always_live", 5, -8, "liveness.not_always_live: negative"),
        ("steps", "op_id", 0, 999, "steps.op_id: 999 is not in ops.op_id"),
        ("transfers", "link_id", 0, 99, "transfers.link_id: 99 is not in links.link_id"),
        ("instances", "parent", 0, 5, "instances.parent: 5 is not in runs.run"),
        ("instances", "segment", 0, 77, "instances.segment: 77 is not in steps.segment"),
        ("steps", "dur_mean", 3, 1e9, "the mean over tiles exceeds the slowest tile"),
        ("steps", "active_tiles", 3, 1473, "steps.active_tiles: 1473, allowed: below 1,473"),
        ("steps", "rel_start", 1, 0, "segment 0 lane 0: seq 0 is still busy when seq 1 starts"),
        ("instances", "dur", 2, 10, "instance 2 lasts 10 cycles, its segment"),
        ("instances", "start", 4, 6_000, "busy more than elapsed"),
        ("instances", "ipu", 0, 9, "instances.ipu: 9, allowed: below 4"),
        ("runs", "dur", 0, 1000, "run 0 [0, 1000) does not hold its instances"),
        ("liveness", "max_tile", 0, 10, "the fullest tile is below the mean over tiles"),
        ("liveness", "max_tile", 0, 2**40, "the fullest tile holds more than the IPU"),
        ("liveness", "max_tile", 0, 530_000, "the fullest tile of IPU 0 holds"),
        ("liveness", "not_always_live", 12, 300_000_000, "variableNotAlwaysLive of IPU 0"),
        ("tile_memory", "tile", 0, 2000, "tile_memory.tile: 2000, allowed: below 1,472"),
        ("tile_memory", "bytes", 0, 10**6, "meta.oom is False"),
        ("live_intervals", "step_to", 0, 0, "live_intervals: empty (row 0)"),
        ("variables", "tile_to", 0, 1473, "variables.tile_to: 1473, allowed: below 1,473"),
        ("transfers", "bytes", 0, 10**9, "links: ipu0->ipu1 moves"),
    ],
)
def test_each_rule_is_reported(trace, table, column, row, value, words):
    found = check(changed(trace, table, column, row, value, oom=False))
    assert any(words in text for text in found), found


def test_replicas_must_share_the_ipus(trace):
    found = check(changed(trace, "runs", "start", 0, 0, replicas=3))
    assert found == ["meta: 4 IPUs cannot be shared by 3 replicas"]


@pytest.mark.parametrize(
    ("table", "column", "none"),
    [
        ("steps", "op_id", True), ("steps", "program_id", True), ("programs", "op_id", True),
        ("programs", "parent", True), ("variables", "op_id", True), ("transfers", "op_id", True),
        ("transfers", "link_id", False), ("instances", "segment", False), ("instances", "parent", False),
        ("live_intervals", "class_id", False),
    ],
)  # fmt: skip
def test_what_may_refer_to_nothing(trace, table, column, none):
    """-1 stands for none where the column says so (``trace/schema.py``), and is an unknown identifier elsewhere."""
    found = check(changed(trace, table, column, 0, -1))
    assert any(text.startswith(f"{table}.{column}: -1 is not in") for text in found) is not none
