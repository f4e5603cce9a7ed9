"""Micro-benchmarks against figures computed by hand and against PopLibs' own values
(``docs/reference/cycles.md`` 8.1)."""

import math

import numpy as np
import pytest

from ipuperf.ir import FLOAT32
from ipuperf.machine import load_machine
from ipuperf.ops import vertices
from ipuperf.validation import Case, CaseError, Measured, figures
from ipuperf.validation.benchmarks import BENCHMARKS
from ipuperf.validation.handwritten import on_each_tile, triad_cycles

LAUNCH = load_machine("bow-1").chip.launch_cycles
"""Before a compute set that follows no exchange."""


def case(model: str, quantity: str = "cycles", unit: str = "cycles", **keys: object) -> Case:
    config = keys.pop("config")
    machine = keys.pop("machine", "bow-1")
    measured = Measured("it", quantity, 1.0, unit, keys.pop("harness", 0))
    return Case("X", "kernel", "", str(machine), model, "kernel", measured, config=config, **keys)


@pytest.mark.parametrize(("rows", "cycles"), [(6, 369), (24, 423), (132, 855), (882, 3855)])
def test_tile_products_take_the_cycles_of_the_vertex_table(rows: int, cycles: int) -> None:
    found = figures(case("tile_products", precision="f16.16", config={"rows": rows}))
    assert found.values["cycles"] == cycles
    assert found.values["flop rate"] == pytest.approx(2 * 1472 * rows * 256 * 1.85e9 / cycles)


@pytest.mark.parametrize(("elements", "cycles"), [(64, 255), (384, 393), (1000, 699), (4096, 2247)])
def test_triad_takes_the_cycles_of_the_vertex_table(elements: int, cycles: int) -> None:
    chip = load_machine("gc200-1").chip
    assert triad_cycles(np.array([0, elements]), chip).tolist() == [0, cycles]
    found = figures(case("stream_triad", machine="gc200-1", config={"elements": elements}))
    assert found.values["cycles"] == LAUNCH + cycles


def test_triad_counts_bytes_and_operations() -> None:
    keys = {"machine": "gc200-1", "config": {"elements": 4096}}
    bytes_ = figures(case("stream_triad_bytes", **keys)).values
    flops = figures(case("stream_triad", **keys)).values
    assert bytes_["bandwidth"] == pytest.approx(12 * 4096 * 1472 * 1.325e9 / (LAUNCH + 2247))
    assert flops["flop rate"] == pytest.approx(2 * 4096 * 1472 * 1.325e9 / (LAUNCH + 2247))
    assert "flop rate" not in bytes_


@pytest.mark.parametrize("tiles", [3, 4, 1472])
def test_tile_add_costs_the_same_on_any_number_of_tiles(tiles: int) -> None:
    # BinaryOp1D: six workers with 171 elements each in vectors of two, 3 cycles a vector: 6 (29 + 3 x 86) + 11
    found = figures(case("tile_add", config={"tiles": tiles, "elements": 1024}, harness=45))
    assert found.values["cycles"] == LAUNCH + 6 * (29 + 3 * 86) + 11 == LAUNCH + 1733


def test_hand_placed_vertices_are_priced_where_something_is() -> None:
    chip = load_machine("bow-1").chip
    formula = vertices.binary("ADD", FLOAT32, 1).cycles
    assert on_each_tile(formula, 5)(np.array([0, 32]), chip).tolist() == [0, 6 * (29 + 3) + 11]


def test_what_the_measuring_adds_is_added() -> None:
    cycles = case("tile_add", config={"tiles": 3, "elements": 1024}, harness=45)
    assert figures(cycles).predicted(cycles) == LAUNCH + 1733 + 45
    time = case("tile_add", "device time", "us", config={"tiles": 3, "elements": 1024}, harness=45)
    assert figures(time).predicted(time) == pytest.approx((LAUNCH + 1733 + 45) / 1850)


def test_tile_copy_moves_eight_bytes_a_cycle() -> None:
    chip = load_machine("bow-1").chip
    small, large = (figures(case("tile_copy", config={"bytes": n})).values["cycles"] for n in (1024, 9216))
    assert large - small == 8192 / chip.memcpy_bytes_per_cycle
    assert 0 < small - 1024 / chip.memcpy_bytes_per_cycle < 300


def test_exchange_receives_four_bytes_a_cycle() -> None:
    chip = load_machine("bow-1").chip
    small, large = (figures(case("tile_exchange", config={"bytes": n})).values["cycles"] for n in (4096, 8192))
    assert large - small == 4096 / chip.exchange_bytes_per_cycle


def test_host_transfer_is_bound_by_pcie() -> None:
    machine = load_machine("gc200-1")
    for model in ("host_to_device", "device_to_host"):
        found = figures(case(model, machine="gc200-1", config={"bytes": 55_000_000})).values
        least = 55e6 / machine.host.pcie_bandwidth_bytes_per_s
        assert least < found["device time"] < 1.02 * least
        assert found["time"] - found["device time"] == pytest.approx(machine.host.run_seconds, rel=1e-6)


