"""The programs that run besides the main program, in engine runs of their own, and copy between host and IPUs.

PopART has them as control programs (``popart: willow/src/popx/devicex.cpp``).

- ``optimizerFromHost`` brings new values of an optimiser. Every scalar that is no constant has a stream of its own. The
  same program copies scalars that several IPUs use on from the first IPU (``willow/src/op/ipucopy.cpp``,
  ``belongsInOptimizerFromHostFragment`` of the ``interipucopy`` pattern).
- ``weightsFromHost`` and ``weightsToHost`` copy variables; every variable has a stream of its own. Variables in
  Streaming Memory are not part of a program; the host copies them by itself (:mod:`ipuperf.runtime.weight_copies`).

All copies are one exchange with the host, as consecutive stream copies share a host sync. The tensors are those of the
main program, so they take no memory of their own here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipuperf.ir import Variable

from .placement import home_of
from .program import DeviceProgram, MemoryReport, OpInfo
from .steps import HostCopy, HostExchange, InterIpuCopy, IpuTransfer, Step
from .steps import Sequence as StepSequence
from .timeline import Timeline

SCALAR_BYTES = 4
"""Bytes of a number that the host may rewrite, a float32."""

WEIGHT_RUNS = {"h2d": "WeightsFromHost", "d2h": "WeightsToHost"}
"""Names of the programs that copy weights, by direction (PopART's)."""


@dataclass(frozen=True)
class NewValues:
    """The numbers that the host can change between two runs.

    Attributes:
        name: name of the run in traces.
        scalars: for each IPU of a replica, how many numbers it has with a stream of their own.
        shared: how many numbers all IPUs of a replica have; each has a stream to the first IPU, which sends it on.
    """

    name: str
    scalars: tuple[int, ...]
    shared: int = 0

    def __post_init__(self) -> None:
        if min((*self.scalars, self.shared), default=0) < 0:
            raise ValueError(f"NewValues: {self.scalars} scalars, {self.shared} shared; allowed: counts from 0")

    @property
    def streams(self) -> int:
        """Number of all streams."""
        return sum(self.scalars) + self.shared


def new_values_program(values: NewValues, program: DeviceProgram) -> DeviceProgram:
    """The control program beside ``program`` that brings new numbers to its IPUs."""
    ipus = len(program.ipus)
    scalar_ipus = [ipu for ipu, count in enumerate(values.scalars) for _ in range(count)]
    places = [0] * values.shared + scalar_ipus
    copies = [HostCopy(ipu, "h2d", SCALAR_BYTES, f"value {number}") for number, ipu in enumerate(places)]
    onwards: list[Step] = []
    # A shared number comes from the host once; the first IPU sends it on.
    if values.shared and ipus > 1:
        size = values.shared * SCALAR_BYTES
        onwards.append(InterIpuCopy(0, values.name, tuple(IpuTransfer(0, ipu, size) for ipu in range(1, ipus))))
    return _program_beside(program, OpInfo(0, values.name, "HostLoad", "main", "update", 0), copies, onwards)


def weight_copies_program(variables: Iterable[Variable], direction: str, program: DeviceProgram) -> DeviceProgram:
    """The control program beside ``program`` that copies the ``variables`` on chip.

    A replica copies its value or its shard.
    """
    copies = [
        HostCopy(home_of(variable), direction, variable.spec.bytes, variable.id)
        for variable in variables
        if variable.remote is None
    ]
    kind = "HostLoad" if direction == "h2d" else "HostStore"
    return _program_beside(program, OpInfo(0, WEIGHT_RUNS[direction], kind, "main", "io", 0), copies)


def _program_beside(
    program: DeviceProgram, op: OpInfo, copies: Sequence[HostCopy], onwards: Iterable[Step] = ()
) -> DeviceProgram:
    """A control program on the IPUs of ``program``: ``op`` makes the ``copies``, then the steps ``onwards``."""
    ipus = tuple(range(len(program.ipus)))
    # Without copies there is no host sync.
    steps = [HostExchange(0, op.name, tuple(copies), ipus), *onwards] if copies else []
    no_bytes = np.zeros(0, dtype=np.int64)
    none, empty = dict.fromkeys(ipus, Timeline((no_bytes,))), dict.fromkeys(ipus, no_bytes)
    no_names = dict.fromkeys(ipus, Timeline(((),)))
    limit = program.memory.bytes_per_tile
    nothing = MemoryReport({ipu: {} for ipu in ipus}, (), no_names, none, none, none, empty, limit)
    return replace(
        program,
        name=op.name,
        ipus=(StepSequence(-1, op.name, tuple(steps)),) * len(ipus),
        functions={},
        ops=(op,),
        memory=nothing,
        streams={copy.stream: (copy.direction, copy.bytes) for copy in copies},
        warnings=(),
        io_tiles=0,
        plans={},
    )
