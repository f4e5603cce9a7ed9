"""Every schedule gives the losses and weights of plain gradient accumulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelinecases import FUNCTIONS, ROWS, WIDTH, network, plain, run_once

from ipuperf.numerics import Evaluator
from ipuperf.pipelines import Offload, build_pipeline
from ipuperf.schedules import (
    Liveness,
    RecomputationMode,
    Timetable,
    grouped,
    interleaved,
    phased_parallel,
    phased_serial,
    popart_pipeline,
    sequential,
    sharded,
)

AUTO = RecomputationMode.Auto
SCHEDULES = {
    "grouped": (lambda n: grouped(n, 4 * n), "every step"),
    "grouped_long": (lambda n: grouped(n, 6 * n), "every step"),
    "grouped_recompute": (lambda n: grouped(n, 4 * n, recompute=AUTO), "every step"),
    "interleaved": (lambda n: interleaved(n, 3 * n), "every step"),
    "interleaved_recompute": (lambda n: interleaved(n, 3 * n, recompute=AUTO), "every step"),
    "sequential": (lambda n: sequential(n, 3), "every step"),
    "sequential_recompute": (lambda n: sequential(n, 3, recompute=AUTO), "every step"),
    "popart": (lambda n: popart_pipeline(n, 2 * n + 2), "every step"),
    "popart_least": (lambda n: popart_pipeline(n, 2 * n - 1), "every step"),
    "popart_recompute": (lambda n: popart_pipeline(n, 2 * n + 1, recompute=True), "every step"),
    "sharded": (lambda n: sharded(n, 4), "when needed"),
    "sharded_once": (lambda n: sharded(n, 1), "when needed"),
}


def close(found, expected):
    """float32 against float64: within 1e-6 of the array's norm, which leaves room for another order of summation."""
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)


def assert_like_plain_accumulation(
    timetable: Timetable,
    copies: str,
    updates: int,
    replicas: int,
    offload: Offload,
    skips,
    functions=(),
    seed=0,
    **training,
):
    """The losses of all micro-batches, and the weights in the end, are those of NumPy without any schedule."""
    stages, micro_batches = timetable.stages, timetable.micro_batches
    ipus = [group[0] for group in timetable.devices]
    net = network(stages, skips=skips, functions=functions, ipus=ipus, replicas=replicas, seed=seed, **training)
    start = [w.data.copy() for w in net.weights]
    build_pipeline(
        net.ir, net.parts, timetable, outputs=net.outputs, training=net.training, repeats=updates, copies=copies,
        offload=offload,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    x, target = rng.normal(size=(2, updates * micro_batches, replicas, ROWS, WIDTH)).astype(np.float32)
    found = run_once(net, x, target)
    reduction = training.get("reduction", "mean")
    factor = 1.0 if reduction == "sum" else 1.0 / micro_batches
    factor /= replicas
    order = lambda a: a.reshape(updates, micro_batches * replicas, ROWS, WIDTH).reshape(-1, ROWS, WIDTH)  # noqa: E731
    weights, losses = plain(start, skips, order(x), order(target), updates, factor=factor, functions=functions)
    close(found.reshape(-1), losses)
    for variable, expected in zip(net.weights, weights, strict=True):
        close(variable.data, expected)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name, stages):
    make, copies = SCHEDULES[name]
    assert_like_plain_accumulation(make(stages), copies, 2, 1, Offload(), [(0, stages - 1)] if stages > 2 else [])


@pytest.mark.parametrize(
    "name", ["grouped", "popart_recompute", "interleaved", "sharded", "sharded_once", "sequential"]
)
@pytest.mark.parametrize(
    "offload",
    [
        Offload(optimiser_state=True),
        Offload(activations=True),
        Offload(accumulators=True, weights=True),
        Offload(optimiser_state=True, shard_optimiser_state=True),
        Offload(shard_optimiser_state=True),
    ],
    ids=["state", "activations", "accumulators_weights", "sharded_state_away", "sharded_state"],
)
def test_offload_and_replicas(name, offload):
    make, copies = SCHEDULES[name]
    assert_like_plain_accumulation(make(3), copies, 2, 2, offload, [(0, 2)])


