"""The program that brings new numbers from the host to the IPUs, in an engine run of its own between two others.

This is how PopART writes new values of an optimiser (``popart: willow/src/popx/devicex.cpp``, ``optimizerFromHost``).
Every scalar that is no constant has a stream of its own, and one control program copies them one after the other. The
same program copies scalars that several IPUs use on from the first IPU
(``willow/src/op/ipucopy.cpp``, ``belongsInOptimizerFromHostFragment`` of the ``interipucopy`` pattern).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from .program import DeviceProgram, MemoryReport, OpInfo
from .steps import HostCopy, HostExchange, InterIpuCopy, IpuTransfer, Sequence, Step

SCALAR_BYTES = 4
"""Bytes of a number that the host may rewrite, a float32."""


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
    """The control program beside ``program``, on the same IPUs.

    All copies are one exchange with the host: consecutive stream copies share a host sync. The tensors are those of
    ``program``, so they take no memory of their own here.
    """
    steps = _steps(values, len(program.ipus))
    return program_beside(program, values.name, steps, "HostLoad", "update")


def program_beside(program: DeviceProgram, name: str, steps: Iterable[Step], kind: str, phase: str) -> DeviceProgram:
    """A control program ``name`` on the IPUs of ``program``; all run ``steps`` as one op of type ``kind``."""
    body = Sequence(-1, name, tuple(steps))
    empty = {ipu: np.zeros(0, dtype=np.int64) for ipu in range(len(program.ipus))}
    memory = MemoryReport(
        {ipu: {} for ipu in empty},
        (),
        dict.fromkeys(empty, ()),
        empty,
        empty,
        empty,
        empty,
        program.memory.bytes_per_tile,
    )
    streams = {
        copy.stream: (copy.direction, copy.bytes)
        for step in body.inside
        if isinstance(step, HostExchange)
        for copy in step.copies
    }
    op = OpInfo(0, name, kind, "main", phase, 0)
    return replace(
        program,
        name=name,
        ipus=(body,) * len(program.ipus),
        functions={},
        ops=(op,),
        memory=memory,
        streams=streams,
        warnings=(),
        io_tiles=0,
        plans={},
    )


def _steps(values: NewValues, ipus: int) -> list[Step]:
    scalar_ipus = [ipu for ipu, count in enumerate(values.scalars) for _ in range(count)]
    places = [0] * values.shared + scalar_ipus
    if not places:
        return []
    copies = tuple(HostCopy(ipu, "h2d", SCALAR_BYTES, f"value {number}") for number, ipu in enumerate(places))
    steps: list[Step] = [HostExchange(0, values.name, copies, tuple(range(ipus)))]
    # A shared number comes from the host once; the first IPU sends it on.
    if values.shared and ipus > 1:
        size = values.shared * SCALAR_BYTES
        onwards = tuple(IpuTransfer(0, ipu, size) for ipu in range(1, ipus))
        steps.append(InterIpuCopy(0, values.name, onwards))
    return steps
