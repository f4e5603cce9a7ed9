"""Code that is not always on the tiles: a program loads it from Streaming Memory, and it is dead after its last call.

The size of a graph's code is known only after lowering, so the transfers are written last (:func:`load_code`).
Code counts as loaded and dead (:func:`_loaded_codes`) where all loads and plain calls or loops of the graph are in one
graph and a load comes first. The code of any other graph is always live, as upstream has it for graphs that are called
without a load; its loads only take time.

Simplifications (``docs/accuracy/simplifications.md``): Poplar's function buffers are not documented. Only the
control and exchange code of the graph's own steps is loaded. Vertices, their state and packet headers stay on the
tiles, and so does the code of graphs that it calls and of senders of copies between IPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ir import Graph, IrError
from ipuperf.machine import Chip, Machine
from ipuperf.ops.control import Call, Loop
from ipuperf.ops.transfers.code_load import RemoteCodeLoad

from . import code
from .code import CodeBytes, CodeOf
from .lowered import CallCopies, LoweredGraph, LoweredOp
from .steps import RemoteTransfer, Step
from .supersteps import OpSteps
from .tilevector import TileVector

if TYPE_CHECKING:
    from .compilation import Compilation

#: Categories of always-live memory that are code; the rest is data of vertices and packets.
CODE = ("controlCode", "globalExchangeCode", "hostExchangeCode", "internalExchangeCode")


def split(piece: CodeBytes) -> tuple[CodeBytes, CodeBytes]:
    """An op's always-live memory in two parts: the code that can be loaded, and everything else."""
    loadable = CodeBytes({name: value for name, value in piece.parts.items() if name in CODE})
    return loadable, CodeBytes({name: value for name, value in piece.parts.items() if name not in CODE})


def _code_of(lowered: LoweredGraph, chip: Chip) -> CodeOf:
    """The code of a graph's own steps."""
    totals: dict[int, np.ndarray] = {}
    for lowered_op in lowered.ops:
        for value in split(lowered_op.steps.code)[0].parts.values():
            totals[lowered_op.ipu] = totals.get(lowered_op.ipu, np.zeros(chip.tiles, dtype=np.int64)) + value
    return {ipu: TileVector.of(total) for ipu, total in sorted(totals.items())}


def _loaded_codes(graphs: Mapping[Graph, LoweredGraph], chip: Chip) -> dict[Graph, CodeOf]:
    """The graphs whose code is not always live, with that code."""
    uses_of: dict[Graph, list[tuple[LoweredGraph, LoweredOp, bool]]] = {}
    for lowered in graphs.values():
        for lowered_op in lowered.ops:
            if isinstance(lowered_op.op, RemoteCodeLoad):
                uses_of.setdefault(lowered_op.op.code, []).append((lowered, lowered_op, True))
            for callee in lowered_op.op.called_graphs() if lowered_op.calls else ():
                uses_of.setdefault(callee, []).append((lowered, lowered_op, False))
    # The first use has to be a load, the others loads, calls or loops, and all in one graph.
    return {
        graph: _code_of(graphs[graph], chip)
        for graph, uses in uses_of.items()
        if uses[0][2]
        # Lowered graphs have no hash, so their identities are compared.
        and len({id(place) for place, _, _ in uses}) == 1
        and all(load or isinstance(lowered_op.op, (Call, Loop)) for _, lowered_op, load in uses)
    }


def load_code(program: Compilation) -> Compilation:
    """The pass that writes the transfers of code, whose size is known only now."""
    _write_transfers(program.graphs, program.places.machine)
    program.loaded = _loaded_codes(program.graphs, program.places.machine.chip)
    return program


def _write_transfers(graphs: Mapping[Graph, LoweredGraph], machine: Machine) -> None:
    """Give every load its steps, on each IPU that holds code of the graph.

    Raises:
        IrError: the graph is never called, so that it has no code.
    """
    for lowered_op in [lowered_op for lowered in graphs.values() for lowered_op in lowered.ops]:
        if isinstance(lowered_op.op, RemoteCodeLoad):
            if lowered_op.op.code not in graphs:
                raise IrError(
                    f"{lowered_op.op.where()}: graph {lowered_op.op.code.name!r} is never called, so it has no code"
                )
            _write(lowered_op, _code_of(graphs[lowered_op.op.code], machine.chip), machine)


def _write(lowered_op: LoweredOp, shares: CodeOf, machine: Machine) -> None:
    """Replace the empty transfer of one load by its transfers on each IPU."""
    (empty_transfer,) = lowered_op.steps.steps
    packet = machine.ipu_machine.remote_packet_bytes
    transfers: dict[int, list[Step]] = {}
    for ipu, share in shares.items():
        # Each tile moves at least one packet.
        wire = share.at_least(packet).total
        transfers[ipu] = [RemoteTransfer(empty_transfer.op_id, empty_transfer.name, "load", share.total, wire, 0)]
    transfer_code = {ipu: code.host_exchange_code(machine.chip, share) for ipu, share in shares.items()}
    lowered_op.steps, lowered_op.copies = OpSteps(elsewhere=transfer_code), CallCopies(before=transfers)
