"""The time of copying variables between host and IPUs between two runs of a program.

A copy has two parts, one after the other (``popart: willow/src/popx/devicex.cpp``, ``weightsFromHost``,
``weightsToHost``, ``loadEngineAndConnectStreams``):

- A run of the engine copies variables on chip (:func:`ipuperf.lowering.weight_copies_program`). To the IPUs, streams
  are connected to the addresses of the values and broadcast, so replicas of a process share them. To the host, each
  variable has a callback on each replica, even if the host takes the value of one replica only.
- The host copies variables in Streaming Memory one after the other. Each replica receives its value or shard. The host
  reads a shard from each replica, or a value from one replica of each group.

Simplifications: such a copy costs the host one callback, and its bytes take the time of the IPU-Machine's network card.
Rearranging for shards and conversions on the host cost nothing. Shards on chip are copied like other variables on
chip; PopART copies them by way of Streaming Memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from ipuperf.ir import Variable
from ipuperf.machine import Machine

if TYPE_CHECKING:
    from ipuperf.lowering import DeviceProgram

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

    control_program = weight_copies_program(variables, direction, program)
    remote = _remote_seconds(variables, direction, machine, host_options["host_processes"])
    return control_run_cycles(
        control_program, machine, host_options, callbacks=direction == "d2h"
    ) + machine.chip.cycles(remote)


def control_run_cycles(
    program: DeviceProgram, machine: Machine, host_options: dict[str, Any], *, callbacks: bool = False
) -> int:
    """Cycles of a run of a control program between two runs of the main one, host included.

    Nothing is prefetched. The front end's overhead, and the wait for the last of several processes, are counted once:
    in the run of the main program that follows.

    Args:
        program: the control program.
        machine: the machine it runs on.
        host_options: as in :func:`weight_copy_cycles`.
        callbacks: whether each replica has its own callbacks. Otherwise streams are broadcast, and one callback serves
            all replicas of a host server.
    """
    from ipuperf.simulation import simulate

    options = {**host_options, "prefetch_depth": 0, "front_end": False}
    if not callbacks:
        # None is one thread per replica: together their callbacks take the time of one.
        options["callback_threads"] = None
    # The main program's run, which follows, waits for the last process.
    host = replace(machine.host, process_spread_seconds=0.0)
    return int(simulate(program, replace(machine, host=host), **options).columns("runs")["dur"][0])


def _remote_seconds(variables: Sequence[Variable], direction: Direction, machine: Machine, processes: int) -> float:
    remote = [variable for variable in variables if variable.remote is not None]
    if not remote:
        return 0.0
    bandwidth = machine.ipu_machine.require_streaming_memory().host_link_bandwidth_bytes_per_s
    seconds = 0.0
    for variable in remote:
        # Each host process copies for its own replicas, and the processes work at the same time.
        copies = ceil(_replicas(variable, direction) / processes)
        seconds += copies * (machine.host.callback_seconds + variable.spec.bytes / bandwidth)
    return seconds


def _replicas(variable: Variable, direction: Direction) -> int:
    """Replicas to or from which a variable in Streaming Memory is copied."""
    grouping = variable.grouping
    if direction == "h2d" or variable.spec.meta_shape or variable.retrieval == "all_replicas":
        return grouping.num_groups * grouping.group_size
    return grouping.num_groups
