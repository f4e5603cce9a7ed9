"""Sharding what Streaming Memory holds, and keeping it on chip: gains against programs that are written so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from levercases import RTS, Case, cycles_of, levers_in

from ipuperf import ir as _ir
from ipuperf.levers.remote import OnChip, Sharding
from ipuperf.levers.sharding import Differences, shard, shardable
from ipuperf.numerics import Evaluator
from ipuperf.runtime.install import install, uninstall

TABLE = 0.05
"""How far the gain of sharding may be from what the tutorial's program gains."""


@pytest.mark.heavy
def test_of_unsharded_state_sharding_is_the_first_lever_with_the_gain_of_the_table(case: Case) -> None:
    whole, sharded = case.run(RTS, "inf"), case.run(RTS, 512)
    text = case.why(whole)
    assert "bound by Streaming Memory" in text
    first = levers_in(text)[0]
    assert "shard what Streaming Memory holds over the 4 replicas: 8 remote variables" in first
    gain = cycles_of(whole) - case.only(whole, Sharding()).cycles
    assert gain == pytest.approx(cycles_of(whole) - cycles_of(sharded), rel=TABLE)
    assert "gradient accumulation: its 8 micro-batches are written one after the other" in text
    assert "At the price of memory:" in text


def test_state_on_chip_takes_the_time_of_a_run_without_transfers_and_its_memory_is_counted(case: Case) -> None:
    kept = case.measured(case.run(RTS, "inf"), OnChip())
    (trial,) = kept.trials
    assert trial.change.trades_memory
    assert trial.change.more_bytes == -(-5_594_204 // 1472)
    ddr = kept.gain(trial) * 1000 / kept.cycles
    assert 590 < ddr < 610  # the share of Streaming Memory in the run, per mille


def test_what_is_sharded_already_is_not_sharded_again(case: Case) -> None:
    found = case.measured(case.run(RTS, 512), Sharding())
    assert not found.trials
    assert "no remote variable of at least 1,024 elements is whole" in found.untried[0].why


# -- the change itself -------------------------------------------------------------------------------------------------


@pytest.fixture
def front_end() -> Iterator[None]:
    """popxl under its own name."""
    install()
    yield
    uninstall()


def _training():
    from ipuperf.models.mnist_mlp import TrainingOptions, training_session

    return training_session(TrainingOptions(threshold=float("inf"), hidden=(64,), gradient_accumulation=2))


def _values(change: bool, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The variables after two steps."""
    monkeypatch.setattr(np.random, "normal", np.random.default_rng(1).normal)
    built = _training()
    program = built.session.ir._ir
    if change:
        shard(program, shardable(program))
    evaluator = Evaluator(program)
    evaluator.load_variables()
    rng = np.random.default_rng(2)
    for _ in range(2):
        images = rng.normal(size=(2, 4, 8, 28, 28)).astype(np.float32)
        labels = rng.integers(0, 10, (2, 4, 8)).astype(np.int32)
        streams = {built.images._ir: images, built.labels._ir: labels}
        evaluator.run(streams)
    evaluator.store_variables()
    return [np.array(variable.data) for variable in program.variables()]


@pytest.mark.usefixtures("front_end")
def test_a_sharded_program_computes_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    values = (_values(change, monkeypatch) for change in (False, True))
    for plain, sharded in zip(*values, strict=True):
        np.testing.assert_array_equal(plain, sharded)


@pytest.mark.usefixtures("front_end")
@pytest.mark.parametrize("reduced", [False, True])
def test_only_what_is_the_same_on_all_replicas_is_sharded(reduced: bool) -> None:
    import popxl
    from popxl import ops

    program = popxl.Ir(replication=2)
    with program.main_graph, popxl.in_sequence(True):
        stream = popxl.h2d_stream((2048,), popxl.float32, "x")
        buffer = popxl.remote_buffer((2048,), popxl.float32, 1)
        popxl.remote_variable(np.zeros(2048, np.float32), buffer, 0)
        state = ops.remote_load(buffer, 0)
        x = ops.host_load(stream)
        if reduced:
            x = ops.collectives.replicated_all_reduce_(x)
        ops.remote_store(buffer, 0, ops.add_(state, x) if reduced else state + x)
    held = program._ir.remote_buffers
    assert shardable(program._ir) == (held if reduced else [])
    assert bool(Differences(program._ir, set(held)).stored) is not reduced


@pytest.mark.usefixtures("front_end")
def test_a_carried_value_of_a_loop_that_differs_is_followed() -> None:
    import popxl
    from popxl import ops

    program = popxl.Ir(replication=2)
    with program.main_graph, popxl.in_sequence(True):
        stream = popxl.h2d_stream((2048,), popxl.float32, "x")
        buffer = popxl.remote_buffer((2048,), popxl.float32, 1)
        popxl.remote_variable(np.zeros(2048, np.float32), buffer, 0)
        state = ops.remote_load(buffer, 0)

        def trip(value: popxl.Tensor, other: popxl.Tensor) -> tuple[popxl.Tensor, popxl.Tensor]:
            return other + 1.0, ops.host_load(stream)

        first, _ = ops.repeat(program.create_graph(trip, state, state), 3, state, state)
        ops.remote_store(buffer, 0, first)
    assert shardable(program._ir) == []


@pytest.mark.usefixtures("front_end")
def test_ops_of_a_change_stand_at_the_place_of_those_they_replace() -> None:
    built = _training()
    program = built.session.ir._ir
    buffers = shardable(program)
    shard(program, buffers)
    gathers = 0
    for graph in program.all_graphs():
        for op in graph.ops:
            assert getattr(op, "buffer", None) not in buffers
            gathers += op.type == "ReplicatedAllGather"
        _ir.schedule(graph)
    assert (
        gathers == len(buffers) == 2
    )  # both moments of the first layer's weight; 640 elements of the second's are few
