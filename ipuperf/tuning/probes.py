"""What each unit of a model takes, read off a *probe* (:mod:`.splits`): a program in which it has an IPU of its own.

A probe is built and lowered, never simulated. Its figures are those of one micro-batch and one unit, so one probe
serves all configurations that differ in nothing that a micro-batch sees on its tiles: any split, accumulation,
replicas and sharding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ipuperf.lowering import Again, DeviceProgram
from ipuperf.lowering.fitting import group_of
from ipuperf.lowering.steps import InterIpuCopy
from ipuperf.machine import Chip
from ipuperf.machine.loader import preset_ipus
from ipuperf.runtime.run_context import RUN
from ipuperf.schedules import timetable_of
from ipuperf.sweep import Sweep
from ipuperf.sweep.programs import SweepPrograms
from ipuperf.validation.errors import UnknownOption

from .local_time import executed, local_cycles
from .quiet import quiet

_KEPT = 16
"""Lowered programs that are kept."""
_PIPELINE = "popart_pipeline"
"""The schedule of PopTorch's pipelines."""


@dataclass(frozen=True)
class UnitCost:
    """What one unit takes: cycles of a micro-batch and bytes of all tiles together.

    Attributes:
        products: cycles of its matrix products, convolutions and lookups; ``again``: of those that run again.
        local: cycles of all that it does on its own tiles; ``local_again``: of what runs again.
        update: cycles of a weight update.
        before, after: bytes that it receives from, and sends to, the units before and after it.
        variables, accumulators: bytes that are there all the time.
        stash: bytes that wait for the backward pass of one micro-batch.
        temporary: bytes of the largest temporary of a product; ``code``: of the code of its vertices.
        rest: bytes of its fullest tile that are none of variables, accumulators and stash.
    """

    products: int
    again: int
    local: float
    local_again: float
    update: int
    before: tuple[int, int]
    after: tuple[int, int]
    variables: int
    accumulators: int
    stash: int
    temporary: int
    code: int
    rest: int


def costs_of_probe(
    sweep: Sweep, chip: Chip, configuration: Mapping[str, Any], ipus: int
) -> tuple[UnitCost, ...] | None:
    """Build and lower the probe of a sweep's model that ``configuration`` is, for IPUs like ``chip``, and read off the
    costs on each of its ``ipus``; None where it cannot be built.

    Raises:
        UnknownOption: the model has no such ``config.NAME``.
    """
    RUN.of(Again).keep(_KEPT)
    try:
        with quiet():
            executable = SweepPrograms(sweep).of(configuration).executable
            program = executable.on(replace(executable.machine, chip=chip)).device_program
        return _costs(program, configuration, ipus, chip.tiles)
    except UnknownOption:
        raise
    except Exception:  # whatever goes wrong, the configurations that it would serve say themselves
        return None


def _costs(
    program: DeviceProgram, configuration: Mapping[str, Any], ipus: int, tiles: int
) -> tuple[UnitCost, ...] | None:
    """The costs on each IPU of a lowered probe; None where it does not have those IPUs."""
    if len(program.ipus) != ipus:
        return None
    count = int(configuration["accumulation"])
    held = _held(program)
    heads = ipus > 1 and held[ipus - 1]["stashed activations"] > 0
    depths = stash_depths(configuration, ipus, heads=heads)
    return tuple(_unit(program, ipu, count, held[ipu], depths[ipu], tiles) for ipu in range(ipus))


def _unit(program: DeviceProgram, ipu: int, count: int, held: Counter[str], depth: int, tiles: int) -> UnitCost:
    """The costs of the unit on IPU ``ipu``; ``depth`` micro-batches wait there."""
    found = local_cycles(program, ipu)
    phases = {op.op_id: op.phase for op in program.ops}
    products = [op_id for op_id in found.total if op_id in program.plans]
    first = sum(count * found.once[op_id] for op_id in products if phases[op_id] != "recompute")
    again = sum(found.total[op_id] for op_id in products) - first
    by_phase = Counter[str]()
    for op_id, cycles in found.total.items():
        by_phase["recompute" if op_id in program.plans else phases.get(op_id, "")] += cycles
    by_phase["recompute"] -= first
    before, after = _exchanged(program, ipu, count)
    stash, peak = held["stashed activations"], int(program.memory.max_tile[ipu].max(initial=0))
    fixed = held["variables"] + held["gradient accumulators"] + stash
    return UnitCost(
        products=first // count,
        again=again // count,
        local=(first + by_phase.total() - by_phase["update"] - by_phase["recompute"]) / count,
        local_again=by_phase["recompute"] / count,
        update=by_phase["update"],
        before=before,
        after=after,
        variables=held["variables"],
        accumulators=held["gradient accumulators"],
        stash=stash // max(1, depth),
        temporary=held["temporaries"],
        code=program.memory.categories[ipu]["vertexCode"].total,
        rest=max(0, peak - fixed // tiles),
    )


def _held(program: DeviceProgram) -> dict[int, Counter[str]]:
    """Bytes of each IPU by group; of temporaries those of the largest one of a product."""
    held = {ipu: Counter[str]() for ipu in range(len(program.ipus))}
    products = {op.name for op in program.ops if op.op_id in program.plans}
    for variable in program.memory.variables:
        group, size = group_of(variable), variable.bytes.total
        if group != "temporaries":
            held[variable.ipu][group] += size
        elif variable.name.rpartition("/")[0] in products:
            held[variable.ipu][group] = max(held[variable.ipu][group], size)
    return held


def _exchanged(program: DeviceProgram, ipu: int, count: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes of a micro-batch that an IPU receives from and sends to the one before it, and the one after it."""
    before, others = (ipu - 1) % len(program.ipus), [0, 0]
    nearest = [0, 0]
    for step, times in executed(program, ipu):
        if not isinstance(step, InterIpuCopy):
            continue
        for copy in step.copies:
            if ipu in copy.ends:
                way = int(copy.source == ipu)
                (nearest if before in copy.ends else others)[way] += times * copy.bytes
    return (nearest[0] // count, nearest[1] // count), (others[0] // count, others[1] // count)


def stash_depths(configuration: Mapping[str, Any], ipus: int, *, heads: bool) -> Sequence[int]:
    """How many micro-batches wait on each IPU between forward and backward. With ``heads`` what computes the loss is a
    stage of its own on the first IPU.

    Raises:
        ScheduleError: the schedule cannot run so many stages and micro-batches.
    """
    if ipus == 1:
        return (0,)
    stages = ipus + heads
    again = configuration.get("recompute", "none") != "none"
    count = int(configuration.get("accumulation", 1))
    if count > 4 * stages:
        count = 4 * stages + count % (2 * stages)  # no depth depends on more
    return _stash(schedule_of(configuration), stages, count, again)[:ipus]


@cache
def _stash(name: str, stages: int, count: int, again: bool) -> tuple[int, ...]:
    return timetable_of(name, stages, count, recompute=again).stash


def schedule_of(configuration: Mapping[str, Any]) -> str:
    """The schedule of a configuration with more than one stage."""
    return str(configuration.get("config.schedule", _PIPELINE))


def large_enough(ipus: int) -> str:
    """The smallest preset with as many IPUs."""
    fitting = sorted((count, name) for name, count in preset_ipus().items() if count >= ipus)
    if not fitting:
        raise ValueError(f"no preset has {ipus} IPUs")
    return fitting[0][1]
