"""The pass that finds where tensors lie. It comes before anything is lowered, as places do not depend on layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ipuperf.ir import Graph, IrError
from ipuperf.ir import Op as Operation
from ipuperf.ops.base import Op
from ipuperf.ops.control import Loop

from .alike import OpCache
from .compilation import Compilation
from .lowered import CallingOp
from .placement import ipus_per_replica
from .places import Places
from .steps.sync_groups import SyncGroups
from .tile_sets import TileSets


def place(program: Compilation) -> Compilation:
    """The pass that finds the IPU and the tile set of every tensor.

    Raises:
        IrError: an operand lies on another IPU or tile set, there are too many I/O tiles, or an op cannot be lowered.
        MachineError: the replicas cannot be placed on the machine.
    """
    tile_sets = TileSets(program.machine, program.ir.num_io_tiles)
    ipus = ipus_per_replica(program.ir)
    program.syncs = SyncGroups(program.sync_pattern, ipus)
    program.placement = program.machine.place(program.ir.replication_factor, ipus)
    program.cache = OpCache(tile_sets, program.merging)
    program.places = Places(tile_sets)
    _place_graph(program.ir.main_graph, program.places, program.cache.order, set())
    return program


def _place_graph(
    graph: Graph, places: Places, order: Callable[[Graph], Iterable[Operation]], placed: set[Graph]
) -> None:
    """Place the tensors of a graph and, at their first call, of the graphs that it calls."""
    placed.add(graph)
    places.place_data(graph)
    for op in order(graph):
        if not isinstance(op, Op):
            raise IrError(f"{op.where()}: not an op that can be lowered")
        if not isinstance(op, CallingOp):
            places.place_op(op)
            continue
        for callee, operands in op.calls():
            first = callee not in placed
            places.pass_operands(op, callee, operands, first=first)
            if first:
                _place_graph(callee, places, order, placed)
            places.place_results(op, callee)
        # A single trip carries nothing back to the begin of the body.
        if isinstance(op, Loop) and op.trip_count > 1:
            places.check_carried(op)
