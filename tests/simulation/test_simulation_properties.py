"""Random programs: both fidelities agree, folding and shuffling change nothing, and everything adds up."""

from __future__ import annotations

import numpy as np
import pytest
import simprograms as s
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipuperf.lowering.steps import Call, HostExchange
from ipuperf.simulation import simulate
from ipuperf.trace import check, slice_count, slices

POD = s.machine(latency=3, run=3e-8, callback=2e-8, stream=3e-9, remote=1e-8, sync=7)
GROUPS = (((0, 1),), ((0,), (1,)))

cycles = st.lists(st.integers(0, 30), min_size=3, max_size=3)
local = st.one_of(
    st.builds(s.phase, cycles),
    st.builds(lambda c: s.phase(c, "exchange"), cycles),
    st.builds(s.sync, st.integers(0, 5)),
)
alone = st.one_of(
    local,
    local,
    st.builds(s.load, st.integers(0, 3000)),
    st.builds(s.store, st.integers(0, 3000)),
    st.builds(s.h2d, st.integers(0, 900), st.sampled_from(["image", "label"])),
    st.builds(s.d2h, st.integers(0, 900)),
    st.builds(
        s.collective,
        st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]),
        st.integers(0, 5000),
        st.sampled_from(GROUPS),
        st.integers(0, 9),
    ),
    st.just(Call(-1, "call", "f")),
)


@st.composite
def bodies(draw, depth=2):
    """Matching lists of steps for the two IPUs of a replica."""
    both = ([], [])
    for _ in range(draw(st.integers(0, 4))):
        what = draw(st.integers(0, 5))
        ipu = draw(st.integers(0, 1))
        if what <= 2:
            both[ipu].append(draw(alone))
        elif what == 3:
            step = s.meeting(draw(st.integers(0, 2)), ipu, draw(st.integers(0, 5000)), draw(st.integers(0, 900)))
            both[0].append(step)
            both[1].append(step)
        elif what == 4 and depth:
            both[ipu].append(s.repeat(draw(st.integers(0, 6)), *draw(st.lists(alone, max_size=3))))
        elif depth:
            count, inner = draw(st.integers(0, 9)), draw(bodies(depth - 1))
            for steps, own in zip(both, inner):
                steps.append(s.repeat(count, *own))
    return both


@st.composite
def programs(draw):
    one, two = draw(bodies())
    called = s.function(*draw(st.lists(local, max_size=3)))
    return s.program(s.seq(*one), s.seq(*two), replicas=2, functions={"f": called})


many = settings(max_examples=120, suppress_health_check=list(HealthCheck), derandomize=True)


def same(one, two):
    assert one.meta | {"fidelity": ""} == two.meta | {"fidelity": ""}
    for table in ("instances", "steps", "loops", "transfers", "host_events", "runs", "programs", "links"):
        left, right = one.columns(table), two.columns(table)
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], err_msg=f"{table}.{name}")


def says_the_same(one, two):
    """As `same` where one of the traces has an instance for each trip of a local loop."""
    for table in ("transfers", "host_events", "runs", "programs", "links"):
        left, right = one.columns(table), two.columns(table)
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], err_msg=f"{table}.{name}")
    left, right = (_sorted_slices(trace) for trace in (one, two))
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    assert one.totals().equals(two.totals())
    assert one.operations().equals(two.operations())
    left, right = one.summary(), two.summary()
    assert left.pop("tile_balance") == pytest.approx(right.pop("tile_balance"))
    for name in left["tile_average"]:
        assert left["tile_average"][name] == pytest.approx(right["tile_average"][name])
    left.pop("tile_average"), right.pop("tile_average")
    assert left == right
    assert slice_count(one) == slice_count(two) == len(slices(one)) == len(slices(two))


def _sorted_slices(trace):
    frame = trace.expand().drop(columns="instance")
    texts = {name: frame[name].astype(str).to_numpy(dtype="U") for name in ("kind", "op", "program")}
    columns = {name: texts.get(name, frame[name].to_numpy()) for name in frame}
    order = np.lexsort(list(reversed(columns.values())))
    return {name: values[order] for name, values in columns.items()}


@pytest.mark.heavy
@many
@given(programs(), st.integers(0, 2))
def test_folding_and_shuffling_change_nothing(program, depth):
    plain = simulate(program, POD, fold=False, prefetch_depth=depth)
    folded = simulate(program, POD, prefetch_depth=depth)
    says_the_same(plain, folded)
    same(folded, simulate(program, POD, prefetch_depth=depth, seed=1))
    same(plain, simulate(program, POD, prefetch_depth=depth, seed=2, fold=False))


