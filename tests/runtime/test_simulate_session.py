"""``ipuperf.simulate_session``: the trace that the session's own executable has, whatever it was made with."""

from types import SimpleNamespace

import numpy as np
import pytest

import ipuperf
from ipuperf.ir import FLOAT32, Ir, Stream, TensorSpec
from ipuperf.machine import Machine, MachineError, load_machine
from ipuperf.ops import HostLoad, HostStore, Init, Sin
from ipuperf.runtime.executable import Executable, HostOptions, LoweringOptions, choose_machine
from ipuperf.runtime.settings import AUTO_IPU21_MACHINES, RunSettings
from ipuperf.simulation import SimulationError


def program(trips: int = 4) -> Ir:
    """Load, compute, store, several times in a row."""
    ir = Ir()
    main, spec = ir.main_graph, TensorSpec((64, 64), FLOAT32)
    come, go = main.add(Stream("come", spec, main, "h2d")), main.add(Stream("go", spec, main, "d2h"))
    for _ in range(trips):
        empty = main.create(Init, [], ["x"], shape=spec.shape, dtype=FLOAT32, init="undefined").outputs[0]
        x = main.create(HostLoad, [empty], ["x"], stream=come).outputs[0]
        y = main.create(Sin, [x], ["y"]).outputs[0]
        main.create(HostStore, [y], [], stream=go)
    return ir


def executable_with(
    pattern: str, depth: int, machine: str | None = "gc200-1", settings: RunSettings | None = None
) -> Executable:
    lowering, host = LoweringOptions(pattern), HostOptions(depth)
    return Executable(program(), machine, settings=settings or RunSettings(), lowering=lowering, host=host)


@pytest.mark.parametrize("pattern", ["full", "single_pipeline"])
@pytest.mark.parametrize("depth", [0, 1])
def test_sync_pattern_and_prefetch_depth_are_those_of_the_executable(pattern: str, depth: int) -> None:
    executable = executable_with(pattern, depth)
    trace = ipuperf.simulate_session(SimpleNamespace(executable=executable))
    for table in ("runs", "instances"):
        mine, theirs = trace.columns(table), executable.trace.columns(table)
        np.testing.assert_array_equal(mine["dur"], theirs["dur"])


def test_a_given_prefetch_depth_counts() -> None:
    shallow, deep = (executable_with("single_pipeline", depth) for depth in (0, 1))
    assert shallow.trace.summary()["total_cycles"] > deep.trace.summary()["total_cycles"]
    found = ipuperf.simulate_session(SimpleNamespace(executable=shallow), prefetch_depth=1)
    assert found.summary()["total_cycles"] == deep.trace.summary()["total_cycles"]


def test_a_preset_is_read_once_and_settings_take_a_machine() -> None:
    assert load_machine("gc200-1") is load_machine("gc200-1") is choose_machine("auto", 1, 1)
    machine = load_machine("pod4")
    assert isinstance(machine, Machine)
    assert Executable(program(1), settings=RunSettings(machine=machine)).machine is machine


@pytest.mark.parametrize(
    ("replicas", "ipus", "name"),
    [(1, 2, "pod4"), (64, 1, "pod64"), (65, 1, "pod128"), (16, 8, "pod128"), (256, 1, "pod256")],
)
def test_the_smallest_machine_with_enough_ipus(replicas: int, ipus: int, name: str) -> None:
    assert choose_machine("auto", replicas, ipus).name == name
    assert choose_machine("auto", replicas, ipus, AUTO_IPU21_MACHINES).name == f"bow-{name}"


def test_what_is_no_machine_session_or_prefetch_depth_is_named() -> None:
    session = SimpleNamespace(executable=Executable(program(), "gc200-1", settings=RunSettings()))
    with pytest.raises(MachineError, match="3 \\(int\\) is no machine, allowed: the name of a preset"):
        ipuperf.simulate_session(session, machine=3)
    with pytest.raises(TypeError, match="simulate_session: 3 is no session; expected a popxl.Session"):
        ipuperf.simulate_session(3)
    for depth in (1.5, "1", None, -1):
        with pytest.raises(SimulationError, match="prefetch_depth is .*, it must be a whole number, 0 or more"):
            ipuperf.simulate_session(session, prefetch_depth=depth)


def test_the_same_program_on_another_machine() -> None:
    """It is lowered again, or not where the caller says that lowering would make the same of it."""
    settings = RunSettings(machine="gc200-1")
    first = executable_with("replica_and_ladder", 3, None, settings)
    again, kept = first.on(load_machine("bow-1")), first.on(load_machine("gc200-1"), lowered_alike=True)
    assert settings.executables == [first]
    assert (again.machine.name, again.host.prefetch_depth, again.lowering.sync_pattern) == (
        "bow-1",
        3,
        "replica_and_ladder",
    )
    assert again.device_program is not first.device_program
    assert kept.device_program is first.device_program
    assert kept.simulated_run_cycles == first.simulated_run_cycles != again.simulated_run_cycles
    with pytest.raises(MachineError, match="gc200-1: 4 replicas"):
        Executable(Ir(4), "pod4", settings=settings).on(load_machine("gc200-1"))
