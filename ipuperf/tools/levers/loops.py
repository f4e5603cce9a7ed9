"""Levers on the loops of a program: more micro-batches in a weight update, more repetitions in one call.

PopTorch programs get the option, and the samples of the run several times. Of others only the trips of a lowered loop
are changed. They would change constants with them (the mean over micro-batches), but time does not depend on values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from ipuperf.lowering import DeviceProgram, Repeat, Sequence, Step
from ipuperf.lowering.steps import ControlStep
from ipuperf.runtime.model_revision import ModelRequest

from .change import ProgramChange
from .rerun import Rerun
from .trial import Lever, Trial, Untried, simulated

FACTOR = 2
"""The factor by which micro-batches or device iterations are multiplied."""

CALLS = 8
"""The number of calls that become one if the program has no loop over them."""

ONE_EACH = "each weight update takes one micro-batch"


@dataclass(frozen=True)
class HostLoop:
    """A loop with host transfers in its body.

    Attributes:
        name: the name of its body.
        trips: the number of its trips.
        per_trip: slices of each stream in one trip.
        around: slices of each stream in one trip of the enclosing loop, or in the run if there is none.
        updates: whether all weight updates are in the loop.
    """

    name: str
    trips: int
    per_trip: Counter[str]
    around: Counter[str]
    updates: bool


def host_loops(program: DeviceProgram) -> list[HostLoop]:
    """The loops with host transfers, outer ones first, each once for all IPUs."""
    loops_by_name: dict[str, HostLoop] = {}
    updates_inside: Counter[str] = Counter()
    # Every IPU has its own copy of a loop. The copies have one name, and each has the slices of its own IPU.
    for ipu, tree in enumerate(program.ipus):
        run_slices = _slices(program, tree, ipu)
        for loop, around in _loops(program, tree, ipu, run_slices):
            per_trip = _slices(program, loop.body, ipu)
            updates_inside[loop.name] += _updates(program, loop.body)
            if loop.name in loops_by_name:
                # A union of counters takes the larger count, so a stream that several IPUs copy counts once.
                per_trip, around = (
                    per_trip | loops_by_name[loop.name].per_trip,
                    around | loops_by_name[loop.name].around,
                )
            loops_by_name[loop.name] = HostLoop(loop.name, loop.count, per_trip, around, updates=False)
    all_updates = sum(_updates(program, tree) for tree in program.ipus)
    loops = [
        replace(loop, updates=all_updates > 0 and updates_inside[loop.name] == all_updates)
        for loop in loops_by_name.values()
    ]
    return [loop for loop in loops if loop.per_trip]


def _loops(program: DeviceProgram, step: Step, ipu: int, around: Counter[str]) -> Iterator[tuple[Repeat, Counter[str]]]:
    if isinstance(step, Repeat):
        yield step, around
        around = _slices(program, step.body, ipu)
    for child in program.inside(step):
        yield from _loops(program, child, ipu, around)


def _slices(program: DeviceProgram, step: Step, ipu: int) -> Counter[str]:
    """The slices of each stream that ``ipu`` copies in ``step``, with all trips of its loops."""
    slices = (
        Counter(slice.stream for slice in step.host_slices(ipu)) if not isinstance(step, ControlStep) else Counter()
    )
    for child in program.inside(step):
        slices += _slices(program, child, ipu)
    if isinstance(step, Repeat):
        slices = Counter({stream: step.count * count for stream, count in slices.items()})
    return slices


def _updates(program: DeviceProgram, step: Step) -> int:
    """The number of weight update steps in ``step``. Steps in a loop count once."""
    is_update = step.op_id >= 0 and program.ops[step.op_id].phase == "update"
    return int(is_update) + sum(_updates(program, child) for child in program.inside(step))


def with_trips(program: DeviceProgram, name: str, trips: int) -> DeviceProgram:
    """The program with another number of trips for the loop called ``name``."""

    def rewritten(step: Step) -> Step:
        if isinstance(step, Repeat) and step.name == name:
            return replace(step, count=trips)
        if isinstance(step, Repeat):
            return replace(step, body=_sequence(step.body))
        return _sequence(step) if isinstance(step, Sequence) else step

    def _sequence(steps: Sequence) -> Sequence:
        return replace(steps, steps=tuple(rewritten(step) for step in steps.steps))

    functions = {function: _sequence(body) for function, body in program.functions.items()}
    return replace(program, ipus=tuple(_sequence(tree) for tree in program.ipus), functions=functions)


def repeated(program: DeviceProgram, times: int) -> DeviceProgram:
    """The whole program in a loop."""
    trees = tuple(Sequence(-1, "main", (Repeat(-1, "calls", times, tree),)) for tree in program.ipus)
    return replace(program, ipus=trees)


class MoreMicroBatches(Lever):
    """Twice as many micro-batches in a weight update."""

    change = "gradient accumulation"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        program = run.device_program
        trains = any(_updates(program, tree) for tree in program.ipus)
        if not trains:
            return
        if run.torch_model is not None:
            count = run.torch_model.options.Training.gradient_accumulation
            change = _more_micro_batches(run, count)
            set_option = partial(_more_samples, option="gradientAccumulation", count=FACTOR * count, factor=FACTOR)
            yield simulated(run, replace(change, of_model=set_option))
            return
        all_loops = host_loops(program)
        loops = [loop for loop in all_loops if not loop.updates]
        stream, count = _micro_batches(program, loops or all_loops[-1:])
        if not loops:
            written = f"its {count} micro-batches are written one after the other" if count > 1 else ONE_EACH
            yield self.untried(f"{written}, only the program can change that")
            return
        # The outermost loop without the weight update is the one over micro-batches.
        loop = loops[0]
        if not count or loop.around[stream] % loop.per_trip[stream]:
            yield self.untried("the trips of its loop are no whole micro-batches")
            return
        # All additional micro-batches go into the loop. Those outside, in ramps, stay as many as they are.
        trips = loop.trips + (FACTOR - 1) * count // loop.per_trip[stream]
        change = _more_micro_batches(run, count)
        yield simulated(run, replace(change, of_program=lambda program: with_trips(program, loop.name, trips)))


def _more_micro_batches(run: Rerun, count: int) -> ProgramChange:
    return ProgramChange(
        f"raise gradient accumulation from {count} to {FACTOR * count}",
        Fraction(FACTOR),
        training=f"the global batch becomes {FACTOR} times as large",
        diff=(*run.option("Training.gradientAccumulation", str(FACTOR * count)), *_data(run, FACTOR)),
    )


def _data(run: Rerun, factor: int) -> tuple[str, ...]:
    """What a PopTorch program that calls its model without a data loader has to change besides an option."""
    by_hand = run.torch_model is not None and "DataLoader(" not in run.text.text
    factor = int(run.change.work * factor)
    return (f"+ # and pass {factor} times as many samples in a call",) if by_hand else ()


def _more_samples(request: ModelRequest, option: str, count: int, factor: int) -> None:
    """Set an option of PopTorch with which a call takes ``factor`` times as many samples; those of the run repeat."""
    getattr(request.options.Training if option == "gradientAccumulation" else request.options, option)(count)
    request.inputs += (partial(_repeated, factor=factor),)


def _repeated(tensor: Any, factor: int) -> Any:
    return tensor.repeat(factor, *(1 for _ in tensor.shape[1:]))


def _micro_batches(program: DeviceProgram, loops: list[HostLoop]) -> tuple[str, int]:
    """The stream with the most slices in a weight update, and their number: one slice is one micro-batch."""
    if loops:
        counts = loops[0].per_trip if loops[0].updates else loops[0].around
        # In order of their names, streams with equal counts always give the same answer.
        return max(
            ((stream, counts[stream]) for stream in sorted(loops[0].per_trip)),
            key=lambda stream_slices: stream_slices[1],
        )
    slices: Counter[str] = Counter()
    for ipu, tree in enumerate(program.ipus):
        slices |= _slices(program, tree, ipu)
    return max(sorted(slices.items()), key=lambda stream_slices: stream_slices[1], default=("", 0))


class CallLength(Lever):
    """More weight updates or batches in one call of the host."""

    change = "device iterations"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        model = run.torch_model
        if model is not None:
            old_count = model.options.device_iterations
            count = FACTOR * old_count if old_count > 1 else CALLS
            work = Fraction(count, old_count)
            advice = _longer(count, old_count if old_count > 1 else None, trains=model.training)
        else:
            advice, _, work, count = _longer_call(run.device_program)
        change = ProgramChange(
            advice,
            work,
            diff=(*run.option("deviceIterations", str(count)), *_data(run, int(work))),
        )
        if model is not None:
            set_option = partial(_more_samples, option="deviceIterations", count=count, factor=int(work))
            yield simulated(run, replace(change, of_model=set_option))
        else:
            # Another change may have made other loops, so they are looked for in the program at hand.
            yield simulated(run, replace(change, of_program=lambda program: _longer_call(program)[1]))


def _longer(count: int, old_count: int | None, *, trains: bool) -> str:
    """The advice to do ``count`` weight updates or batches in a call; None: without a loop over them so far."""
    units = "weight updates" if trains else "batches"
    if old_count is None:
        return f"do {count} calls in one: a loop on the device, {count} {units} in a call"
    return f"do {count} {units} in a call instead of {old_count} (device iterations)"


def _longer_call(program: DeviceProgram) -> tuple[str, DeviceProgram, Fraction, int]:
    """The advice, the program with longer calls, how many times as much it does, and its device iterations."""
    trains = any(_updates(program, tree) for tree in program.ipus)
    loops = [loop for loop in host_loops(program) if loop.updates == trains]
    if loops:
        loop = loops[0]
        count = max(loop.around.values())
        per_trip = max(loop.per_trip.values())
        if per_trip and (trains or count % per_trip == 0):
            trips = FACTOR * loop.trips if trains else loop.trips + (FACTOR - 1) * count // per_trip
            old_count, new_count = (loop.trips, trips) if trains else (count, FACTOR * count)
            advice = _longer(new_count, old_count, trains=trains)
            return advice, with_trips(program, loop.name, trips), Fraction(FACTOR), new_count
    return _longer(CALLS, None, trains=trains), repeated(program, CALLS), Fraction(CALLS), CALLS
