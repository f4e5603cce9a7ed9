"""Code that is not always on the tiles: loaded from Streaming Memory where the program says so, dead after its last
call.

How much code a graph has is known when it has been lowered, so the transfers are written last
(:func:`write_transfers`). The code counts as loaded and dead (:func:`loaded_codes`) where all loads and plain calls or
loops of the graph stand in one graph and a load comes first; of any other graph it is always live, as upstream has it
of graphs that are called without a load, and the loads only take time.

Simplifications (``docs/accuracy.md``): Poplar's function buffers are not documented. What is loaded are the control and
exchange code of the graph's own steps; vertices, their state and packet headers stay, and so does the code of graphs
that it calls and of senders of copies between IPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ir import Graph, IrError
from ipuperf.ops.code_load import RemoteCodeLoad
from ipuperf.ops.control import Call, Loop

from . import code
from .code import CodeBytes
from .lowered import CallCopies, LoweredGraph, LoweredOp
from .steps import RemoteTransfer, Step
from .supersteps import OpSteps
from .tilevector import TileVector

if TYPE_CHECKING:
    from ipuperf.machine import Chip, Machine

#: Categories of always-live memory that are code; the rest is data of vertices and packets.
CODE = ("controlCode", "globalExchangeCode", "hostExchangeCode", "internalExchangeCode")

CodeOf = Mapping[int, TileVector]
"""Bytes of code per tile on each IPU."""


def split(piece: CodeBytes) -> tuple[CodeBytes, CodeBytes]:
    """The code in what an op holds, and the rest."""
    own = CodeBytes({name: value for name, value in piece.parts.items() if name in CODE})
    return own, CodeBytes({name: value for name, value in piece.parts.items() if name not in CODE})


def code_of(lowered: LoweredGraph, chip: Chip) -> CodeOf:
    """The code of a graph's own steps."""
    found: dict[int, np.ndarray] = {}
    for item in lowered.ops:
        for value in split(item.steps.code)[0].parts.values():
            found[item.ipu] = found.get(item.ipu, np.zeros(chip.tiles, dtype=np.int64)) + value
    return {ipu: TileVector.of(total) for ipu, total in sorted(found.items())}


def loaded_codes(graphs: Mapping[Graph, LoweredGraph], chip: Chip) -> dict[Graph, CodeOf]:
    """The graphs whose code is not always live."""
    touching: dict[Graph, list[tuple[LoweredGraph, LoweredOp, bool]]] = {}
    for lowered in graphs.values():
        for item in lowered.ops:
            if isinstance(item.op, RemoteCodeLoad):
                touching.setdefault(item.op.code, []).append((lowered, item, True))
            for callee in item.op.called_graphs() if item.calls else ():
                touching.setdefault(callee, []).append((lowered, item, False))
    return {
        graph: code_of(graphs[graph], chip)
        for graph, found in touching.items()
        if found[0][2] and len({id(place) for place, _, _ in found}) == 1
        and all(load or isinstance(item.op, (Call, Loop)) for _, item, load in found)
    }  # fmt: skip


def write_transfers(graphs: Mapping[Graph, LoweredGraph], machine: Machine) -> None:
    """Give every load its steps, on each IPU that holds code of the graph.

    Raises:
        IrError: the graph is never called, so that it has no code.
    """
    for item in [item for lowered in graphs.values() for item in lowered.ops]:
        if isinstance(item.op, RemoteCodeLoad):
            if item.op.code not in graphs:
                raise IrError(f"{item.op.where()}: graph {item.op.code.name!r} is never called, so it has no code")
            _write(item, code_of(graphs[item.op.code], machine.chip), machine)


def _write(item: LoweredOp, shares: CodeOf, machine: Machine) -> None:
    """The steps of one load."""
    (nothing,) = item.steps.steps
    packet = machine.ipu_machine.remote_packet_bytes
    transfers: dict[int, list[Step]] = {}
    for ipu, share in shares.items():
        wire = share.at_least(packet).total
        transfers[ipu] = [RemoteTransfer(nothing.op_id, nothing.name, "load", share.total, wire, 0)]
    held = {ipu: code.host_exchange_code(machine.chip, share) for ipu, share in shares.items()}
    item.steps, item.copies = OpSteps(elsewhere=held), CallCopies(before=transfers)
