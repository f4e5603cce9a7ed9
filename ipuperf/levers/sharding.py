"""Replicated tensor sharding of remote variables, as a change of a program that does not know of it.

What is loaded whole from a remote buffer is loaded as a shard and gathered from the other replicas; what is stored
whole is stored as the replica's own shard. Values stay what they were, bit by bit, so a buffer qualifies only where all
replicas hold the same: its variables are the same on all, and all that is stored into it is.

Simplification: what lies between load and store still runs on whole tensors on every replica; a program that updates
shards computes less and gathers the weights, not the state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from ipuperf.ir import CONTEXT, Builder, Graph, Ir, Op, RemoteBuffer, Tensor, TensorSpec, Variable, roots, schedule
from ipuperf.ops import (
    CopyVarUpdate,
    Dropout,
    HostLoad,
    If,
    Init,
    Loop,
    RemoteLoad,
    RemoteStore,
    ReplicatedAllGather,
    ReplicatedAllReduce,
    ReplicatedReduceScatter,
)

SMALLEST = 1024
"""Elements of the smallest tensor that is sharded (the default of popxl.addons)."""


def shardable(ir: Ir) -> list[RemoteBuffer]:
    """Remote buffers of variables, whole and of at least :data:`SMALLEST` elements, that are the same on all
    replicas."""
    held: dict[RemoteBuffer, bool] = {}
    for variable in ir.variables():
        if variable.remote is not None:
            buffer = variable.remote[0]
            held[buffer] = held.get(buffer, True) and _equal(variable)
    same = {buffer for buffer, equal in held.items() if equal}
    with ir.frozen(), ir.deep_calls():
        while wrong := Differences(ir, same).stored & same:
            same -= wrong
    return [b for b in ir.remote_buffers if b in same and not b.meta_shape and math.prod(b.shape) >= SMALLEST]


def _equal(variable: Variable) -> bool:
    return variable.grouping.num_groups == 1


class Differences:
    """What may differ between replicas, found by following the data from where differences begin.

    They begin with host loads, random ops, variables that are not one for all replicas, and loads from buffers other
    than ``same``; they end where all replicas are reduced or gathered. A graph is looked at once for all its calls.

    Attributes:
        stored: buffers into which something is stored that may differ.
    """

    def __init__(self, ir: Ir, same: Collection[RemoteBuffer]) -> None:
        self.stored: set[RemoteBuffer] = set()
        self._same, self._replicas = same, ir.replication_factor
        graphs = ir.callees_first()
        self._entering: dict[Graph, set[Tensor]] = {graph: set() for graph in graphs}
        self._leaving: dict[Graph, set[Tensor]] = {graph: set() for graph in graphs}
        self._entering[ir.main_graph].update(v for v in ir.variables() if not _equal(v))
        before = -1
        while before != (before := sum(map(len, (*self._entering.values(), *self._leaving.values())))):
            for graph in graphs:
                self._follow(graph)
            main = ir.main_graph  # what a run leaves in a variable is there in the next
            self._entering[main] |= {v for v in ir.variables() if v in self._leaving[main]}

    def _follow(self, graph: Graph) -> None:
        """One walk through a graph in the order of execution; what is followed are owners of storage."""
        root, now = roots(graph), set(self._entering[graph])
        for op in schedule(graph):
            read = [root.get(t, t) for t in op.inputs]
            if op.called_graphs():
                self._call(op, read, [root[t] for t in op.outputs], now)
                continue
            differs = self._begins(op) or (not self._ends(op) and any(t in now for t in read))
            if isinstance(op, RemoteStore) and read[0] in now:
                self.stored.add(op.buffer)
            written = {root[t] for t in op.outputs} | {read[i] for i in op.modified_inputs()}
            if differs:
                now |= written
            elif self._ends(op):  # nothing of before is left
                now -= written
        self._leaving[graph] |= {t for t in (*graph.inputs, *graph.tensors.values()) if root.get(t, t) in now}

    def _begins(self, op: Op) -> bool:
        if isinstance(op, RemoteLoad):
            return op.buffer not in self._same
        return isinstance(op, (HostLoad, Dropout)) or op.type.startswith("Random")

    def _ends(self, op: Op) -> bool:
        collective = isinstance(op, (ReplicatedAllReduce, ReplicatedAllGather))
        return collective and op.attributes["group"].group_size == self._replicas

    def _call(self, op: Op, read: list[Tensor], made: list[Tensor], now: set[Tensor]) -> None:
        place = dict(zip(op.inputs, read, strict=True))
        changed = {read[i] for i in op.modified_inputs()}
        after: set[Tensor] = set()
        for graph, operands in op.calls():
            leaving = self._leaving[graph]
            self._entering[graph] |= {i for i, t in zip(graph.inputs, operands, strict=False) if place[t] in now}
            if isinstance(op, Loop):  # carried from trip to trip
                self._entering[graph] |= {i for i, t in zip(graph.inputs, graph.outputs, strict=False) if t in leaving}
                self._entering[graph] |= {t for t in graph.inputs if t.by_ref and t in leaving}
            after |= {owner for owner, t in zip(made, graph.outputs, strict=False) if t in leaving}
            after |= {
                place[t] for i, t in zip(graph.inputs, operands, strict=False) if place[t] in changed and i in leaving
            }
        if isinstance(op, If) and read[0] in now:
            after.update(made)
        now -= {*made, *changed}
        now |= after


# -- the change --------------------------------------------------------------------------------------------------------


def shard(ir: Ir, buffers: Iterable[RemoteBuffer]) -> None:
    """Shard these buffers over all replicas, with every load and store of them."""
    ir.sealed = False
    parts = {buffer: _part(ir, buffer) for buffer in buffers}
    for graph in ir.all_graphs():
        for op in [op for op in graph.ops if isinstance(op, (RemoteLoad, RemoteStore)) and op.buffer in parts]:
            (_shard_load if isinstance(op, RemoteLoad) else _shard_store)(graph, op, parts[op.attributes["buffer"]])
    for variable in ir.variables():
        if variable.remote is not None and variable.remote[0] in parts:
            buffer = parts[variable.remote[0]]
            variable.remote = (buffer, variable.remote[1])
            variable.spec = TensorSpec(buffer.shape, buffer.dtype, buffer.meta_shape)
            variable.shard_over = ir.replication_factor
    ir.sealed = True


def _part(ir: Ir, buffer: RemoteBuffer) -> RemoteBuffer:
    size = -(-math.prod(buffer.shape) // ir.replication_factor)
    return ir.remote_buffer((size,), buffer.dtype, buffer.entries, buffer.shape)


def _shard_load(graph: Graph, load: Op, part: RemoteBuffer) -> None:
    """A shard is loaded, gathered, and copied to where the whole was loaded."""
    whole, entry = load.inputs
    with _like(load):
        builder, group = Builder(graph), graph.ir.grouping()
        empty = builder.create(
            Init, [], ["shard"], shape=part.shape, dtype=part.dtype, init="undefined", meta_shape=part.meta_shape
        )
        loaded = builder.create(RemoteLoad, [empty.outputs[0], entry], ["shard"], buffer=part)
        gathered = builder.create(ReplicatedAllGather, loaded.outputs, ["gathered"], group=group, mode="meta_shape")
        copied = builder.create(CopyVarUpdate, [whole, *gathered.outputs], [load.outputs[0].name])
    _replace(graph, load, [empty, loaded, gathered, copied])


def _shard_store(graph: Graph, store: Op, part: RemoteBuffer) -> None:
    """The replica's own shard is stored."""
    whole, entry = store.inputs
    with _like(store):
        builder, group = Builder(graph), graph.ir.grouping()
        own = builder.create(ReplicatedReduceScatter, [whole], ["shard"], group=group, op="local", rts=True)
        stored = builder.create(RemoteStore, [own.outputs[0], entry], [], buffer=part)
    _replace(graph, store, [own, stored])