@pytest.mark.parametrize("model", ["stream_copy_begin", "stream_copy_mid", "stream_copy_end"])
def test_the_ends_of_a_stream_copy_are_the_hosts_without_prefetching(model: str) -> None:
    chip, host = load_machine("gc200-1").chip, load_machine("gc200-1").host
    answer = sum(map(chip.cycles, (host.sync_seconds, host.callback_seconds, host.answer_seconds)))
    lasts = {
        "stream_copy_begin": answer,
        "stream_copy_mid": chip.cycles(host.stream_latency_seconds) + 1,
        "stream_copy_end": chip.external_sync_cycles + answer,
    }
    found = [
        figures(case(model, machine="gc200-1", prefetch=depth, config={"bytes": 4})).values["cycles"]
        for depth in (0, 1)
    ]
    assert found[0] == lasts[model]
    ahead = answer - chip.cycles(host.answer_seconds)  # the first slice is prepared as the run begins
    assert found[1] == {**lasts, "stream_copy_begin": ahead, "stream_copy_end": chip.external_sync_cycles}[model]


def test_the_first_run_takes_longer_and_counts_in_a_mean_of_calls() -> None:
    host = load_machine("gc200-1").host
    times = [
        figures(case("device_to_host", machine="gc200-1", calls=n, config={"bytes": 4})).values["time"]
        for n in (0, 1, 5)
    ]
    assert times[1] - times[0] == pytest.approx(host.first_run_seconds)
    assert times[2] - times[0] == pytest.approx(host.first_run_seconds / 5)


@pytest.mark.parametrize(("size", "of_the_ipus"), [(4, False), (100_000_000, True)])
def test_overlapped_calls_take_the_longer_of_the_start_and_the_run(size: int, of_the_ipus: bool) -> None:
    host = load_machine("gc200-1").host
    start = host.start_seconds(False, 1)
    alone, overlapped = (
        figures(case("device_to_host", machine="gc200-1", overlapped_calls=on, config={"bytes": size})).values
        for on in (False, True)
    )
    assert alone["time"] == pytest.approx(start + alone["device time"], rel=1e-6)
    assert overlapped["device time"] == alone["device time"]
    assert overlapped["time"] == pytest.approx(alone["device time"] if of_the_ipus else start, rel=1e-4)


def test_matmul_counts_its_operations() -> None:
    found = figures(case("matmul", "flop rate", "TFLOP/s", precision="f16.16", config={"m": 64, "k": 64, "n": 64}))
    assert found.values["flop rate"] * found.values["device time"] == pytest.approx(2 * 64**3)


def test_all_reduce_moves_at_least_what_a_ring_must() -> None:
    size = 4_000_000
    found = figures(case("all_reduce", machine="pod4", replicas=4, config={"bytes": size})).values
    fastest = 10 * 16e9  # all links of an IPU at once, protocol left out
    assert found["device time"] > 2 * 3 / 4 * size / fastest
    assert math.isfinite(found["bandwidth"])


def test_trivial_runs_are_mostly_the_host() -> None:
    run = load_machine("pod4").host.run_seconds
    for model, config in (("trivial_multiply", {"copies": 20}), ("trivial_sum", {"terms": 20})):
        found = figures(case(model, machine="pod4", config={"elements": 8832, "ipus": 4, **config})).values
        assert run < found["time"] < 1.1 * run


def test_repeated_broadcast_grows_with_its_trips() -> None:
    def seconds(trips: int) -> float:
        config = {"elements": 64, "ipus": 2, "trips": trips}
        return figures(case("repeated_broadcast_add", machine="pod4", config=config)).values["device time"]

    assert seconds(30) - seconds(20) == pytest.approx(seconds(20) - seconds(10), rel=0.01)


def test_operands_on_the_first_ipu_travel_there_and_back_in_every_trip() -> None:
    chip = load_machine("pod4").chip

    def cycles(ipus: int) -> float:
        config = {"elements": 64, "ipus": ipus, "trips": 100}
        return figures(case("repeated_broadcast_add", machine="pod4", config=config)).values["cycles"]

    assert cycles(2) - cycles(1) >= 100 * 2 * chip.external_sync_cycles


def test_a_quantity_that_is_not_there_is_refused() -> None:
    wrong = case("tile_copy", "memory: peak", "MB", config={"bytes": 1024})
    with pytest.raises(CaseError, match=r"'memory: peak' is not defined for model 'tile_copy'; allowed: cycles"):
        figures(wrong).predicted(wrong)


def test_every_benchmark_says_what_it_is() -> None:
    assert all((builder.__doc__ or "").strip() for builder in BENCHMARKS.values())
