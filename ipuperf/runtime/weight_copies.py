"""What it takes to copy variables between host and IPUs between two runs of a program.

Two parts, one after the other (``popart: willow/src/popx/devicex.cpp``, ``weightsFromHost``, ``weightsToHost``,
``loadEngineAndConnectStreams``):

- Variables on chip are copied by a run of the engine (:func:`ipuperf.lowering.weight_copies_program`). To the IPUs,
  streams are connected to the addresses of the values and broadcast, so replicas of a process share them. To the host
  each variable has a callback on each replica, also where the host takes the value of one replica only.
- Variables in Streaming Memory are copied by the host, one after the other: to each replica its value or shard; from
  each replica its shard, from one of each group its value.

Simplifications: such a copy costs the host what a callback does, and its bytes the time of the network card of the
IPU-Machine; what the host rearranges for shards, or converts, costs nothing. Shards on chip are copied as other
variables on chip, which PopART does by way of Streaming Memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from ipuperf.ir import Variable

if TYPE_CHECKING:
    from ipuperf.lowering import DeviceProgram
    from ipuperf.machine import Machine

Direction = Literal["h2d", "d2h"]


def weight_copy_cycles(
    variables: Sequence[Variable],
    direction: Direction,
    program: DeviceProgram,
    machine: Machine,
    host_options: dict[str, Any],
) -> int:
    """Cycles of the tile clock that the host is busy with copying ``variables``.

    Args:
        variables: what is copied.
        direction: ``h2d`` to the IPUs, ``d2h`` to the host.
        program: the main program.
        machine: where it runs.
        host_options: how the main program makes use of the host (arguments of :func:`ipuperf.simulation.simulate`).
    """
    from ipuperf.lowering import weight_copies_program

    own = weight_copies_program(variables, direction, program)
    remote = _remote_seconds(variables, direction, machine, host_options["host_processes"])
    return control_run_cycles(own, machine, host_options, callbacks=direction == "d2h") + machine.chip.cycles(remote)


def control_run_cycles(
    program: DeviceProgram, machine: Machine, host_options: dict[str, Any], *, callbacks: bool = False
) -> int:
    """Cycles of a run of a control program between two runs of the main one, host included.

    Nothing is prefetched. The front end has its overhead once, with the run of the main program that follows, which
    is also the one that waits for the last of several processes.

    Args:
        program: the control program.
        machine: where it runs.
        host_options: as in :func:`weight_copy_cycles`.
        callbacks: each replica has callbacks of its own; False: its streams are broadcast, and one callback serves all
            replicas of a host server.
    """
    from ipuperf.simulation import simulate

    options = {**host_options, "prefetch_depth": 0, "front_end": False}
    if not callbacks:
        options["callback_threads"] = None
    host = replace(machine.host, process_spread_seconds=0.0)
    return int(simulate(program, replace(machine, host=host), **options).columns("runs")["dur"][0])


def _remote_seconds(variables: Sequence[Variable], direction: Direction, machine: Machine, processes: int) -> float:
    remote = [variable for variable in variables if variable.remote is not None]
    if not remote:
        return 0.0
    bandwidth = machine.ipu_machine.require_streaming_memory().host_link_bandwidth_bytes_per_s
    seconds = 0.0
    for variable in remote:
        copies = ceil(_replicas(variable, direction) / processes)
        seconds += copies * (machine.host.callback_seconds + variable.spec.bytes / bandwidth)
    return seconds


def _replicas(variable: Variable, direction: Direction) -> int:
    """Replicas to or from which a variable in Streaming Memory is copied."""
    grouping = variable.grouping
    if direction == "h2d" or variable.spec.meta_shape or variable.retrieval == "all_replicas":
        return grouping.num_groups * grouping.group_size
    return grouping.num_groups
