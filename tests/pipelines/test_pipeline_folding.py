"""A pipeline of many micro-batches, built from a few, is the pipeline that is written out in full."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from typing import Any
from unittest import mock

import pytest
from answers import answer
from pipelinecases import Network
from programtext import program_text
from test_pipeline_programs import WAYS, built

from ipuperf.pipelines import HostIo
from ipuperf.pipelines.lifetimes import wait_of
from ipuperf.pipelines.windows import WindowedProgram, program_of
from ipuperf.schedules import (
    Liveness,
    RecomputationMode,
    ScheduleError,
    Timetable,
    grouped_overlapped,
    phased_parallel,
    phased_serial,
    timetable_of,
)
from ipuperf.schedules.timetable import FoldedSteps

MODES = RecomputationMode


def rule(name: str, **options: Any) -> Any:
    """A function of stages and micro-batches."""
    return lambda stages, count: timetable_of(name, stages, count, **options)


def shared(name: str, **options: Any) -> Any:
    """The same with two stages on each IPU: forth and back."""
    return lambda stages, count: timetable_of(
        name, stages, count, devices=[min(stage, stages - 1 - stage) for stage in range(stages)], **options
    )


RULES: dict[str, Any] = {
    "grouped": rule("grouped"),
    "grouped then": rule("grouped", recompute=MODES.RecomputeThenBackpropagate),
    "grouped within": rule("grouped", recompute=MODES.RecomputeAndBackpropagateInterleaved),
    "grouped shared": shared("grouped"),
    "grouped inference": rule("grouped", inference=True),
    "grouped_overlapped": grouped_overlapped,
    "grouped_overlapped inference": lambda stages, count: grouped_overlapped(stages, count, inference=True),
    "interleaved": rule("interleaved"),
    "interleaved then": rule("interleaved", recompute=MODES.RecomputeThenBackpropagate),
    "interleaved inference": rule("interleaved", inference=True),
    "interleaved inference shared": shared("interleaved", inference=True),
    "sequential": rule("sequential"),
    "sequential within": rule("sequential", recompute=MODES.Auto),
    "sequential shared": shared("sequential"),
    "sequential inference": rule("sequential", inference=True),
    "popart": rule("popart_pipeline"),
    "popart recomputing": rule("popart_pipeline", recompute=True),
    "popart inference": rule("popart_pipeline", inference=True),
    "sharded": rule("sharded"),
    "sharded shared": shared("sharded"),
    "sharded inference": rule("sharded", inference=True),
    "1f1b": rule("1f1b"),
    "interleaved_1f1b": rule("interleaved_1f1b"),
    "interleaved_1f1b of one chunk": rule("interleaved_1f1b", chunks=1),
    "zb_h1": rule("zb_h1"),
    "phased": phased_serial,
    "phased off chip": lambda stages, count: phased_serial(stages, count, liveness=Liveness.OffChipAfterEachPhase),
    "phased inference": lambda stages, count: phased_serial(stages, count, inference=True),
    "parallel": phased_parallel,
    "parallel inference": lambda stages, count: phased_parallel(stages, count, inference=True),
}
EVERY = (*range(1, 12), 13, 17, 24, 29, 36, 37, 48, 53, 60, 84, 91, 120)
"""Micro-batches: below the ramps, within them, odd ones, some periods more."""
SIZES = [((1, 3, 4), (1, 6, 7, 24, 35, 41, 48)), pytest.param((1, 2, 3, 4, 6), EVERY, marks=pytest.mark.heavy)]


@contextmanager
def in_full() -> Iterator[None]:
    """Within, every cell of every micro-batch is placed by the schedule's own rule."""
    families = [module for name, module in sys.modules.items() if name.startswith("ipuperf.pipelines.schedules.")]
    with ExitStack() as stack:
        for family in families:
            if hasattr(family, "stretched"):
                full = mock.patch.object(family, "stretched", lambda make, count, advance=1: make(count))
                stack.enter_context(full)
        yield


def pairs(name: str, stages: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[Timetable, Timetable]]:
    """(as it is made, in full) tables of a rule, of each number of stages and micro-batches that it allows."""
    for size in product(stages, counts):
        try:
            made = RULES[name](*size)
        except ScheduleError:
            continue
        with in_full():
            full = RULES[name](*size)
        assert isinstance(full.steps, tuple)
        yield made, full


@pytest.mark.parametrize(("stages", "counts"), SIZES)
@pytest.mark.parametrize("name", RULES)
def test_tables(name: str, stages: Sequence[int], counts: Sequence[int]) -> None:
    folded = 0
    for made, full in pairs(name, stages, counts):
        folded += isinstance(made.steps, FoldedSteps)
        assert made == full
        assert full == made
        assert hash(made) == hash(full)
        assert (made.steps[-1], made.steps[2:7]) == (full.steps[-1], full.steps[2:7])
        assert made.when == full.when
        assert (made.in_flight, made.kinds, made.steady) == (full.in_flight, full.kinds, full.steady)
        for kind, stage in full.kinds:
            running = {full.when[cell] for cell in full.when if (cell.kind, cell.stage) == (kind, stage)}
            assert all(made.runs(kind, stage, step) == (step in running) for step in range(-1, len(full.steps) + 1))
    assert folded


