"""What copying variables between host and IPUs takes between two runs; by hand, from the figures of the machine."""

from collections.abc import Callable

import numpy as np
import pytest

import ipuperf.popxl as popxl
from ipuperf.machine import load_machine
from ipuperf.popxl import ops
from ipuperf.runtime.clock import SimulatedClock, activate
from ipuperf.runtime.settings import RunSettings, use_settings

POD = load_machine("pod16")
HOST = POD.host
ELEMENTS = 1 << 20
BYTES = 4 * ELEMENTS
TIGHT = 1.5e-6
"""Seconds: some external syncs."""


def session_of(
    on_chip: int = 1, remote: int = 0, replicas: int = 1, group: int | None = None, shards: bool = False
) -> tuple[popxl.Session, list[popxl.tensor.Variable]]:
    """A program with so many variables of 4 MB, on chip and in Streaming Memory, which adds one to each."""
    ir = popxl.Ir(replication=replicas)
    found: list[popxl.tensor.Variable] = []
    grouping = None if group is None else ir.replica_grouping(group_size=group)
    shape = (ELEMENTS,) if grouping is None or grouping.num_groups == 1 else (grouping.num_groups, ELEMENTS)
    with ir.main_graph:
        for number in range(on_chip):
            data = np.zeros(shape, np.float32)
            found.append(popxl.variable(data, name=f"chip{number}", replica_grouping=grouping))
            ops.add_(found[-1], popxl.constant(1.0))
        for number in range(remote):
            data = np.zeros(shape, np.float32)
            name = f"remote{number}"
            if shards:
                buffer = popxl.replica_sharded_buffer((ELEMENTS,), popxl.float32, grouping)
                variable = popxl.remote_replica_sharded_variable(data, buffer, 0, name=name, replica_grouping=grouping)
            else:
                buffer = popxl.remote_buffer((ELEMENTS,), popxl.float32, 1)
                variable = popxl.remote_variable(data, buffer, 0, name=name, replica_grouping=grouping)
            loaded = ops.remote_load(buffer, 0)
            ops.remote_store(buffer, 0, ops.add(loaded, popxl.constant(1.0)))
            found.append(variable)
    return popxl.Session(ir, "ipu_hw"), found


def seconds_of(call: Callable[[], object]) -> float:
    clock = SimulatedClock()
    with activate(clock):
        call()
    return clock.now


def engine(streams: int, callbacks: int, bytes_each: int, sharing: int = 1) -> float:
    """A run of the engine whose copies are together: a host sync before and after, with a callback for each stream and
    replica that has its own, and the bytes of ``sharing`` replicas, one after the other over the same card."""
    end = HOST.sync_seconds + streams * callbacks * HOST.callback_seconds + HOST.answer_seconds
    card = POD.ipu_machine.require_streaming_memory().host_link_bandwidth_bytes_per_s
    moved = max(streams * bytes_each / HOST.pcie_bandwidth_bytes_per_s, sharing * streams * bytes_each / card)
    return HOST.run_seconds + 2 * end + HOST.stream_latency_seconds + moved


def by_host(copies: int, bytes_each: int) -> float:
    """Copies between host and Streaming Memory, one after the other."""
    card = POD.ipu_machine.require_streaming_memory().host_link_bandwidth_bytes_per_s
    return copies * (HOST.callback_seconds + bytes_each / card)


@pytest.fixture(autouse=True)
def on_a_pod() -> object:
    with use_settings(RunSettings(machine=POD)):
        yield


@pytest.mark.parametrize("variables", [1, 3])
def test_variables_on_chip(variables: int) -> None:
    session, found = session_of(variables)
    expected = engine(variables, 1, BYTES)
    with session:
        session.run()
        assert seconds_of(session.weights_to_host) == pytest.approx(expected, abs=TIGHT)
        assert seconds_of(session.weights_to_host) == 0  # the host has them
        assert seconds_of(session.weights_from_host) == pytest.approx(expected, abs=TIGHT)
        session.run()
        one = found[0]
        assert seconds_of(lambda: session.get_tensor_data(one)) == pytest.approx(expected, abs=TIGHT)  # all come
        zeros = np.zeros(ELEMENTS, np.float32)
        assert seconds_of(lambda: session.write_variable_data(one, zeros)) == pytest.approx(expected, abs=TIGHT)
        session.run()
        both = seconds_of(lambda: session.write_variable_data(one, zeros))
        assert both == pytest.approx(2 * expected, abs=2 * TIGHT)
        np.testing.assert_array_equal(session.get_tensor_data(one), zeros)


def test_loading_is_no_copy_between_runs() -> None:
    session, found = session_of()
    clock = SimulatedClock()
    with activate(clock), session:
        session.write_variable_data(found[0], np.zeros(ELEMENTS, np.float32))
        assert clock.now == 0


def test_replicas_share_streams_to_the_device_but_have_callbacks_to_the_host() -> None:
    session, _ = session_of(2, replicas=4)
    with session:
        session.run()
        to_host = seconds_of(session.weights_to_host)
        to_device = seconds_of(session.weights_from_host)
    assert to_device == pytest.approx(engine(2, 1, BYTES, sharing=4), rel=1e-2)
    assert to_host - to_device == pytest.approx(2 * 2 * 3 * HOST.callback_seconds, abs=TIGHT)


@pytest.mark.parametrize(("group", "from_"), [(4, 1), (2, 2), (1, 4)])
def test_remote_variables_go_to_each_replica_and_come_from_one_of_each_group(group: int, from_: int) -> None:
    session, _ = session_of(0, 1, 4, group)
    empty = engine(0, 0, 0) - 2 * (HOST.sync_seconds + HOST.answer_seconds) - HOST.stream_latency_seconds
    with session:
        session.run()
        assert seconds_of(session.weights_to_host) == pytest.approx(empty + by_host(from_, BYTES), abs=TIGHT)
        assert seconds_of(session.weights_from_host) == pytest.approx(empty + by_host(4, BYTES), abs=TIGHT)


def test_shards_come_from_all_replicas() -> None:
    session, _ = session_of(0, 1, 4, 4, shards=True)
    empty = engine(0, 0, 0) - 2 * (HOST.sync_seconds + HOST.answer_seconds) - HOST.stream_latency_seconds
    with session:
        session.run()
        both = [seconds_of(session.weights_to_host), seconds_of(session.weights_from_host)]
    assert both == pytest.approx([empty + by_host(4, BYTES // 4)] * 2, abs=TIGHT)


def test_another_machine_has_its_own_times() -> None:
    session, _ = session_of(1)
    executable = session.executable
    here = executable.weight_copy_seconds("d2h")
    card = executable.on(load_machine("c600"))
    assert card.weight_copy_seconds("d2h") != here
    assert executable.weight_copy_seconds("d2h") == here
