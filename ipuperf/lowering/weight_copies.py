"""The programs that copy variables between host and IPUs, outside of a run of the main program.

PopART has two control programs for it (``popart: willow/src/popx/devicex.cpp``, ``weightsFromHost`` and
``weightsToHost``). In them every variable has a stream of its own, and all are copied together. Variables in Streaming
Memory are not part of a program; the host copies them by itself (:mod:`ipuperf.runtime.weight_copies`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ipuperf.ir import Variable

from .new_values import program_beside
from .placement import home_of
from .program import DeviceProgram
from .steps import HostCopy, HostExchange, Step

WEIGHT_RUNS = {"h2d": "WeightsFromHost", "d2h": "WeightsToHost"}
"""Names of the programs, by direction (PopART's)."""


def weight_copies_program(variables: Iterable[Variable], direction: str, program: DeviceProgram) -> DeviceProgram:
    """The control program beside ``program`` that copies the ``variables`` on chip.

    All copies are one exchange with the host: consecutive stream copies share a host sync. A replica copies its value
    or its shard. The tensors are those of ``program``, so they take no memory of their own here.
    """
    name = WEIGHT_RUNS[direction]
    copies = tuple(
        HostCopy(home_of(variable), direction, variable.spec.bytes, variable.id)
        for variable in variables
        if variable.remote is None
    )
    # Without variables on chip there is nothing to copy, and no host sync.
    steps: list[Step] = [HostExchange(0, name, copies, tuple(range(len(program.ipus))))] if copies else []
    return program_beside(program, name, steps, "HostLoad" if direction == "h2d" else "HostStore", "io")
