"""Does a program fit the machine it is to be simulated on? Asked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ipuperf.lowering.program import (
    Collective,
    HostExchange,
    InterIpuCopy,
    Phase,
    RemoteTransfer,
    Step,
    StreamCopy,
    Sync,
    TileSetCopy,
)

from .algorithms import METHODS
from .errors import SimulationError
from .walk import Instruction, ProgramTree, Shared, Stretch

if TYPE_CHECKING:
    from ipuperf.lowering.program import DeviceProgram
    from ipuperf.machine import Machine

_KINDS = {
    Phase: ("kind", ("compute", "exchange")),
    Collective: ("kind", ("all_reduce", "reduce_scatter", "all_gather")),
    RemoteTransfer: ("direction", ("load", "store")),
    StreamCopy: ("direction", ("h2d", "d2h")),
    TileSetCopy: ("destination", ("compute", "io")),
}
_NOT_NEGATIVE = ("bytes", "wire_bytes", "bytes_in", "bytes_out", "flops", "reduce_cycles", "sync")


def check_placement(program: DeviceProgram, machine: Machine) -> None:
    """Every replica has its own IPUs, and they exist."""
    placement = program.placement
    if len(placement) != program.replicas or program.replicas < 1:
        raise SimulationError(f"{program.name}: {program.replicas} replicas, {len(placement)} of them are placed")
    seen: dict[int, int] = {}
    for replica, ipus in enumerate(placement):
        if len(ipus) != len(program.ipus):
            raise SimulationError(
                f"{program.name}: replica {replica} has {len(ipus)} IPUs, the program is for {len(program.ipus)}"
            )
        for ipu in ipus:
            if not 0 <= ipu < machine.num_ipus:
                raise SimulationError(
                    f"{program.name}: replica {replica} is placed on IPU {ipu}, {machine.name} has IPUs 0 to "
                    f"{machine.num_ipus - 1}"
                )
            if ipu in seen:
                raise SimulationError(f"{program.name}: IPU {ipu} is given to replicas {seen[ipu]} and {replica}")
            seen[ipu] = replica


def check_steps(tree: ProgramTree, machine: Machine) -> None:
    """Every leaf step that is executed makes sense on this machine.

    Raises:
        SimulationError: wrong kind, negative cycles or bytes, more tiles than the chip has, a copy or a collective that
            leaves out the IPU or replica that executes it.
        MachineError: a remote transfer where there is no Streaming Memory.
    """
    for index, instructions in tree.lists():
        for step in _executed(tree, instructions):
            _check_step(step, index, tree.program, machine)


def _executed(tree: ProgramTree, instructions: Sequence[Instruction]) -> list[Step]:
    leaves: dict[int, None] = {}
    for instruction in instructions:
        if isinstance(instruction, Stretch):
            for segment in set(instruction.segment.tolist()):
                leaves.update(dict.fromkeys(tree.segments[segment].leaves))
        elif isinstance(instruction, Shared):
            leaves[instruction.leaf.leaf_id] = None
    return [tree.leaves[leaf].step for leaf in leaves]


def _check_step(step: Step, index: int, program: DeviceProgram, machine: Machine) -> None:
    if _sound(step, machine.chip.tiles):
        return
    where = f"{program.name}: {type(step).__name__} {step.name!r} on IPU {index}"
    if type(step) in _KINDS:
        name, allowed = _KINDS[type(step)]
        if getattr(step, name) not in allowed:
            raise SimulationError(f"{where}: {name} is {getattr(step, name)!r}, allowed: {', '.join(allowed)}")
    for name in _NOT_NEGATIVE:
        value = getattr(step, name, 0)
        if value < 0:
            raise SimulationError(f"{where}: {name} is {value}, it must not be negative")
    if isinstance(step, Phase):
        if step.cycles.tiles > machine.chip.tiles:
            raise SimulationError(f"{where}: {step.cycles.tiles} tiles, {machine.chip.name} has {machine.chip.tiles}")
        if step.cycles.min < 0:
            raise SimulationError(f"{where}: {step.cycles.min} cycles on a tile")
    elif isinstance(step, Sync) or (isinstance(step, TileSetCopy) and step.cycles < 0):
        raise SimulationError(f"{where}: {step.cycles} cycles")
    elif isinstance(step, InterIpuCopy):
        _check_copy(where, step, index, len(program.ipus))
    elif isinstance(step, HostExchange):
        _check_host(where, step, index, len(program.ipus))
    elif isinstance(step, Collective):
        if step.method not in METHODS:
            raise SimulationError(f"{where}: method is {step.method!r}, allowed: {', '.join(METHODS)}")
        _check_groups(where, step, program.replicas)
    elif isinstance(step, RemoteTransfer):
        machine.ipu_machine.require_streaming_memory()


def _sound(step: Step, tiles: int) -> bool:
    """Whether a local step is as it has to be; nearly all steps are, so this makes no message."""
    if isinstance(step, Phase):
        cycles = step.cycles
        fits = cycles.tiles <= tiles and cycles.min >= 0 and step.kind in _KINDS[Phase][1]
        return fits and step.bytes_in >= 0 and step.bytes_out >= 0 and step.flops >= 0
    return isinstance(step, Sync) and step.cycles >= 0


def _check_copy(where: str, step: InterIpuCopy, index: int, ipus: int) -> None:
    if not step.copies:
        raise SimulationError(f"{where}: it has no copies, at least 1 is needed")
    for copy in step.copies:
        ends = (copy.source, copy.destination)
        if copy.source == copy.destination or not all(0 <= end < ipus for end in ends):
            raise SimulationError(f"{where}: from IPU {ends[0]} to IPU {ends[1]}, allowed: two of IPUs 0 to {ipus - 1}")
        if copy.bytes < 0:
            raise SimulationError(f"{where}: bytes is {copy.bytes}, it must not be negative")
        if sum((other.source, other.destination) == ends for other in step.copies) > 1:
            raise SimulationError(f"{where}: two copies from IPU {ends[0]} to IPU {ends[1]}, allowed: 1 for each pair")
    if index not in step.participants:
        raise SimulationError(f"{where}: it is between {_ipus(step.participants)}")


def _check_host(where: str, step: HostExchange, index: int, ipus: int) -> None:
    if index not in step.participants or not all(0 <= ipu < ipus for ipu in step.participants):
        raise SimulationError(
            f"{where}: the participants are {_ipus(step.participants)}, allowed: IPU {index} and others of IPUs 0 to "
            f"{ipus - 1}"
        )
    for copy in step.copies:
        if copy.ipu not in step.participants:
            raise SimulationError(f"{where}: a copy on IPU {copy.ipu}, allowed: {_ipus(step.participants)}")
        if copy.direction not in _KINDS[StreamCopy][1]:
            raise SimulationError(f"{where}: direction is {copy.direction!r}, allowed: h2d, d2h")
        if copy.bytes < 0:
            raise SimulationError(f"{where}: bytes is {copy.bytes}, it must not be negative")
        if (
            sum(
                (other.ipu, other.direction, other.stream) == (copy.ipu, copy.direction, copy.stream)
                for other in step.copies
            )
            > 1
        ):
            raise SimulationError(
                f"{where}: two copies of stream {copy.stream!r} on IPU {copy.ipu}, allowed: 1 (the buffer of a stream "
                "is free again only after a transfer)"
            )


def _ipus(numbers: Sequence[int]) -> str:
    """``IPU 0 and IPU 1``."""
    names = [f"IPU {number}" for number in numbers]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _check_groups(where: str, step: Collective, replicas: int) -> None:
    members = sorted(member for group in step.groups for member in group)
    if members != list(range(replicas)):
        raise SimulationError(
            f"{where}: the groups {step.groups} must hold each of the replicas 0 to {replicas - 1} exactly once"
        )
