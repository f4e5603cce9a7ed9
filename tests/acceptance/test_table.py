"""The table of the remote-variables tutorial: throughput, step time and memory of five placements of Adam's state.

Published figures are those of the tutorial's table and of the PopVision images beside it (digitised, +-0.1 MB).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ipuperf.lowering import lower
from ipuperf.machine import load_machine
from ipuperf.simulation import simulate
from ipuperf.trace import Trace, check

SAMPLES = 4 * 8 * 8  # replicas, gradient accumulation, micro-batch

MEASURED = {
    "no sharding": 43418.9,
    "only state related to fc1.weight": 50909.2,
    "all state related to weights": 67403.4,
    "all state": 72570.0,
    "on-chip optimizer": 107418.9,
}
ON_CHIP, OFF_CHIP, SHARDED = "on-chip optimizer", "no sharding", "all state"
PARTS = ["compute", "exchange", "sync", "links", "ddr", "host"]


@dataclass(frozen=True)
class Memory:
    """Megabytes per IPU; not always live: between the bumps of gradient accumulation, and at most."""

    baseline: float
    peak: float
    always_live: float


MEMORY = {
    ON_CHIP: Memory(13.1, 16.7, 35.5),
    OFF_CHIP: Memory(7.9, 15.2, 37.4),
    SHARDED: Memory(7.45, 10.9, 39.9),
}

Table = tuple[dict[str, dict[str, Any]], dict[str, Trace]]


# -- throughput --------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_there_are_the_five_published_rows(table: Table) -> None:
    rows, _ = table
    assert {name: row["measured"] for name, row in rows.items()} == MEASURED


def test_rows_come_in_the_measured_order(table: Table) -> None:
    rows, _ = table
    by_measurement = sorted(MEASURED, key=MEASURED.__getitem__)
    assert sorted(rows, key=lambda name: rows[name]["predicted"]) == by_measurement


@pytest.mark.parametrize("name", MEASURED)
def test_each_row_is_within_five_percent_of_its_measurement(table: Table, name: str) -> None:
    rows, _ = table
    assert rows[name]["predicted"] == pytest.approx(MEASURED[name], rel=0.05)


@pytest.mark.parametrize("name", MEASURED)
def test_step_time_throughput_and_breakdown_are_one(table: Table, name: str) -> None:
    rows, traces = table
    row, trace = rows[name], traces[name]
    (cycles,) = trace.columns("runs")["dur"]
    first = load_machine("pod4").host.first_run_seconds
    assert row["step_seconds"] == pytest.approx(cycles / 1.325e9 + first / 5, rel=1e-9), "clock of GC200: 1.325 GHz"
    assert row["predicted"] * row["step_seconds"] == pytest.approx(SAMPLES, rel=1e-9)
    assert list(row["breakdown"]) == PARTS
    assert sum(row["breakdown"].values()) == pytest.approx(row["step_seconds"], rel=1e-9)
    assert all(seconds >= 0 for seconds in row["breakdown"].values())


def test_only_placements_off_chip_use_the_ddr(table: Table) -> None:
    rows, traces = table
    for name, row in rows.items():
        kinds = set(traces[name].columns("transfers")["kind"])
        assert (row["breakdown"]["ddr"] > 0) == (name != ON_CHIP)
        assert ({"remote_load", "remote_store"} <= kinds) == (name != ON_CHIP)


def test_bytes_to_and_from_the_ddr_are_those_of_adams_state(table: Table) -> None:
    """Both moments (fp16 and fp32) and the step count of each tensor, whole on every replica or a quarter of it."""
    _, traces = table
    weights = (784 * 512, 512 * 512, 512 * 512, 512 * 10)
    biases = (512, 512, 512, 10)
    thresholds = {OFF_CHIP: np.inf, SHARDED: 512, "all state related to weights": 1024}
    thresholds["only state related to fc1.weight"] = 262145
    for name, threshold in thresholds.items():
        held = [n // 4 if n >= threshold and n % 4 == 0 else n for n in (*weights, *biases)]
        expected = sum(6 * n + 4 for n in held)
        transfers = traces[name].table("transfers")
        links = traces[name].table("links").set_index("link_id")["kind"]
        own = transfers[(transfers["ipu"] == 0) & (transfers["link_id"].map(links) == "ddr")]
        for kind in ("remote_load", "remote_store"):
            moved = int(own.loc[own["kind"] == kind, "bytes"].sum())
            assert expected <= moved <= expected * 1.05, "fragments below the smallest access are rounded up"


def test_the_weights_stay_on_chip_and_links_carry_the_same_gradients(table: Table) -> None:
    """Reduce-scatter and gather move what an all-reduce moves: every placement loads the IPU-Links alike."""
    _, traces = table
    totals = {}
    for name, trace in traces.items():
        transfers = trace.table("transfers")
        links = trace.table("links").set_index("link_id")["kind"]
        totals[name] = int(transfers.loc[transfers["link_id"].map(links) == "ipu_link", "bytes"].sum())
    gradients = 4 * (784 * 512 + 512 * 512 * 2 + 512 * 10 + 3 * 512 + 10)
    assert min(totals.values()) >= 4 * 2 * 3 / 4 * gradients, "a ring moves 2 (n - 1) / n of the bytes per replica"
    assert max(totals.values()) <= 1.05 * min(totals.values())


# -- memory ------------------------------------------------------------------------------------------------------------


def _liveness(trace: Trace) -> tuple[np.ndarray, np.ndarray, int]:
    """Of IPU 0: not-always-live bytes per step, steps at which images are loaded, always-live bytes."""
    live = trace.table("liveness")
    live = live[live["ipu"] == 0].sort_values("step")
    loads = np.flatnonzero(live["program"].astype(str).str.contains("image"))
    assert live["always_live"].nunique() == 1
    return live["not_always_live"].to_numpy(), loads, int(live["always_live"].iloc[0])


def _accumulation(trace: Trace) -> tuple[np.ndarray, int]:
    """Not-always-live bytes from the first load to the end of the last micro-batch, and their number."""
    series, loads, _ = _liveness(trace)
    return series[loads[0] : loads[-1] + (loads[1] - loads[0])], len(loads)


@pytest.mark.parametrize("name", MEMORY)
def test_the_level_between_the_bumps(table: Table, name: str) -> None:
    """Where a micro-batch begins: at the load of its images.

    A close call for the unsharded placement, whose model has the baseline of the sharded one: 7.52 MB here, 4.8 % off
    the 7.9 of the acceptance and 4.4 % off the 7.87 that was digitised. One step later, when the images are not yet in
    the memory of the first product and the labels arrive, it is 7.50 MB (5.1 % and 4.7 %).
    """
    series, loads, _ = _liveness(table[1][name])
    (level,) = set(series[loads])
    assert level / 1e6 == pytest.approx(MEMORY[name].baseline, rel=0.05)


@pytest.mark.parametrize("name", MEMORY)
def test_the_peak(table: Table, name: str) -> None:
    series, _, _ = _liveness(table[1][name])
    assert series.max() / 1e6 == pytest.approx(MEMORY[name].peak, rel=0.10)


@pytest.mark.parametrize("name", MEMORY)
def test_what_is_always_live(table: Table, name: str) -> None:
    _, _, always = _liveness(table[1][name])
    assert always / 1e6 == pytest.approx(MEMORY[name].always_live, rel=0.20)


def test_code_grows_with_what_the_placement_has_to_do(table: Table) -> None:
    order = [_liveness(table[1][name])[2] for name in (ON_CHIP, OFF_CHIP, SHARDED)]
    assert order == sorted(order)
    assert len(set(order)) == 3


def _bumps(series: np.ndarray, low: float, high: float) -> int:
    """How often the series rises from ``low`` or below to ``high`` or above."""
    bumps, armed = 0, False
    for value in series:
        if value <= low:
            armed = True
        elif value >= high and armed:
            bumps, armed = bumps + 1, False
    return bumps


@pytest.mark.parametrize("name", MEASURED)
def test_liveness_has_eight_bumps_of_gradient_accumulation(table: Table, name: str) -> None:
    window, loads = _accumulation(table[1][name])
    assert loads == 8
    bottom, top = window.min(), window.max()
    height = top - bottom
    assert height > 2e6
    assert _bumps(window, low=bottom + 0.01 * height, high=bottom + 0.9 * height) == 8
    parts = window.reshape(8, -1)
    assert (parts == parts[0]).all(), "every micro-batch takes the same memory"


def test_every_tile_holds_the_program(table: Table) -> None:
    for trace in table[1].values():
        assert not trace.meta["oom"]
        assert trace.columns("liveness")["max_tile"].max() <= 638_976


# -- the simulation of it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEASURED)
def test_the_trace_adds_up(table: Table, name: str) -> None:
    assert check(table[1][name]) == []


@pytest.mark.parametrize("name", [ON_CHIP, SHARDED])
def test_order_of_simultaneous_events_and_folding_do_not_matter(
    table: Table, table_sessions: dict[str, Any], name: str
) -> None:
    machine = load_machine("pod4")
    program = lower(table_sessions[name].executable.ir, machine, name=table_sessions[name].executable.name)
    trace = simulate(program, machine)
    assert np.array_equal(trace.columns("runs")["dur"], table[1][name].columns("runs")["dur"])
    assert simulate(program, machine, fold=False) == trace
    assert simulate(program, machine, seed=5) == trace


def _same_but_for_fidelity(one: Trace, other: Trace) -> None:
    assert (one.meta["fidelity"], other.meta["fidelity"]) == ("phase", "tile")
    moved = one.diff(other)
    assert moved.empty, moved.to_string()
    assert {k: v for k, v in one.meta.items() if k != "fidelity"} == {
        k: v for k, v in other.meta.items() if k != "fidelity"
    }
    for name in ("steps", "instances", "tile_runs", "liveness", "transfers", "host_events", "runs"):
        for column, values in one.columns(name).items():
            assert np.array_equal(values, other.columns(name)[column]), f"{name}.{column}"


def test_tile_fidelity_equals_phase_fidelity_on_a_training_step(sgd_session: Any) -> None:
    machine = load_machine("gc200-1")
    program = lower(sgd_session.executable.ir, machine)
    phase, tile = simulate(program, machine), simulate(program, machine, fidelity="tile")
    assert phase.columns("runs")["dur"][0] > 100_000
    _same_but_for_fidelity(phase, tile)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_tile_fidelity_equals_phase_fidelity_on_the_tables_step(table_sessions: dict[str, Any], name: str) -> None:
    machine = load_machine("pod4")
    program = lower(table_sessions[name].executable.ir, machine)
    _same_but_for_fidelity(simulate(program, machine), simulate(program, machine, fidelity="tile"))


@pytest.fixture(scope="module")
def looped_program(installed_front_ends: Callable) -> Any:
    """A micro-batch repeated 50 times on 4 replicas, gradients reduced in each: something to fold."""
    with installed_front_ends():
        import popxl
        from popxl import ops

        ir = popxl.Ir(4)

        def step(x: popxl.Tensor, w: popxl.TensorByRef) -> popxl.Tensor:
            gradient = ops.collectives.replicated_all_reduce(x @ w, op="mean")
            ops.scaled_add_(w, gradient, b=-0.1)
            return ops.gelu(gradient)

        with ir.main_graph, popxl.in_sequence():
            w = popxl.variable(np.eye(64, dtype=np.float32), name="w")
            x = popxl.variable(np.ones((64, 64), np.float32), name="x")
            body = ir.create_graph(step, x, w)
            ops.repeat(body, 50, x, w)
        return popxl.Session(ir, "ipu_hw").executable.ir


def test_folding_of_a_loop_changes_nothing(looped_program: Any) -> None:
    machine = load_machine("pod4")
    program = lower(looped_program, machine)
    folded, whole = simulate(program, machine), simulate(program, machine, fold=False)
    assert folded == whole
    assert check(folded) == []
    assert folded.columns("runs")["dur"][0] > 50 * 1000
