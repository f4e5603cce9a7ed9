"""The costs of each unit of a model, read off a *probe* (:mod:`.splits`): a program in which it has its own IPU.

A probe is built and lowered, never simulated. Its figures are those of one micro-batch and one unit. So one probe
serves all configurations whose micro-batches do the same on their tiles, with any split, accumulation, replicas and
sharding.
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
from ipuperf.pipelines.schedules import timetable_of
from ipuperf.runtime.run_context import RUN
from ipuperf.tools.errors import UnknownOption
from ipuperf.tools.sweep import Sweep
from ipuperf.tools.sweep.programs import SweepPrograms

from .local_time import executed, local_cycles
from .quiet import quiet

_KEPT = 16
"""The number of lowered programs that are kept for probes that share them."""
_PIPELINE = "popart_pipeline"
"""The schedule of PopTorch's pipelines."""


@dataclass(frozen=True)
class UnitCost:
    """The costs of one unit: cycles of a micro-batch, and bytes of all tiles together.

    Attributes:
        products: cycles of its matrix products, convolutions and lookups.
        again: cycles of those products that are recomputed.
        local: cycles of all local steps, without recomputation and weight update.
        local_again: cycles of the recomputed local steps.
        update: cycles of a weight update.
        before: bytes received from the unit before it, and bytes sent to that unit.
        after: bytes received from the unit after it, and bytes sent to that unit.
        variables, accumulators: bytes that are always live.
        stash: bytes that wait for the backward pass of one micro-batch.
        temporary: bytes of the largest temporary of a product.
        code: bytes of the code of its vertices.
        rest: bytes of its fullest tile besides variables, accumulators and stash.
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
    """Build and lower a probe for IPUs like ``chip``, and read off the costs of the unit on each of its ``ipus``.

    The probe is the program of ``configuration``. None stands for a probe that cannot be built.

    Raises:
        UnknownOption: the model has no such ``config.NAME``.
    """
    RUN.of(Again).keep(_KEPT)
    try:
        with quiet():
            executable = SweepPrograms(sweep).of(configuration).executable
            # A probe may need more IPUs than the tuned machine has, so another machine gets its chip.
            program = executable.on(replace(executable.machine, chip=chip)).device_program
        return _costs(program, configuration, ipus, chip.tiles)
    except UnknownOption:
        raise
    except Exception:  # the configurations that it would serve report the failure themselves
        return None


def _costs(
    program: DeviceProgram, configuration: Mapping[str, Any], ipus: int, tiles: int
) -> tuple[UnitCost, ...] | None:
    """The costs on each IPU of a lowered probe; None if it has another number of IPUs."""
    if len(program.ipus) != ipus:
        return None
    count = int(configuration["accumulation"])
    bytes_by_ipu = _held(program)
    heads = ipus > 1 and bytes_by_ipu[ipus - 1]["stashed activations"] > 0
    depths = stash_depths(configuration, ipus, heads=heads)
    return tuple(_unit(program, ipu, count, bytes_by_ipu[ipu], depths[ipu], tiles) for ipu in range(ipus))


def _unit(
    program: DeviceProgram, ipu: int, count: int, bytes_by_group: Counter[str], depth: int, tiles: int
) -> UnitCost:
    """The costs of the unit on IPU ``ipu``, where the stash holds ``depth`` micro-batches."""
    cycles = local_cycles(program, ipu)
    phases = {op.op_id: op.phase for op in program.ops}
    products = [op_id for op_id in cycles.total if op_id in program.plans]
    unrepeated_cycles = sum(count * cycles.once[op_id] for op_id in products if phases[op_id] != "recompute")
    # All executions of products beyond one forward and one backward pass in each micro-batch are recomputation.
    again = sum(cycles.total[op_id] for op_id in products) - unrepeated_cycles
    # All products count as recomputation here. Those that belong to no recomputation are taken off below.
    by_phase = Counter[str]()
    for op_id, op_cycles in cycles.total.items():
        by_phase["recompute" if op_id in program.plans else phases.get(op_id, "")] += op_cycles
    by_phase["recompute"] -= unrepeated_cycles
    previous_bytes, next_bytes = _exchanged(program, ipu, count)
    stash, peak = bytes_by_group["stashed activations"], int(program.memory.max_tile[ipu].max(initial=0))
    fixed = bytes_by_group["variables"] + bytes_by_group["gradient accumulators"] + stash
    return UnitCost(
        products=unrepeated_cycles // count,
        again=again // count,
        local=(unrepeated_cycles + by_phase.total() - by_phase["update"] - by_phase["recompute"]) / count,
        local_again=by_phase["recompute"] / count,
        update=by_phase["update"],
        before=previous_bytes,
        after=next_bytes,
        variables=bytes_by_group["variables"],
        accumulators=bytes_by_group["gradient accumulators"],
        stash=stash // max(1, depth),
        temporary=bytes_by_group["temporaries"],
        code=program.memory.categories[ipu]["vertexCode"].total,
        rest=max(0, peak - fixed // tiles),
    )


def _held(program: DeviceProgram) -> dict[int, Counter[str]]:
    """Bytes of each IPU by group. Of the temporaries only the largest one of a product counts."""
    bytes_by_ipu = {ipu: Counter[str]() for ipu in range(len(program.ipus))}
    products = {op.name for op in program.ops if op.op_id in program.plans}
    for variable in program.memory.variables:
        group, variable_bytes = group_of(variable), variable.bytes.total
        if group != "temporaries":
            bytes_by_ipu[variable.ipu][group] += variable_bytes
        elif variable.name.rpartition("/")[0] in products:
            bytes_by_ipu[variable.ipu][group] = max(bytes_by_ipu[variable.ipu][group], variable_bytes)
    return bytes_by_ipu


def _exchanged(program: DeviceProgram, ipu: int, count: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes of a micro-batch that an IPU exchanges with the IPU before it and with the others.

    Each pair is what it receives and what it sends.
    """
    previous, with_others = (ipu - 1) % len(program.ipus), [0, 0]
    with_previous = [0, 0]
    for step, times in executed(program, ipu):
        if not isinstance(step, InterIpuCopy):
            continue
        for copy in step.copies:
            if ipu in copy.ends:
                direction = int(copy.source == ipu)
                (with_previous if previous in copy.ends else with_others)[direction] += times * copy.bytes
    return (with_previous[0] // count, with_previous[1] // count), (with_others[0] // count, with_others[1] // count)


def stash_depths(configuration: Mapping[str, Any], ipus: int, *, heads: bool) -> Sequence[int]:
    """How many micro-batches wait on each IPU between their forward and backward pass.

    With ``heads`` the loss is computed in a separate stage on the first IPU.

    Raises:
        ScheduleError: the schedule cannot run so many stages and micro-batches.
    """
    if ipus == 1:
        return (0,)
    stages = ipus + heads
    again = configuration.get("recompute", "none") != "none"
    count = int(configuration.get("accumulation", 1))
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
