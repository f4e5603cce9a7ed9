"""What levers try, choose and say, of made-up runs: every count of replicas, IPUs and processes, gains at each edge."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import digest
import pytest
from programtext import checksum
from rows import Golden
from test_levers_golden import ONLY, PROGRAMS, run_of

from ipuperf.levers import LeverResults, Trial, Untried, lever_values, levers_text, measure, stages, unsimulated_text
from ipuperf.levers.change import ProgramChange
from ipuperf.levers.host import CallbackThreads, HostProcesses, PrefetchDepth, SyncPatterns
from ipuperf.levers.layers import ModuleLayer, _layers, _module
from ipuperf.levers.loops import HostLoop, _micro_batches, _updates, host_loops, repeated, with_trips
from ipuperf.levers.remote import _by_ipu, _held, _transfers, without
from ipuperf.report.advice import _KEYS
from ipuperf.runtime.executable import HostOptions, LoweringOptions
from ipuperf.trace import Trace

measuring = importlib.import_module("ipuperf.levers.measure")  # a function has the name of the module


@cache
def synthetic() -> ModuleType:
    spec = importlib.util.spec_from_file_location("made_up", Path(__file__).parents[1] / "trace" / "synthetic.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def traced(**options: Any) -> Trace:
    return synthetic().pipeline_trace(**{"ipus": 2, "micro_batches": 2, "runs": 1, "layers": 1, **options})


# -- the host ----------------------------------------------------------------------------------------------------------


class Executable:
    """Remembers what is changed of it."""

    machine, trace = "machine", None

    def __init__(self, **options: Any) -> None:
        vars(self).update(options)

    def on(self, machine: str, *, lowered_alike: bool = False, **groups: Any) -> Executable:
        assert machine == self.machine
        return Executable(**{**vars(self), **groups})


def _values(executable: Any) -> dict[str, Any]:
    return {**vars(executable.host), **vars(executable.lowering)}


def tried(lever: Any, replicas: int = 1, ipus: int = 1, streams: Any = (), **options: Any) -> list[str]:
    program = SimpleNamespace(replicas=replicas, ipus=range(ipus), streams=dict(enumerate(streams)))
    made: list[Any] = []
    with mock.patch.object(Executable, "trace", property(lambda self: made.append(self) or traced())):
        lowering = LoweringOptions(options.pop("sync_pattern", "single_pipeline"))
        executable = Executable(host=HostOptions(**options), lowering=lowering)
        run = SimpleNamespace(executable=executable, device_program=program, option=lambda *call: (), trace=None)
        run.after = lambda change, trace: SimpleNamespace(change=change, executable=change.of_executable(executable))
        found = list(lever.tries(run))
    changes = [dict(set(_values(one).items()) - set(_values(executable).items())) for one in made]
    return [f"{getattr(one, 'why', '')}{one.what}" for one in found] + [str(change) for change in changes]


def test_what_is_tried_on_the_host(golden: Golden) -> None:
    lines = []
    for replicas, now in itertools.product((1, 2, 3, 6, 8, 12), (1, 2, 3, 4, 6, 8)):
        if replicas % now == 0:  # the vendor's launcher shares the replicas evenly
            found = tried(HostProcesses(), replicas, host_processes=now)
            lines.append(f"{replicas} replicas, {now} processes: {found}")
    for depth, streams in itertools.product((0, 1, 3), ((), (("d2h", 0),), (("d2h", 0), ("h2d", 1)))):
        lines.append(f"depth {depth}, {streams}: {tried(PrefetchDepth(), streams=streams, prefetch_depth=depth)}")
    for replicas, threads in itertools.product((1, 2), (1, 2, None)):
        lines.append(
            f"{replicas} replicas, {threads} threads: {tried(CallbackThreads(), replicas, callback_threads=threads)}"
        )
    for ipus, pattern in itertools.product((1, 2, 3), ("full", "single_pipeline")):
        lines.append(f"{ipus} IPUs, {pattern}: {tried(SyncPatterns(), ipus=ipus, sync_pattern=pattern)}")
    golden(lines)


# -- stages ------------------------------------------------------------------------------------------------------------


def divisions(layers: int, count: int) -> list[tuple[int, ...]]:
    """Every division into stages that are not empty."""
    return [d for d in itertools.product(range(1, layers + 1), repeat=count) if sum(d) == layers]


def chain(cycles: list[int], now: tuple[int, ...], pinned: tuple[int, ...] = ()) -> Any:
    layers = [ModuleLayer(f"l{n}", (), n in pinned) for n in range(len(cycles))]
    return stages._Chain(layers, cycles, now)


@pytest.mark.parametrize("pinned", [(), (0,), (2,), (1, 4)], ids=str)
def test_the_evenest_division_is_that_of_all(pinned: tuple[int, ...]) -> None:
    for cycles in ([3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [1, 1, 1, 1, 1], [8, 0, 0, 0, 8]):
        for count in (1, 2, 3, 5):
            for now in divisions(5, count):
                one = chain(cycles, now, pinned)
                place = stages._stages(now)
                pins = [place[n] if n in pinned else None for n in range(5)]
                allowed = [d for d in divisions(5, count) if all(stages._stages(d)[n] == place[n] for n in pinned)]
                best = min(max(one.sums(d)) for d in allowed)
                assert max(one.sums(stages._evenest(cycles, count, pins))) == best
                for candidate in stages._candidates(one):
                    assert candidate in allowed
                    assert candidate != now


def test_candidates_in_words(golden: Golden) -> None:
    lines = []
    for cycles, now, pinned in (
        ([3, 1, 4, 1, 5], (3, 2), ()), ([3, 1, 4, 1, 5], (1, 3, 1), ()), ([3, 1, 4, 1, 5], (1, 3, 1), (1, 3)),
        ([1, 1, 1, 9, 1, 1, 1, 1], (5, 3), ()), ([1, 1, 1, 9, 1, 1, 1, 1], (2, 4, 2), (2,)), ([4, 4], (1, 1), ()),
        ([0, 0, 0], (2, 1), ()), ([2, 2, 2, 2], (2, 1, 1), ()), ([5, 1, 1, 5], (1, 2, 1), ()),
    ):  # fmt: skip
        one = chain(cycles, now, pinned)
        found = stages._candidates(one)
        lines.append(f"{cycles} {now} {pinned}: {found}; {one.uneven()}; {[one.moves(d) for d in found]}")
    lines.append(str([stages._named([f"n{k}" for k in range(count)]) for count in (1, 3, 4)]))
    golden(lines)


def test_the_fastest_division_that_fits_is_chosen(installed_front_ends: Callable) -> None:
    """One that does not fit stands for the lever only where none does; of two the one with fewer cycles."""
    with installed_front_ends():
        run = run_of("pipeline", installed_front_ends)
        for fits, cycles, chosen in (
            ((True, True), (5, 4), 1),
            ((True, False), (5, 4), 0),
            ((False, False), (5, 4), 1),
        ):
            given = [
                SimpleNamespace(what=str(n), fits=f, cycles=c)
                for n, (f, c) in enumerate(zip(fits, cycles, strict=True))
            ]
            with (
                mock.patch.object(stages, "_candidates", return_value=[0, 1]),
                mock.patch.object(stages.StageDivision, "_trial", lambda _, run, chain, n, given=given: given[n]),
            ):
                assert [one.what for one in stages.StageDivision().tries(run)] == [str(chosen)]


def test_cycles_of_forward_ops() -> None:
    """Those of local steps of called graphs, by op; the op with number 0 is one."""
    steps = [SimpleNamespace(op_id=op, duration=cycles) for op, cycles in ((0, 5), (-1, 7), (1, 2), (0, 1))]
    bodies = {"f": SimpleNamespace(steps=[*steps, "a loop"]), "g": SimpleNamespace(steps=steps[2:3])}
    program = SimpleNamespace(functions=bodies, ops=[SimpleNamespace(name="a"), SimpleNamespace(name="b")])
    with mock.patch.object(stages, "LocalStep", SimpleNamespace):
        assert stages._forward_cycles(program) == {"a": 6, "b": 4}


def test_an_ipu_is_busy_with_steps_on_its_tiles() -> None:
    trace = traced(ipus=3)
    slices = trace.expand(kinds=("compute", "exchange", "sync"))
    assert stages._busy(trace) == slices.groupby("ipu")["dur"].sum().to_dict()


@pytest.mark.parametrize("name", ["pipeline", "replicated-pipeline", "stages-in-turn"])
def test_cycles_of_layers(name: str, installed_front_ends: Callable, golden: Golden) -> None:
    asked: list[Any] = []
    with installed_front_ends():
        run = run_of(name, installed_front_ends)
        run.fresh(lambda request: asked.append(request) or request)
        found = stages._chain(asked[0], run)
    assert sum(found.division) == len(found.layers) == len(found.cycles)
    golden([str(found.division), str(list(found.cycles))])


def test_layers_begin_with_the_first_parameter_of_a_module(golden: Golden) -> None:
    names = ("a.w", "a.b", "b/w", "c", "a.w2")
    parameters = {name: SimpleNamespace(id=name) for name in names}
    lines = [f"modules {[_module(one) for one in parameters.values()]}"]
    for reads in (
        ["", "a.w", "a.b", "b/w"],
        ["a.w", "", "b/w", "a.b", "c"],
        ["", ""],
        ["a.w", "b/w", "a.w2", ""],
        [],
        ["", "", "a.w+b/w", "b/w", "c+a.w"],
    ):
        ops = [SimpleNamespace(inputs=["x", *read.split("+")]) for read in reads]
        found = _layers(ops, parameters)
        lines.append(f"{reads}: {[(layer.name, [ops.index(op) for op in layer.ops]) for layer in found]}")
    golden(lines)


# -- programs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ONLY])
def test_loops_and_remote_variables_of_programs(name: str, installed_front_ends: Callable, golden: Golden) -> None:
    with installed_front_ends():
        run = run_of(name, installed_front_ends)
        program, ir = run.device_program, run.executable.ir
    loops = host_loops(program)
    lines = [
        f"{loop.name}: {loop.trips} trips, updates {loop.updates}, {dict(sorted(loop.per_trip.items()))} of "
        f"{dict(sorted(loop.around.items()))}"
        for loop in loops
    ]
    lines += [f"updates {[_updates(program, tree) for tree in program.ipus]}, {_micro_batches(program, loops)}"]
    for changed in [with_trips(program, loop.name, 7) for loop in loops] + [repeated(program, 3)]:
        told = [f"{loop.name}: {loop.trips}" for loop in host_loops(changed)]
        lines.append(f"changed {told}, {checksum(str(changed.ipus))} {checksum(str(dict(changed.functions)))}")
    held = _held(ir)
    one = {next(iter(held)).id} if held else set()
    left = [_transfers(without(program, numbers)) for numbers in (set(), one, {buffer.id for buffer in held})]
    lines.append(f"held {sorted(held.values())}, {_by_ipu(ir, held)}, transfers {left}")
    golden(digest.lines("\n".join(lines)))


def test_a_stream_of_micro_batches_is_the_one_with_most() -> None:
    whole = {"a": 4, "b": 6, "c": 6}
    loop = HostLoop("l", 2, {"a": 2, "b": 3, "c": 3}, whole, updates=False)
    assert _micro_batches(None, [loop]) == ("b", 6)
    assert _micro_batches(None, [HostLoop("l", 2, {"a": 2, "b": 3, "c": 3}, whole, updates=True)]) == ("b", 3)


# -- gains in words ----------------------------------------------------------------------------------------------------


def results(gains: list[float], traded: tuple[int, ...] = (), whys: int = 0) -> tuple[Trace, LeverResults]:
    """Trials that gain such shares of a run, those of some numbers at the price of memory."""
    trace = traced()
    cycles = int(trace.columns("runs")["dur"][-1])
    faster = traced(speed=1.25)
    trials = []
    for number, gain in enumerate(gains):
        work = Fraction(int(faster.columns("runs")["dur"][-1])) / (cycles - Fraction(gain) * cycles)
        more = 7 * number
        change = ProgramChange(f"change {number}", work=work, more_bytes=more, trades_memory=number in traded)
        trials.append(Trial(change, faster))
    untried = tuple(Untried(f"lever {number}", "why not") for number in range(whys))
    return trace, LeverResults(cycles, Trial(ProgramChange(""), trace).fullest, tuple(trials), untried)


@pytest.mark.parametrize(
    "case",
    [([], (), 0), ([Fraction(1, 200)], (), 1), ([Fraction(1, 201), Fraction(-1, 2)], (), 0),
     ([Fraction(n, 10) for n in (5, 4, 3, 2)], (), 2), ([Fraction(n, 10) for n in (5, 4, 3, 2, 1)], (0, 1, 2, 3), 0),
     ([Fraction(1, 2), Fraction(1, 1000)], (0, 1), 0)],
    ids=lambda case: f"{len(case[0])} {len(case[1])} {case[2]}",
)  # fmt: skip
def test_gains_in_words(case: Any, golden: Golden) -> None:
    golden(levers_text(*results(*case)))


def test_changes_of_the_training_and_pairs_stand_apart() -> None:
    """With their lines below; of a run that does not fit, each change with which it does is there."""
    trace, plain = results([Fraction(1, 2), Fraction(-1, 2)])
    best, slower = plain.trials
    half = Trial(ProgramChange("half", training="float16 numbers", diff=("- a", "+ b")), best.trace)
    both = Trial(best.change.then(half.change), best.trace)
    found = replace(plain, trials=(best, half, slower), together=(both,))
    text = levers_text(trace, found)
    blocks = {block.splitlines()[0]: block.splitlines()[1:] for block in text.split("\n\n")}
    assert "half (changes the training: float16 numbers" in blocks["These change the training:"][0]
    assert [line.strip() for line in blocks["These change the training:"][1:]] == ["- a", "+ b"]
    assert "change 0; and half (changes" in blocks["Together, with a change of the training:"][0]
    assert "less than 0.5 % to gain: change 1" in text
    unfit = levers_text(trace, replace(found, fits=False))
    assert unfit.startswith("The program does not fit in memory. It does with each of the changes below.\n")
    assert "+" in next(line for line in unfit.splitlines() if "change 1" in line)
    values = lever_values(trace, found)
    assert [one["what"] for one in values["trials"]] == ["change 0", "change 1", "change 0; and half", "half"]
    assert [one["together"] for one in values["trials"]] == [False, False, True, False]
    assert all(set(one) == _KEYS for one in values["trials"])


def test_where_nothing_can_be_simulated() -> None:
    said = unsimulated_text("it is gone")
    assert said.startswith("What would change it was not simulated: it is gone.\n")
    assert said.count(",") == len(measuring.LEVERS)
    assert said.endswith(".\n")


def test_a_line_says_which_lever_is_tried(installed_front_ends: Callable) -> None:
    with installed_front_ends():
        run = run_of("product", installed_front_ends)
    levers = [CallbackThreads(), SyncPatterns()]
    for terminal in (False, True):
        with mock.patch.object(measuring, "tqdm") as bar, mock.patch("sys.stderr") as stream:
            stream.isatty.return_value = terminal
            bar.return_value.__enter__.return_value = line = mock.MagicMock(__iter__=lambda _: iter(levers))
            measure(run, levers)
        assert bar.call_args.kwargs["disable"] is not terminal
        assert bar.call_args.kwargs["leave"] is False
        assert [call.args for call in line.set_postfix_str.call_args_list] == [(lever.change,) for lever in levers]
