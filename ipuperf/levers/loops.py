"""Levers on the loops of a program: more micro-batches in a weight update, more of the whole in one call.

Time does not depend on what a loop computes, so the trips of a lowered loop are changed and nothing else: the constants
that a program would change with them (the mean over micro-batches) take the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from ipuperf.lowering import Repeat, Sequence
from ipuperf.lowering.steps import ControlStep

from .rerun import Rerun
from .trial import Lever, Trial, Untried

if TYPE_CHECKING:
    from ipuperf.lowering import DeviceProgram, Step
    from ipuperf.trace import Trace

FACTOR = 2
"""How many times the micro-batches or device iterations are tried."""

CALLS = 8
"""Calls that are made one where the program has no loop over them."""

ONE_EACH = "each weight update takes one micro-batch"


@dataclass(frozen=True)
class HostLoop:
    """A loop in which the host is met.

    Attributes:
        name: of its body.
        trips: of it.
        per_trip: slices of each stream in a trip; around: those in one trip of the loop around it, or in the run.
        updates: whether all updates of weights are in it.
    """

    name: str
    trips: int
    per_trip: Counter[str]
    around: Counter[str]
    updates: bool


def host_loops(program: DeviceProgram) -> list[HostLoop]:
    """The loops in which the host is met, outer ones first, each once for all IPUs."""
    found: dict[str, HostLoop] = {}
    inside: Counter[str] = Counter()
    for ipu, tree in enumerate(program.ipus):
        whole = _slices(program, tree, ipu)
        for loop, around in _loops(program, tree, ipu, whole):
            own = _slices(program, loop.body, ipu)
            inside[loop.name] += _updates(program, loop.body)
            if loop.name in found:
                own, around = own | found[loop.name].per_trip, around | found[loop.name].around
            found[loop.name] = HostLoop(loop.name, loop.count, own, around, updates=False)
    total = sum(_updates(program, tree) for tree in program.ipus)
    loops = [replace(loop, updates=total > 0 and inside[loop.name] == total) for loop in found.values()]
    return [loop for loop in loops if loop.per_trip]


def _loops(program: DeviceProgram, step: Step, ipu: int, around: Counter[str]) -> Iterator[tuple[Repeat, Counter[str]]]:
    if isinstance(step, Repeat):
        yield step, around
        around = _slices(program, step.body, ipu)
    for inner in program.inside(step):
        yield from _loops(program, inner, ipu, around)


def _slices(program: DeviceProgram, step: Step, ipu: int) -> Counter[str]:
    """Slices of each stream that ``ipu`` copies in ``step``."""
    found = Counter(slice.stream for slice in step.host_slices(ipu)) if not isinstance(step, ControlStep) else Counter()
    for inner in program.inside(step):
        found += _slices(program, inner, ipu)
    if isinstance(step, Repeat):
        found = Counter({stream: step.count * count for stream, count in found.items()})
    return found


def _updates(program: DeviceProgram, step: Step) -> int:
    """Steps of weight updates in ``step``, those of a loop once."""
    own = step.op_id >= 0 and program.ops[step.op_id].phase == "update"
    return int(own) + sum(_updates(program, inner) for inner in program.inside(step))


def with_trips(program: DeviceProgram, name: str, trips: int) -> DeviceProgram:
    """The program with another number of trips of a loop."""

    def rewritten(step: Step) -> Step:
        if isinstance(step, Repeat) and step.name == name:
            return replace(step, count=trips)
        if isinstance(step, Repeat):
            return replace(step, body=_sequence(step.body))
        return _sequence(step) if isinstance(step, Sequence) else step

    def _sequence(steps: Sequence) -> Sequence:
        return replace(steps, steps=tuple(rewritten(step) for step in steps.steps))

    functions = {called: _sequence(body) for called, body in program.functions.items()}
    return replace(program, ipus=tuple(_sequence(tree) for tree in program.ipus), functions=functions)


def repeated(program: DeviceProgram, times: int) -> DeviceProgram:
    """The whole program in a loop."""
    trees = tuple(Sequence(-1, "main", (Repeat(-1, "calls", times, tree),)) for tree in program.ipus)
    return replace(program, ipus=trees)


def _simulated(run: Rerun, program: DeviceProgram) -> Trace:
    other = run.executable.on(run.executable.machine)
    vars(other)["device_program"] = program
    return other.trace


class MoreMicroBatches(Lever):
    """Twice as many micro-batches in a weight update."""

    what = "gradient accumulation"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        program = run.device_program
        whole = any(_updates(program, tree) for tree in program.ipus)
        if not whole:
            return
        every = host_loops(program)
        loops = [loop for loop in every if not loop.updates]
        stream, count = _micro_batches(program, loops or every[-1:])
        if not loops:
            written = f"its {count} micro-batches are written one after the other" if count > 1 else ONE_EACH
            yield self.untried(f"{written}, only the program can change that")
            return
        loop = loops[0]
        if not count or loop.around[stream] % loop.per_trip[stream]:
            yield self.untried("the trips of its loop are no whole micro-batches")
            return
        trips = loop.trips + (FACTOR - 1) * count // loop.per_trip[stream]
        trace = _simulated(run, with_trips(program, loop.name, trips))
        what = f"raise gradient accumulation from {count} to {FACTOR * count}"
        yield Trial(what, trace, Fraction(FACTOR))


def _micro_batches(program: DeviceProgram, loops: list[HostLoop]) -> tuple[str, int]:
    """A stream that brings micro-batches, and its slices in a weight update: those of a trip where it is in a loop."""
    if loops:
        counts = loops[0].per_trip if loops[0].updates else loops[0].around
        return max(((s, counts[s]) for s in sorted(loops[0].per_trip)), key=lambda found: found[1])
    slices: Counter[str] = Counter()
    for ipu, tree in enumerate(program.ipus):
        slices |= _slices(program, tree, ipu)
    return max(sorted(slices.items()), key=lambda found: found[1], default=("", 0))


class CallLength(Lever):
    """More of the whole in one call of the host."""

    what = "device iterations"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        program = run.device_program
        trains = any(_updates(program, tree) for tree in program.ipus)
        loops = [loop for loop in host_loops(program) if loop.updates == trains]
        things = "weight updates" if trains else "batches"
        if loops:
            loop = loops[0]
            count = max(loop.around.values())
            per_trip = max(loop.per_trip.values())
            if per_trip and (trains or count % per_trip == 0):
                more = FACTOR * loop.trips if trains else loop.trips + (FACTOR - 1) * count // per_trip
                old, new = (loop.trips, more) if trains else (count, FACTOR * count)
                what = f"do {new} {things} in a call instead of {old} (device iterations)"
                yield Trial(what, _simulated(run, with_trips(program, loop.name, more)), Fraction(FACTOR))
                return
        what = f"do {CALLS} calls in one: a loop on the device, {CALLS} {things} in a call"
        yield Trial(what, _simulated(run, repeated(program, CALLS)), Fraction(CALLS))
