"""Compute tiles and I/O tiles of one IPU: each walks its own list, they meet at the copies between them. By hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import simprograms as s

from ipuperf.lowering.steps import Call, IoTiles, TileSetCopy
from ipuperf.simulation import SimulationError, simulate
from ipuperf.trace import check

IO, SYNC, EXCHANGE = 1325, 10, 20  # 5500 bytes at 5.5 GB/s and 1.325 GHz
COPY = SYNC + EXCHANGE
IN, OUT = (TileSetCopy(0, f"copy to {to}", to, 5500, SYNC, EXCHANGE) for to in ("compute", "io"))


def io(*steps):
    return IoTiles(-1, "I/O tiles", steps)


def program(trips, compute, *, outputs=False, replicas=1):
    """Software-pipelined inference of ``trips`` + 2 micro-batches: the first and the last stand outside the loop."""
    load, store, work = io(s.h2d(5500)), io(s.d2h(5500)), s.phase([compute, 3])
    out, stored = ((OUT,), (store,)) if outputs else ((), ())
    return dataclasses.replace(
        s.program(
            s.seq(
                load, IN, load, work, *out, s.repeat(trips, IN, *stored, load, work, *out), IN, *stored, work, *out,
                *stored,
            ),
            replicas=replicas,
        ),
        io_tiles=32,
    )  # fmt: skip


@pytest.mark.parametrize("compute", [300, IO, 2000])
@pytest.mark.parametrize("fold", [True, False])
def test_a_step_lasts_as_long_as_the_longer_of_the_two(compute, fold):
    trips = 50
    trace = simulate(program(trips, compute), s.machine(), fold=fold)
    step = COPY + max(compute, IO)
    assert s.end(trace) == IO + (trips + 1) * step + COPY + compute
    assert check(trace) == []


@pytest.mark.parametrize("compute", [300, 5000])
def test_loads_and_stores_share_the_io_tiles(compute):
    """A store and a load one after the other beside the compute; a second copy at its end."""
    trace = simulate(program(20, compute, outputs=True), s.machine())
    first = COPY + max(compute, IO) + COPY
    step = COPY + max(compute, 2 * IO) + COPY
    last = COPY + max(compute, IO) + COPY + IO
    assert s.end(trace) == IO + first + 20 * step + last
    assert check(trace) == []


def test_host_costs_are_hidden_too():
    """Begin (2 us) and end (an external sync of 7) of a stream copy belong to the I/O tiles."""
    machine = s.machine(stream=2e-6, sync=7)
    whole = 2 * IO + IO + 7
    assert s.end(simulate(program(9, 100), machine)) == whole + 10 * (COPY + whole) + COPY + 100
    assert s.end(simulate(program(9, 9000), machine)) == whole + 11 * (COPY + 9000)


def test_the_branches_overlap_and_bytes_are_counted_once():
    trips, compute = 8, 700
    trace = simulate(program(trips, compute), s.machine(), fold=False)
    table = trace.expand()
    lanes = {lane: table[table.lane == lane] for lane in (0, 1)}
    loads = [(r.start, r.start + r.dur) for r in lanes[1][lanes[1].kind == "host_mid"].itertuples()]
    works = [(r.start, r.start + r.dur) for r in lanes[0][lanes[0].kind == "compute"].itertuples()]
    shared = sum(max(0, min(b, d) - max(a, c)) for a, b in loads for c, d in works)
    assert shared == (trips + 1) * compute
    copies = {lane: own[own.kind == "exchange"] for lane, own in lanes.items()}
    assert list(copies[0].start) == list(copies[1].start)
    assert list(copies[0].bytes_in) == [5500] * (trips + 2)
    assert copies[0].bytes_out.sum() == copies[1].bytes_in.sum() == 0
    waits = lanes[0][lanes[0].kind == "idle"]
    assert list(waits.dur) == [IO] + [IO - compute] * (trips + 1)
    steps = trace.columns("steps")
    assert set(steps["active_tiles"][(steps["lane"] == 1) & (steps["kind"] == "exchange")]) == {32}
    assert set(steps["active_tiles"][(steps["lane"] == 0) & (steps["kind"] == "exchange")]) == {1472 - 32}


def test_compute_is_counted_with_the_slice_that_it_works_on():
    trace = simulate(program(3, 100), s.machine(), fold=False)
    steps, instances = trace.columns("steps"), trace.columns("instances")
    work = steps["segment"][(steps["kind"] == "compute")]
    assert list(instances["micro_batch"][np.isin(instances["segment"], work)]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("outputs", [False, True])
def test_neither_folding_nor_order_nor_fidelity_matters(outputs):
    made, machine = program(40, 1200, outputs=outputs, replicas=2), s.machine(callback=1e-7, stream=1e-6, sync=5)
    plain = simulate(made, machine, fold=False)
    assert s.slices(simulate(made, machine)) == s.slices(plain)
    assert s.slices(simulate(made, machine, seed=3)) == s.slices(plain)
    assert s.end(simulate(made, machine, fidelity="tile")) == s.end(plain)


def test_steps_inside_a_function_that_loops():
    body = s.seq(IN, io(s.h2d(5500)), s.phase([200, 1]), name="body")
    made = dataclasses.replace(
        s.program(
            s.seq(io(s.h2d(5500)), s.repeat(3, s.repeat(4, Call(-1, "c", "body")), s.phase([50, 50])), IN),
            functions={"body": body},
        ),
        io_tiles=64,
    )
    trace = simulate(made, s.machine())
    assert s.end(trace) == IO + 12 * (COPY + IO) + COPY  # the update, too, is hidden behind the load
    assert check(trace) == []


def test_tiles_of_the_io_lane_count_from_the_first_io_tile():
    made = dataclasses.replace(s.program(s.seq(io(s.phase([0, 9, 0])), s.phase([4, 4]))), io_tiles=32)
    steps = simulate(made, s.machine()).columns("steps")
    work = steps["kind"] == "compute"
    found = dict(zip(steps["lane"][work].tolist(), steps["argmax_tile"][work].tolist(), strict=True))
    assert found == {0: 0, 1: 1472 - 32 + 1}


def test_bad_copies_are_named():
    for bad, message in (
        (dataclasses.replace(IN, destination="gpu"), "TileSetCopy 'copy to compute' on IPU 0: destination is 'gpu'"),
        (dataclasses.replace(IN, cycles=-1), "TileSetCopy .*: -1 cycles"),
        (dataclasses.replace(IN, bytes=-1), "bytes is -1"),
    ):
        with pytest.raises(SimulationError, match=message):
            simulate(dataclasses.replace(s.program(s.seq(bad)), io_tiles=32), s.machine())
    with pytest.raises(SimulationError, match="deadlock.*(\n.*)*waits in step 'copy to io' for the I/O tiles at copy"):
        simulate(s.program(s.seq(OUT)), s.machine())
