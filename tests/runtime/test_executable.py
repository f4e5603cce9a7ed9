"""What an executable does to the clock, action by action, and what it keeps, gives up and hands on."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from ipuperf.ir import FLOAT8_143, FLOAT32, INT32, Builder, Ir, TensorSpec, Variable
from ipuperf.lowering import NewValues
from ipuperf.machine import MachineError, load_machine
from ipuperf.ops import Add
from ipuperf.ops.products.float8 import Pow2ScaleThenCast
from ipuperf.runtime.clock import SimulatedClock, activate
from ipuperf.runtime.executable import Executable, HostOptions, LoweringOptions, RunOptions, choose_machine
from ipuperf.runtime.reports import keep_finished
from ipuperf.runtime.run_context import RUN
from ipuperf.runtime.settings import RunSettings, use_settings


def program(replicas: int = 1, size: int = 64, cast: bool = False) -> Ir:
    """A variable and a sum."""
    ir = Ir(replication_factor=replicas)
    main, spec = ir.main_graph, TensorSpec((size,), FLOAT32)
    x = main.add(Variable("x", spec, main, np.zeros(size, np.float32), ir.grouping()))
    y = Builder(main).op(Add, [x, x])
    if cast:
        Builder(main).op(Pow2ScaleThenCast, [y, main.constant(0, INT32)], dtype=FLOAT8_143)
    return ir


GROUPS = {"lowering": LoweringOptions, "host": HostOptions, "options": RunOptions}


def executable(machine: Any = "gc200-1", ir: Ir | None = None, **options: Any) -> Executable:
    """An executable with these members of its groups of options."""
    for group, kind in GROUPS.items():
        names = [member.name for member in fields(kind) if member.name in options]
        options[group] = kind(**{name: options.pop(name) for name in names})
    return Executable(ir or program(), machine, settings=options.pop("settings", RunSettings()), **options)


def values_of(made: Executable) -> dict[str, Any]:
    """The members of its groups of options."""
    return {name: value for group in GROUPS for name, value in vars(getattr(made, group)).items()}


ACTIONS = {
    "run": lambda made: made.run(),
    "unload": lambda made: made.unload(),
    "bring": lambda made: made.bring_values(),
    "h2d": lambda made: made.copied_weights("h2d"),
    "d2h": lambda made: made.copied_weights("d2h"),
    "none": lambda made: made.copied_weights("h2d", []),
}


@pytest.mark.parametrize(
    ("actions", "options", "passed"),
    [
        ("run", {}, "first + run"),
        ("run run", {}, "first + run + run"),
        ("run unload run", {}, "first + run + first + run"),
        ("bring run", {}, "first + run"),
        ("run bring", {}, "first + run + value"),
        ("run bring run", {}, "first + run + value + run"),
        ("run unload bring", {}, "first + run"),
        ("h2d d2h run", {}, "first + run"),
        ("run h2d", {}, "first + run + h2d"),
        ("run d2h h2d", {}, "first + run + h2d + d2h"),
        ("run none", {}, "first + run + none"),
        ("run h2d d2h", {"copies_weights": False}, "first + run"),
        ("run bring", {"new_values": None}, "first + run"),
        ("run run", {"values_each_run": True}, "first + run - value + run - value"),
        ("run bring run", {"values_each_run": True}, "first + run - value + value + run - value"),
        ("run", {"values_each_run": True, "new_values": None}, "first + run"),
    ],
)
def test_the_clock_advances(actions: str, options: dict[str, Any], passed: str) -> None:
    # With one replica both directions take the same time.
    made = executable("pod4", program(replicas=2), **{"new_values": NewValues("new", (2,)), **options})
    clock = SimulatedClock()
    with activate(clock):
        for action in actions.split():
            ACTIONS[action](made)
    seconds = {"first": made.first_run_seconds, "run": made.simulated_run_seconds}
    if made.options.new_values is not None:
        seconds["value"] = made.value_run_seconds
    for name, only in (("h2d", None), ("d2h", None), ("none", [])):
        seconds[name] = made.weight_copy_seconds("d2h" if name == "d2h" else "h2d", only)
    assert clock.now == pytest.approx(eval(passed, seconds), abs=1e-8)
    known = [value for name, value in seconds.items() if name != "__builtins__"]
    assert len(set(known)) == len(known), "terms that the sums could not tell apart"


def test_without_a_clock_nothing_is_simulated() -> None:
    made = executable()
    for action in "run h2d bring run".split():
        ACTIONS[action](made)
    assert (made.runs, made.is_compiled, made.is_simulated) == (2, True, False)


@pytest.mark.parametrize(
    ("actions", "with_values"),
    [
        ("", False),
        ("run", False),
        ("run run run", False),
        ("run bring run", True),
        ("run run bring run", False),
        ("run bring run bring run", True),
        ("run bring bring run run", False),
        ("bring run run", False),
        ("run bring run run bring run", True),
    ],
)
def test_a_run_as_most_are(actions: str, with_values: bool) -> None:
    made = executable(new_values=NewValues("new", (2,)))
    for action in actions.split():
        ACTIONS[action](made)
    called = made.as_called()
    assert (called is not made) is with_values
    assert called.options.values_each_run is with_values
    if with_values:
        assert made.as_called() is called
        assert called.device_program is made.device_program
        assert called.simulated_run_cycles == made.simulated_run_cycles + made.value_run_cycles
        assert called.host_start_cycles == made.host_start_cycles + made.value_run_cycles
        assert called.as_called() is called


def test_another_machine_gets_nothing_that_was_worked_out() -> None:
    made = executable("gc200-1", again=True)
    made.run()
    _ = made.trace, made.weight_copy_seconds("h2d")
    pod = load_machine("bow-1")
    other, alike = made.on(pod), made.on(pod, lowered_alike=True)
    assert (other.machine, other.runs, other.is_simulated, other.is_compiled) == (pod, 0, False, False)
    assert other._weight_copies == {}
    assert (made.runs, len(made._weight_copies), made.machine.name) == (1, 1, "gc200-1")
    assert "device_program" not in vars(other)
    assert alike.device_program is made.device_program
    assert other.ir is made.ir
    assert made.settings.executables == [made]
    with pytest.raises(MachineError):
        executable("pod4", program(replicas=4)).on(pod)


def test_options_reach_the_simulation() -> None:
    made = executable("pod4", program(replicas=2), prefetch_depth=3, front_end=False, callback_threads=None)
    wanted = {"prefetch_depth": 3, "front_end": False, "callback_threads": None, "host_processes": 1, "before": None}
    assert made.host_options == wanted
    assert executable("pod4", program(replicas=2), host_processes=5).host.host_processes == 2
    host, chip = made.machine.host, made.machine.chip
    assert made.host_start_cycles == chip.cycles(host.start_seconds(False, 1))
    assert executable("pod4").host_start_cycles == chip.cycles(host.start_seconds(True, 1)) > made.host_start_cycles
    assert made.first_run_seconds == host.first_run_seconds
    script = executable("pod4", settings=RunSettings(between_calls=0.003))
    assert abs(script.simulated_run_cycles - executable("pod4").simulated_run_cycles - chip.cycles(0.003)) <= 1
    listed = list(made.settings.executables)
    made = made.changed(options=RunOptions(new_values=NewValues("new", (1,)), values_each_run=True))
    assert (len(listed), made.settings.executables) == (1, [made])
    assert made.host_options["before"].name == "new"
    assert made.host_options["before"].cycles == made.value_run_cycles
    assert made.value_run_seconds == chip.seconds(made.value_run_cycles)


def test_options_are_kept() -> None:
    options = {"name": "n", "sync_pattern": "full", "prefetch_depth": 2, "outlining": 0.5, "front_end": False}
    options |= {"again": True, "callback_threads": 2, "kept_in": "folder", "floating_point_exceptions": True}
    options |= {"report_name": "training"}
    made = executable(**options)
    values = {**values_of(made), "name": made.name, "report_name": made.report_name}
    assert {name: values[name] for name in options} == options
    plain = executable()
    begin = (plain.runs, plain._loaded, plain.options, plain.host.copies_weights)
    assert begin == (0, False, RunOptions(None, None, False, False), True)


def test_seconds_of_a_copy_are_worked_out_once_for_each_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    from ipuperf.runtime import executable as module

    made, asked = executable(), []
    copies = module.weight_copy_cycles
    monkeypatch.setattr(module, "weight_copy_cycles", lambda *given: asked.append(given[:2]) or copies(*given))
    variables = made.ir.variables()
    for direction, only in (("h2d", None), ("h2d", variables), ("d2h", None), ("h2d", []), ("d2h", None)):
        made.weight_copy_seconds(direction, only)
    assert asked == [(tuple(variables), "h2d"), (tuple(variables), "d2h"), ((), "h2d")]


def test_settings_decide() -> None:
    told: list[int] = []
    settings = RunSettings(machine="bow-1", before_values=lambda one: told.append(one.runs))
    with use_settings(settings):
        made = Executable(program())
    assert made.settings is settings
    assert settings.executables == [made]
    assert made.machine.name == "bow-1"
    made.run()
    made.run()
    assert told == [0]
    without = executable(settings=RunSettings(numbers=False))
    with pytest.raises(SystemExit) as ended:
        without.run()
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("cast", "replicas", "name"), [(False, 1, "gc200-1"), (True, 1, "bow-1"), (False, 3, "pod4"), (True, 3, "bow-pod4")]
)
def test_programs_of_8_bit_floats_choose_among_later_machines(cast: bool, replicas: int, name: str) -> None:
    assert executable(None, program(replicas, cast=cast)).machine.name == name


def test_choosing_among_given_machines() -> None:
    assert choose_machine("auto", 2, 1, ["gc200-1", "pod16", "pod4"]).name == "pod16"
    with pytest.raises(MachineError):
        choose_machine(None, 8, 1, ["gc200-1", "pod4"])
    machine = load_machine("pod4")
    assert choose_machine(machine, 4, 1) is machine
    with pytest.raises(MachineError):
        choose_machine(machine, 5, 1)


def test_a_strict_program_that_does_not_fit_ends_before_its_first_run() -> None:
    large = program(size=400_000_000 // 4 * 4)
    made = executable(ir=large, settings=RunSettings(strict_memory=True))
    with pytest.raises(Exception, match="does not fit"):
        made.run()
    assert executable(ir=large).memory_problems() == []


def test_a_finished_session_is_kept_before_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    from ipuperf.runtime import executable as module

    said: list[int] = []
    monkeypatch.setattr(module, "keep_finished", lambda settings: said.append(len(settings.executables)))
    settings = RunSettings()
    first = executable(settings=settings)
    second = executable(settings=settings)
    assert said == [0, 1]
    first.run()
    first.run()
    assert said == [0, 1, 2], "before the first run of a session"
    second.unload()
    assert said == [0, 1, 2, 2]
    assert keep_finished(settings) is None
    assert RUN.clocks == []