LOOPS = list(product((1, 2, 3, 12), (False, True), (0, 1, 3), (False, True)))
SOME = [(1, False, 0, True), (1, False, 3, False), (1, True, 0, False), (3, False, 1, True), (12, True, 0, False)]


@pytest.mark.parametrize(
    ("stages", "counts", "loops"),
    [((3, 4), (7, 24, 36, 60), SOME), pytest.param((1, 2, 4), (5, 12, 30, 41, 84), LOOPS, marks=pytest.mark.heavy)],
)
@pytest.mark.parametrize("name", RULES)
def test_programs_of_windows(name: str, stages: Sequence[int], counts: Sequence[int], loops: Sequence[Any]) -> None:
    found = 0
    for made, full in pairs(name, stages, counts):
        for periods, peel, settling, rotates in loops:
            program, whole = (
                program_of(table, periods, peel=peel, settling=settling, rotates=rotates) for table in (made, full)
            )
            assert program == whole
            found += program.trips > 0 and isinstance(made.steps, FoldedSteps)
            kinds = sorted({kind for kind, _ in full.kinds})
            for stage in range(full.stages):
                segment, place = _places(whole, full, stage)
                for first, second in product(kinds, kinds):
                    numbers = [number for kind, number in segment if kind == first]
                    apart = any(segment.get((second, n), segment[first, n]) != segment[first, n] for n in numbers)
                    at_once = all(place.get((second, n)) == (place[first, n][0], True) for n in numbers)
                    assert program.crosses(first, second, stage) is apart
                    assert program.immediate(first, second, stage) is at_once
    assert found


def _places(program: WindowedProgram, full: Timetable, stage: int) -> tuple[dict[Any, int], dict[Any, Any]]:
    """For each (kind, micro-batch) of a stage: which straight line of the program it is in, all iterations told apart,
    and its window, and whether it comes before the copies there."""
    begin, period = len(program.before), len(program.body)
    rotated = any(window.after for window in (*program.before, *program.body, *program.after))
    segment, place = {}, {}
    for cell, step in full.when.items():
        if cell.stage == stage:
            late = rotated and cell.kind == "B"
            window = step - late
            turn = (window - begin) // period + 1 if program.trips else 0
            segment[cell.kind, cell.micro_batch] = min(max(0, turn), program.trips + 1)
            place[cell.kind, cell.micro_batch] = window, not late
    return segment, place


@pytest.mark.parametrize("name", [name for name in RULES if "inference" not in name and "overlapped" not in name])
def test_waits(name: str) -> None:
    for made, full in pairs(name, (4,), (24, 41, 60)):
        for kind, (maker, reader), every_step in product("FB", ((0, 1), (0, 2), (1, 3)), (False, True)):
            if kind == "B":
                maker, reader = reader, maker
            wait = partial(wait_of, kind=kind, maker=maker, reader=reader, every_step=every_step)
            waits = [answer(partial(wait, table)) for table in (made, full)]
            assert waits[0] == waits[1]


BUILT: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {"skips": [(0, 2)]}) for name in RULES if "overlapped" not in name},
    **{
        f"{name}, {mode}": (name, {"recompute": mode, "checkpoints": (0, 1)})
        for name in ("grouped then", "interleaved then", "sequential within", "popart recomputing", "popart", "sharded")
        for mode in ("interleaved", "always")
    },
    **{f"{name}, {way}": (name, WAYS[way]) for name in ("popart", "grouped", "1f1b", "sharded")
       for way in ("activations_away", "final", "summed", "gradients_all", "running_mean", "every_4th", "synthetic")},
    "zb_h1, final": ("zb_h1", WAYS["final"]),
    "sharded, overlapped": ("sharded", {"host_io": lambda net: _overlapped(net, False), "copies": "when needed"}),
    "sharded, across": ("sharded", {"host_io": lambda net: _overlapped(net, True), "copies": "when needed"}),
}  # fmt: skip


def _text(table: Timetable, how: Mapping[str, Any]) -> str:
    return program_text(built(table, **how)[0].ir)


def _overlapped(net: Network, across: bool) -> HostIo:
    return HostIo(32, {net.inputs: across, net.targets: False}, {net.losses: across})


@pytest.mark.parametrize("case", BUILT)
def test_built_programs(case: str) -> None:
    """Every op, tensor, constraint and count of the program is the same."""
    name, how = BUILT[case]
    found = 0
    for made, full in pairs(name, (4,) if name == "interleaved_1f1b" else (3,), (24, 35, 36, 60)):
        if made.micro_batches % how.get("every", 1):
            continue
        assert _text(made, how) == _text(full, how)
        found += isinstance(made.steps, FoldedSteps)
    assert found


def test_a_million_micro_batches() -> None:
    """Nothing is made for each of them."""
    for name in RULES:
        table = RULES[name](4, 999_984)
        assert isinstance(table.steps, FoldedSteps)
        assert len(table.steps.written) < 500
        assert (table.micro_batches, table.shortest.micro_batches < 100) == (999_984, True)