@pytest.mark.parametrize("domain", [1, 2, 4])
def test_shards_in_groups_of_replicas(domain):
    """Two shards of three elements each, held by every pair of replicas; of a domain of 1 nothing is sharded."""
    offload = Offload(shard_optimiser_state=True, sharding_domain=domain)
    make, copies = SCHEDULES["popart"]
    assert_like_plain_accumulation(make(2), copies, 2, 4, offload, [])


@pytest.mark.parametrize("reduction", ["sum", "mean", "running_mean"])
@pytest.mark.parametrize("name", ["grouped", "popart"])
def test_reductions(name, reduction):
    make, copies = SCHEDULES[name]
    assert_like_plain_accumulation(make(2), copies, 3, 1, Offload(), [], reduction=reduction, loss_scale=8.0)


def test_an_ipu_may_come_back():
    assert_like_plain_accumulation(popart_pipeline(3, 7, devices=[0, 1, 0]), "every step", 1, 1, Offload(), [])
    assert_like_plain_accumulation(grouped(4, 8, devices=[0, 1, 1, 0]), "every step", 1, 1, Offload(), [(0, 3)])


def test_phases():
    assert_like_plain_accumulation(
        phased_serial(3, 4), "when needed", 2, 1, Offload(weights=True, optimiser_state=True), [(0, 2)]
    )
    assert_like_plain_accumulation(
        phased_serial(3, 2, liveness=Liveness.OffChipAfterEachPhase), "when needed", 1, 1, Offload(), []
    )
    assert_like_plain_accumulation(phased_parallel(3, 2), "when needed", 1, 1, Offload(), [])


@pytest.mark.heavy
@settings(max_examples=25)
@given(data=st.data())
def test_random_stages(data):
    """Random functions, skip connections, schedules, replicas and offloading."""
    stages = data.draw(st.integers(2, 4))
    pairs = [(a, b) for b in range(stages) for a in range(b - 1)]
    skips = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=3)) if pairs else []
    functions = data.draw(st.lists(st.sampled_from(sorted(FUNCTIONS)), min_size=stages, max_size=stages))
    make, copies = SCHEDULES[data.draw(st.sampled_from(sorted(SCHEDULES)))]
    offload = Offload(
        optimiser_state=data.draw(st.booleans()),
        activations=data.draw(st.booleans()),
        accumulators=data.draw(st.booleans()),
        shard_optimiser_state=data.draw(st.booleans()),
    )
    replicas, seed = data.draw(st.integers(1, 2)), data.draw(st.integers(0, 9))
    assert_like_plain_accumulation(make(stages), copies, 2, replicas, offload, skips, functions, seed)


@pytest.mark.parametrize("name", ["grouped", "popart", "sharded", "sequential", "popart_least"])
def test_final_and_summed_results(name):
    make, copies = SCHEDULES[name]
    timetable = make(2)
    found = {}
    for returned in ("all", "final", "sum"):
        net = network(2, returned=returned)
        build_pipeline(
            net.ir, net.parts, timetable, outputs=net.outputs, training=net.training, repeats=3, copies=copies
        )
        x = np.random.default_rng(0).normal(size=(3 * timetable.micro_batches, 1, ROWS, WIDTH)).astype(np.float32)
        evaluator = Evaluator(net.ir)
        evaluator.load_variables()
        found[returned] = evaluator.run({net.inputs: x, net.targets: x})[net.losses]
    assert found["final"].shape == found["sum"].shape == (1, 1)
    np.testing.assert_array_equal(found["final"][0], found["all"][-1])
    np.testing.assert_allclose(found["sum"][0], found["all"].sum(0), rtol=1e-5)