@contextmanager
def _like(op: Op) -> Iterator[None]:
    """Within, ops are made where ``op`` runs."""
    with CONTEXT.detached(op.ipu), CONTEXT.on_tiles(op.tile_set):
        yield


def _replace(graph: Graph, old: Op, new: list[Op]) -> None:
    """``new`` ops, the last ones of the graph, stand for ``old``: at its place, in its order, with its result."""
    for op in new:
        op.location, op.scope, op.phase = old.location, old.scope, old.phase
    given = dict(zip(old.outputs, new[-1].outputs, strict=True))
    for result, instead in given.items():
        for reader in result.consumers:
            reader.inputs = [given.get(t, t) for t in reader.inputs]
            instead.consumers.append(reader)
        del graph.tensors[result.id]
    graph.outputs = [given.get(t, t) for t in graph.outputs]
    for tensor in old.inputs:
        tensor.consumers.remove(old)
    graph.ops = [op for op in graph.ops if op not in set(new)]
    place = graph.ops.index(old)
    graph.ops[place : place + 1] = new
    earlier = graph.constraints.pop(old, set())
    for before in graph.constraints.values():
        if old in before:
            before.remove(old)
            before.add(new[-1])
    for op in new:
        graph.constraints.setdefault(op, set()).update(earlier)
    graph.version += 1
