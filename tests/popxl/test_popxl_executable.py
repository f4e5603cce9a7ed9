"""Executables and run settings: choice of machine, the clock, reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.machine import MachineError
from ipuperf.popxl import ops
from ipuperf.runtime import executable as rt
from ipuperf.runtime.clock import SimulatedClock, activate
from ipuperf.runtime.reports import write_reports
from ipuperf.runtime.settings import RunSettings, current_settings, use_settings


def program(replicas: int = 1, ipu: int = 0) -> tuple[popxl.Ir, Any]:
    """A program that doubles a number."""
    ir = popxl.Ir(replicas)
    with ir.main_graph, popxl.ipu(ipu):
        out = popxl.d2h_stream((), popxl.float32, "out")
        ops.host_store(out, popxl.variable(np.float32(2.0)) * 2)
    return ir, out


def build_doubler(replicas: int = 1) -> popxl.Session:
    return popxl.Session(program(replicas)[0], "ipu_hw")


@pytest.mark.parametrize(
    ("replicas", "ipu", "name"), [(1, 0, "gc200-1"), (2, 0, "pod4"), (1, 1, "pod4"), (5, 0, "pod16"), (16, 3, "pod64")]
)
def test_auto_takes_the_smallest_machine(replicas: int, ipu: int, name: str) -> None:
    ir, _ = program(replicas, ipu)
    assert rt.Executable(ir._ir).machine.name == name


def test_the_named_machine_is_used_and_must_be_large_enough() -> None:
    settings = RunSettings(machine="pod16")
    with use_settings(settings):
        assert rt.Executable(program(4)[0]._ir).machine.name == "pod16"
        assert rt.Executable(program(4)[0]._ir, "bow-pod4").machine.name == "bow-pod4"
        with pytest.raises(MachineError, match="32"):
            rt.Executable(program(32)[0]._ir)
    with use_settings(RunSettings(machine="pod5")), pytest.raises(MachineError, match="pod5"):
        build_doubler()
    assert current_settings().machine == "auto"


def test_settings_collect_executables_under_the_name_of_the_users_function() -> None:
    settings = RunSettings()
    with use_settings(settings):
        build_doubler()
        build_doubler(2)
    build_doubler()
    assert [(e.name, e.ir.replication_factor) for e in settings.executables] == [
        ("build_doubler", 1),
        ("build_doubler", 2),
    ]


def test_runs_advance_the_active_clock_by_the_simulated_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    simulations: list[str] = []

    class Trace:
        def columns(self, name: str) -> dict[str, np.ndarray]:
            return {"dur": np.array([1330])}

        def seconds(self, cycles: int) -> float:
            return cycles / 1.33e9

    def simulate(lowered: Any, machine: Any, **host: Any) -> Trace:
        simulations.append(machine.name)
        return Trace()

    import ipuperf.simulation

    monkeypatch.setattr(ipuperf.simulation, "simulate", simulate, raising=False)
    session, clock = build_doubler(), SimulatedClock()
    with session:
        session.run()
        assert simulations == []
        with activate(clock):
            for _ in range(3):
                session.run()
    assert clock.now == pytest.approx(3e-6)
    assert simulations == ["gc200-1"]
    assert session.executable.runs == 4


def test_reports_go_to_one_folder_per_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    import ipuperf.report

    monkeypatch.setattr(ipuperf.report, "write_report", lambda trace, folder, *_: written.append(folder))
    settings = RunSettings(report_directory=tmp_path)
    with use_settings(settings):
        build_doubler()
        rt.Executable(program()[0]._ir, name="a b/c")
        for executable in settings.executables:
            executable.__dict__["trace"] = None
        assert write_reports() == written == [tmp_path / "0-build_doubler", tmp_path / "1-a-b-c"]
    assert write_reports(RunSettings()) == []


@pytest.mark.heavy
def test_one_simulation_per_program_gives_cycles_and_seconds(tmp_path: Path) -> None:
    settings, clock = RunSettings(report_directory=tmp_path), SimulatedClock()
    with use_settings(settings), activate(clock):
        session = build_doubler()
        executable = session.executable
        with session:
            session.run()
            session.run()
    assert executable.simulated_run_cycles > 0
    hertz = executable.trace.meta["clock_hz"]
    assert executable.simulated_run_seconds == pytest.approx(executable.simulated_run_cycles / hertz)
    first = executable.machine.host.first_run_seconds
    assert first > 0
    weights = executable.weight_copy_seconds("d2h")  # as the context ends
    assert weights > 0
    assert clock.now == pytest.approx(2 * executable.simulated_run_seconds + first + weights, abs=2e-9)
    with activate(clock), session:  # taken anew, so loaded anew
        session.run()
    assert clock.now == pytest.approx(3 * executable.simulated_run_seconds + 2 * (first + weights), abs=3e-9)
    assert executable.trace is executable.trace
    assert executable.trace.meta["machine"] == "gc200-1"
    assert [f.name for f in write_reports(settings)] == ["0-build_doubler"]
    assert (tmp_path / "0-build_doubler" / "index.md").is_file()


@pytest.mark.parametrize(("op", "expected"), [("sum", 0), ("prod", 1), ("l2", 0)])
def test_a_reduction_of_no_elements_is_simulated(op: str, expected: float) -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        empty = ops.slice_(popxl.variable(np.ones((4, 2), np.float32)), 1, 1)
        out = popxl.d2h_stream((), popxl.float32)
        ops.host_store(out, getattr(ops, op)(empty))
    with popxl.Session(ir, "ipu_model") as session:
        assert session.run()[out] == expected
    assert session.executable.simulated_run_cycles > 0