@pytest.mark.parametrize("block", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 8))])
def test_long_loops_fold_exactly(block):
    """Programs with long nested loops, of which most reach a steady state somewhere."""
    for seed in range(20 * block, 20 * block + 20):
        program = s.random_program(seed)
        if max(sum(1 for _ in program.walk(ipu)) for ipu in range(2)) <= 1500:
            depth = seed % 4
            plain = simulate(program, POD, fold=False, prefetch_depth=depth)
            folded = simulate(program, POD, prefetch_depth=depth)
            says_the_same(plain, folded)
            same(folded, simulate(program, POD, prefetch_depth=depth, seed=seed))


@pytest.mark.heavy
@many
@given(programs())
def test_tiles_give_the_same_cycles_as_phases(program):
    phases = simulate(program, POD)
    same(phases, simulate(program, POD, fidelity="tile"))
    same(phases, simulate(program, POD, fidelity="tile", seed=3))


@pytest.mark.heavy
@many
@given(programs())
def test_conservation(program):
    trace = simulate(program, POD)
    assert check(trace) == []
    run = s.end(trace)
    instances, steps = trace.columns("instances"), trace.columns("steps")
    lengths = np.zeros(len(np.unique(instances["segment"])), dtype=np.int64)
    np.add.at(lengths, steps["segment"], steps["dur"] * trace.template.trips)
    np.testing.assert_array_equal(lengths[instances["segment"]], instances["dur"])
    for ipu in np.unique(instances["ipu"]):  # instances of an IPU follow each other without gaps, from 0 to the end
        rows = instances["ipu"] == ipu
        starts, ends = instances["start"][rows], instances["start"][rows] + instances["dur"][rows]
        np.testing.assert_array_equal(starts[1:], ends[:-1])
        assert (starts[0] if len(starts) else 0) == 0
        assert (ends[-1] if len(ends) else 0) == run
    totals = trace.summary()["traffic"]["link"]
    assert totals["bytes_in"] == totals["bytes_out"]
    _no_resource_is_overloaded(trace)


def _no_resource_is_overloaded(trace):
    """Bytes of a resource <= bandwidth x (time in which it has a flow); both directions of the DDR together."""
    moved = trace.columns("transfers")
    resource = {link.name: link.resource for link in POD.topology.links}
    names = trace.columns("links")["name"]
    rates = {}
    for name, rate in zip(names, trace.columns("links")["bandwidth_bytes_per_s"]):
        rates[resource[name]] = max(rate, rates.get(resource[name], 0))
    used = np.array([resource[names[link]] for link in moved["link_id"]], dtype=object)
    for name in set(used):
        rows = np.flatnonzero(used == name)
        busy = np.zeros(s.end(trace), dtype=bool)
        for row in rows:
            busy[moved["start"][row] : moved["start"][row] + moved["dur"][row]] = True
        assert moved["bytes"][rows].sum() <= rates[name] * trace.seconds(int(busy.sum())) * (1 + 1e-12)


@pytest.mark.heavy
@many
@given(programs())
def test_every_leaf_is_executed_as_often_as_the_program_says(program):
    trace = simulate(program, POD)
    for index in range(2):
        wanted = [step for step in program.walk(index) if hasattr(step, "flops")]
        for replica in range(2):
            ipu = program.placement[replica][index]
            slices = trace.expand()
            mine = slices[
                (slices["ipu"] == ipu) & slices["kind"].isin(["compute", "exchange"]) & (slices["program"] == "p")
            ]
            assert list(mine["kind"]) == [step.kind for step in wanted]
            assert list(mine["dur"]) == [step.cycles.max for step in wanted]


@pytest.mark.heavy
@many
@given(programs())
def test_micro_batches_and_iterations_count_on_through_folds(program):
    trace = simulate(program, POD)
    slices = trace.expand()
    for index in range(2):
        ipu = program.placement[1][index]
        counts = {}
        wanted = []
        for step in program.walk(index):
            for copy in step.host_slices(index) if isinstance(step, HostExchange) else ():
                if copy.direction == "h2d":
                    counts[copy.stream] = counts.get(copy.stream, -1) + 1
            if getattr(step, "direction", "") == "h2d":
                counts[step.stream] = counts.get(step.stream, -1) + 1
                wanted.append(counts[step.stream])
        mine = slices[(slices["ipu"] == ipu) & (slices["kind"] == "host_mid") & (slices["program"] != "h2d loss")]
        mine = mine[mine["program"].str.startswith("h2d")]
        assert list(mine["micro_batch"]) == wanted


def test_seed_is_not_in_the_trace():
    program = s.program(s.seq(s.repeat(3, s.h2d(10), s.phase(5))), replicas=4)
    assert simulate(program, POD, seed=5) == simulate(program, POD)


@pytest.mark.parametrize("count", [1, 2, 3, 17, 1000])
def test_loop_of_a_thousand_costs_what_it_should(count):
    machine = s.machine()
    program = s.program(s.seq(s.repeat(count, s.phase(100), s.load(1000))))
    each = 100 + -(-1000 * 1325 // 16000)  # 16 GB/s at 1.325 GHz
    assert s.end(simulate(program, machine)) == count * each
