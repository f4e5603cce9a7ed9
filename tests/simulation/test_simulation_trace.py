"""The tables: templates are shared, the program tree is there, memory adds up, everything is said in the meta."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import sys
from dataclasses import replace

import numpy as np
import pytest
import simprograms as s

from ipuperf.lowering.program import MemoryReport, OpInfo, VariableInfo
from ipuperf.lowering.steps import Call
from ipuperf.lowering.tilevector import TileVector
from ipuperf.lowering.timeline import LiveIntervals
from ipuperf.machine import load_machine
from ipuperf.simulation import simulate
from ipuperf.simulation.event_loop import EventLoop
from ipuperf.trace import check


@pytest.mark.parametrize("module", ["event_loop", "instructions", "network", "folding"])
def test_examples_in_docstrings(module):
    assert doctest.testmod(importlib.import_module(f"ipuperf.simulation.{module}")).failed == 0


def test_empty_program():
    trace = simulate(s.program(s.seq()), s.machine(run=1e-6))
    assert s.slices(trace) == [(0, "host_run", 0, 1325)]
    assert check(trace) == []
    assert s.end(simulate(s.program(s.seq()), s.machine())) == 0


def test_a_function_called_twice_is_one_segment():
    body = s.seq(s.phase([3, 8]), s.sync(), s.phase([9, 2], "exchange"), name="layer")
    call = Call(-1, "call", "layer")
    program = s.program(s.seq(call, s.phase(1), call, s.repeat(3, call)), functions={"layer": body})
    trace = simulate(program, s.machine())
    instances = trace.columns("instances")
    assert list(instances["segment"]) == [0, 1, 0, 2]  # the loop is a segment of its own, with its trips
    layer = 8 + 118 + 9
    assert list(instances["start"]) == [0, layer, layer + 1, 2 * layer + 1]
    assert list(instances["dur"]) == [layer, 1, layer, 3 * layer]
    frame = trace.expand()
    assert list(frame["iteration"]) == [-1] * 7 + [0] * 3 + [1] * 3 + [2] * 3
    assert list(frame["start"][7::3]) == [2 * layer + 1, 3 * layer + 1, 4 * layer + 1]


def test_waiting_moves_nothing():
    loop = s.repeat(2, s.h2d(640), s.load(100), s.collective("all_reduce", 400, ((0, 1),)))
    program = s.program(s.seq(loop), s.seq(s.phase(9)), replicas=2)
    steps = simulate(program, s.machine(run=1e-7, callback=1e-6, sync=7)).columns("steps")
    waiting = np.isin(steps["kind"], ["host_run", "host_begin", "host_end", "idle", "sync_external"])
    assert set(steps["kind"][waiting]) == {"host_run", "host_begin", "host_end", "idle", "sync_external"}
    assert not steps["bytes_in"][waiting].any()
    assert not steps["bytes_out"][waiting].any()


def test_updates_streaming_memory_and_collectives_are_of_no_micro_batch():
    phases = ("fwd", "update", "bwd", "fwd")
    ops = tuple(OpInfo(number, f"op{number}", "Op", "main", phase, 0) for number, phase in enumerate(phases))
    update, load = replace(s.phase(5), op_id=1), replace(s.load(10), op_id=2)
    collective = replace(s.collective("all_reduce", 40, ((0,),)), op_id=3)
    function = {"update": s.seq(update, name="update")}
    main = s.seq(s.h2d(8), s.phase(3), Call(-1, "call", "update"), load, collective, s.phase(4))
    trace = simulate(replace(s.program(main, functions=function), ops=ops), s.machine())
    frame = trace.expand()
    found = {(row.kind, row.op): row.micro_batch for row in frame.itertuples() if row.dur}
    assert found["compute", "op0"] == 0
    assert found["compute", "op1"] == -1
    assert found["remote_load", "op2"] == -1


def test_an_execution_counts_the_innermost_loop():
    inner = s.repeat(3, s.phase(7, name="inner"))
    trace = simulate(s.program(s.seq(s.repeat(2, s.phase(5, name="outer"), inner))), s.machine())
    executions = trace.expand().query("dur > 0")
    assert list(executions["dur"]) == [5, 7, 7, 7] * 2
    assert list(executions["iteration"]) == [0, 0, 1, 2, 1, 0, 1, 2]


def test_progress_is_told_in_between_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(sys.modules[simulate.__module__], "TOLD_EVERY", 2)
    program, told = s.program(s.seq(*(s.load(64) for _ in range(9)))), []
    trace = simulate(program, s.machine(), progress=told.append)
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] <= trace.summary()["total_cycles"]
    assert trace == simulate(program, s.machine())


def test_a_phase_of_no_cycles_has_no_slowest_tile():
    trace = simulate(s.program(s.seq(s.phase([0, 0]), s.phase([0, 4]))), s.machine())
    steps = trace.columns("steps")
    assert list(zip(steps["dur"], steps["argmax_tile"], strict=True)) == [(0, -1), (4, 1)]


def test_steps_carry_what_the_phases_say():
    trace = simulate(s.program(s.seq(s.phase([3, 8, 8, 0]), s.sync(), s.phase([9, 2], "exchange"))), s.machine())
    steps = trace.columns("steps")
    assert list(steps["kind"]) == ["compute", "sync", "exchange"]
    assert list(steps["dur"]) == [8, 118, 9]
    assert list(steps["rel_start"]) == [0, 8, 126]
    np.testing.assert_allclose(steps["dur_mean"], [19 / 1472, 118, 11 / 1472])
    assert list(steps["active_tiles"]) == [3, 1472, 2]
    assert list(steps["argmax_tile"]) == [1, -1, 0]
    assert list(steps["flops"]) == [7, 0, 0]


def test_program_tree():
    program = s.program(
        s.seq(s.h2d(8), s.repeat(2, Call(-1, "c", "f")), s.load(8), s.seq(s.phase(5), name="inner")),
        functions={"f": s.seq(s.sync(), s.phase(3, "exchange"), name="f")},
    )
    table = simulate(program, s.machine()).table("programs")
    tree = [(r.type, r.name, r.parent, r.order) for r in table.itertuples()]
    assert tree == [
        ("Sequence", "main", -1, 0),
        ("StreamCopyBegin", "h2d image", 0, 0),
        ("StreamCopyMid", "h2d image", 0, 1),
        ("StreamCopyEnd", "h2d image", 0, 2),
        ("Repeat", "loop", 0, 3),
        ("Call", "f", 4, 0),
        ("Sequence", "f", -1, 1),
        ("Sync", "sync", 6, 0),
        ("DoExchange", "p", 6, 1),
        ("StreamCopyMid", "load", 0, 4),
        ("Sequence", "inner", 0, 5),
        ("OnTileExecute", "p", 10, 0),
    ]


def test_idle_until_the_last_ipu_is_through():
    trace = simulate(s.program(s.seq(s.phase(10)), s.seq(s.phase(25)), s.seq()), s.machine())
    assert [row for row in s.slices(trace) if row[1] == "idle"] == [(0, "idle", 10, 15), (2, "idle", 0, 25)]


def test_a_long_wait_grows_with_the_folded_iterations():
    program = s.program(s.seq(s.repeat(500, s.phase(100), s.load(16_000)), s.copy(0, 1, 8)), s.seq(s.copy(0, 1, 8)))
    trace = simulate(program, s.machine())
    assert (1, "sync_external", 0, 500 * (100 + 1325)) in s.slices(trace)
    assert trace == simulate(program, s.machine(), fold=False)


def test_folding_saves_events():
    counted = []

    class Counting(EventLoop):
        def step(self):
            counted[-1] += 1
            super().step()

    module = sys.modules["ipuperf.simulation.simulate"]
    program = s.program(s.seq(s.repeat(400, s.repeat(8, s.h2d(8), s.phase(9)), s.load(80), s.d2h(8))), replicas=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EventLoop", Counting)
        for fold in (True, False):
            counted.append(0)
            simulate(program, s.machine(callback=1e-9, sync=3), fold=fold)
    assert counted[0] * 20 < counted[1]


def test_seed_really_shuffles():
    orders = set()
    for seed in range(20):
        events, order = EventLoop(seed), []
        for name in range(4):
            events.after(5, lambda name=name, order=order: order.append(name))
        events.run()
        orders.add(tuple(order))
    assert len(orders) > 5


def intervals(begin, end):
    return LiveIntervals(((((begin, end),), np.array([0])),))


def memory():
    tiles = 1472
    code = TileVector.uniform(1000, tiles)
    held = np.zeros(tiles, dtype=np.int64)
    held[:10] = 500
    peak = held.copy()
    return MemoryReport(
        categories={0: {"vertexCode": code, "stack": TileVector.uniform(50, tiles, 100)}},
        variables=(
            VariableInfo("w", 0, "variable", "float16", 0, TileVector.of(held), intervals(0, 3), False),
            VariableInfo(
                "x", 0, "intermediate", "float16", 0, TileVector((1, 3, tiles), (0, 7, 9)), intervals(1, 2), False
            ),
        ),
        step_names={0: ("a", "b", "c")},
        not_always_live={0: np.array([5000, 4000, 0])},
        max_tile={0: np.array([1550, 1700, 1050])},
        argmax_tile={0: np.array([0, 20, 0])},
        peak={0: peak},
        bytes_per_tile=638976,
    )


def test_memory_tables():
    trace = simulate(s.program(s.seq(s.phase(5)), memory=memory(), replicas=2, placement=((2,), (3,))), s.machine())
    assert check(trace) == []
    table = trace.table("tile_memory")
    assert table[table["category"] == "vertexCode"]["bytes"].sum() == 1_472_000
    assert set(table["ipu"]) == {2}
    varying = table[table["category"] == "variableNotAlwaysLive"].set_index("tile")["bytes"]
    assert varying[0] == 500
    assert varying[20] == 650  # the fullest tile of step b, above what it holds at the peak of the IPU
    variables = trace.table("variables")
    assert list(variables[variables["name"] == "x"]["bytes"]) == [14, 9 * 1469]
    assert list(variables[variables["name"] == "x"]["tile_from"]) == [1, 3]
    liveness = trace.table("liveness")
    assert list(liveness["always_live"]) == [1_472_000 + 5000] * 3
    assert trace.meta["oom"] is False


def test_meta():
    machine = load_machine("pod16")
    trace = simulate(s.program(s.seq(s.phase(5)), replicas=3), machine, prefetch_depth=2)
    assert trace.meta["num_ipus"] == 3
    assert trace.meta["prefetch_depth"] == 2
    assert trace.meta["warnings"] == ["lowered for pod4, simulated on pod16"]
    weak = [key for key, figure in machine.figures.items() if figure.kind in ("assumed", "calibrated")]
    assert [text.split(" ")[0] for text in trace.meta["assumptions"]] == weak
    assert len(trace.columns("links")["name"]) == len(machine.topology.links)


def test_transfers_have_one_row_per_link():
    trace = simulate(s.program(s.seq(s.d2h(100))), s.machine())
    names = trace.columns("links")["name"]
    moved = trace.columns("transfers")
    assert [names[i] for i in moved["link_id"]] == ["pod4/ipu0->nic0", "pod4/nic0->host0"]
    assert list(moved["transfer"]) == [0, 0]
