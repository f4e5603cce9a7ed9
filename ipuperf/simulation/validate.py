"""Checks, before anything runs, whether a program fits the machine on which it is to be simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ipuperf.lowering.steps import Place, Step

from .errors import SimulationError
from .instructions import MOST_INSTANCES, Instruction, Shared, Stretch, longest_loop

if TYPE_CHECKING:
    from ipuperf.lowering.program import DeviceProgram
    from ipuperf.machine import Machine

    from .walk import ProgramTree


def check_placement(program: DeviceProgram, machine: Machine) -> None:
    """Raise :class:`SimulationError` unless every replica has IPUs of its own that exist."""
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
    """Check that every leaf step that is executed can run on this machine.

    Raises:
        SimulationError: a step has the wrong kind, negative cycles or bytes, or more tiles than the chip has; or a copy
            or collective leaves out the IPU or replica that executes it.
        MachineError: a remote transfer where there is no Streaming Memory.
    """
    program = tree.program
    for index, instructions in tree.lists():
        place = Place(index, len(program.ipus), program.replicas, machine)
        for step in _executed(tree, instructions):
            for fault in step.faults(place):
                raise SimulationError(f"{program.name}: {type(step).__name__} {step.name!r} on IPU {index}: {fault}")


def check_length(tree: ProgramTree, total: int) -> None:
    """Check that the ``total`` executions that a trace holds one by one are not too many for memory.

    Raises:
        SimulationError: there are more than :data:`~.instructions.MOST_INSTANCES`; the message names the longest loop.
    """
    program = tree.program
    if total <= MOST_INSTANCES:
        return
    loops = [loop_step for _, instructions in tree.lists() if (loop_step := longest_loop(instructions)) is not None]
    limit = f"at most {MOST_INSTANCES:,} are allowed"
    if not loops:
        raise SimulationError(f"{program.name}: {total:,} executions to keep in the trace, {limit}")
    # The longest loop is the most likely cause, so the message names it.
    loop, shared = max(loops, key=lambda loop_step: loop_step[0].count)
    inside = (
        f"it contains the step {shared!r}, which the IPU shares with others or the host" if shared else "no folding"
    )
    raise SimulationError(
        f"{program.name}: Repeat {loop.name!r} of {loop.count:,} trips is kept trip by trip ({inside}): {total:,} "
        f"executions in the trace, {limit}; let a run have fewer trips, or take such steps out of the loop: loops of "
        "steps on the tiles alone may be of any length"
    )


def _executed(tree: ProgramTree, instructions: Sequence[Instruction]) -> list[Step]:
    # A dictionary keeps the order of the program, so the first fault in it is reported.
    leaves: dict[int, None] = {}
    seen: set[int] = set()
    for instruction in instructions:
        if isinstance(instruction, Stretch):
            for segment in instruction.segments:
                if segment not in seen:
                    seen.add(segment)
                    leaves.update(dict.fromkeys(tree.segments[segment].leaves))
        elif isinstance(instruction, Shared):
            leaves[instruction.leaf.leaf_id] = None
    # A step that is executed at several places is looked at once.
    steps = {id(step): step for step in map(tree.leaves.steps.__getitem__, leaves)}
    return list(steps.values())
