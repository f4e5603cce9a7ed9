"""Replicated tensor sharding of remote variables, in a program that was written without it.

Each replica loads a shard of a remote buffer and gathers the other shards from the other replicas. It stores its own
shard only. Values stay the same, bit by bit. So a buffer qualifies only if its contents are the same on all replicas:
its variables are, and so is everything that is stored into it.

Simplification: ops between load and store still run on whole tensors on every replica. A program that updates shards
computes less, and it gathers the weights instead of the state.
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
"""The number of elements from which a tensor is sharded (the default of popxl.addons)."""


def shardable(ir: Ir) -> list[RemoteBuffer]:
    """Remote buffers of variables that can be sharded.

    They are not sharded yet, have at least :data:`SMALLEST` elements, and are the same on all replicas.
    """
    equal_by_buffer: dict[RemoteBuffer, bool] = {}
    for variable in ir.variables():
        if variable.remote is not None:
            buffer = variable.remote[0]
            equal_by_buffer[buffer] = equal_by_buffer.get(buffer, True) and _equal(variable)
    same = {buffer for buffer, equal in equal_by_buffer.items() if equal}
    with ir.frozen(), ir.deep_calls():
        # A buffer that turns out to differ makes its loads differ, and with them other buffers. So repeat until
        # nothing that differs is stored into the buffers that are left.
        while differing := Differences(ir, same).stored & same:
            same -= differing
    return [
        buffer
        for buffer in ir.remote_buffers
        if buffer in same and not buffer.meta_shape and math.prod(buffer.shape) >= SMALLEST
    ]


def _equal(variable: Variable) -> bool:
    return variable.grouping.num_groups == 1


class Differences:
    """The tensors that may differ between replicas, found by following the data from where differences begin.

    Differences begin with host loads, random ops, variables with more than one replica group, and loads from buffers
    outside ``same``. They end with a reduction or gather over all replicas. All calls of a graph are treated as one.

    Attributes:
        stored: buffers into which tensors are stored that may differ.
    """

    def __init__(self, ir: Ir, same: Collection[RemoteBuffer]) -> None:
        self.stored: set[RemoteBuffer] = set()
        self._same, self._replicas = same, ir.replication_factor
        graphs = ir.callees_first()
        self._entering: dict[Graph, set[Tensor]] = {graph: set() for graph in graphs}
        self._leaving: dict[Graph, set[Tensor]] = {graph: set() for graph in graphs}
        self._entering[ir.main_graph].update(variable for variable in ir.variables() if not _equal(variable))
        # The sets only grow, so they are complete as soon as one round over all graphs adds nothing.
        tensors_counted = -1
        while tensors_counted != (
            tensors_counted := sum(map(len, (*self._entering.values(), *self._leaving.values())))
        ):
            for graph in graphs:
                self._follow(graph)
            main = ir.main_graph  # what a run leaves in a variable is there in the next
            self._entering[main] |= {variable for variable in ir.variables() if variable in self._leaving[main]}

    def _follow(self, graph: Graph) -> None:
        """Walk through a graph in the order of execution. Views are followed as the tensors that own their storage."""
        root, differing = roots(graph), set(self._entering[graph])
        for op in schedule(graph):
            read = [root.get(tensor, tensor) for tensor in op.inputs]
            if op.called_graphs():
                self._call(op, read, [root[tensor] for tensor in op.outputs], differing)
                continue
            differs = self._begins(op) or (not self._ends(op) and any(tensor in differing for tensor in read))
            if isinstance(op, RemoteStore) and read[0] in differing:
                self.stored.add(op.buffer)
            written = {root[tensor] for tensor in op.outputs} | {read[index] for index in op.modified_inputs()}
            if differs:
                differing |= written
            elif self._ends(op):  # the op overwrites all that differed
                differing -= written
        self._leaving[graph] |= {
            tensor for tensor in (*graph.inputs, *graph.tensors.values()) if root.get(tensor, tensor) in differing
        }

    def _begins(self, op: Op) -> bool:
        if isinstance(op, RemoteLoad):
            return op.buffer not in self._same
        # Seeds may differ between replicas.
        return isinstance(op, (HostLoad, Dropout)) or op.type.startswith("Random")

    def _ends(self, op: Op) -> bool:
        collective = isinstance(op, (ReplicatedAllReduce, ReplicatedAllGather))
        return collective and op.attributes["group"].group_size == self._replicas

    def _call(self, op: Op, read: list[Tensor], outputs: list[Tensor], differing: set[Tensor]) -> None:
        owners = dict(zip(op.inputs, read, strict=True))
        changed = {read[index] for index in op.modified_inputs()}
        differing_after: set[Tensor] = set()
        for graph, operands in op.calls():
            leaving = self._leaving[graph]
            self._entering[graph] |= {
                graph_input
                for graph_input, tensor in zip(graph.inputs, operands, strict=False)
                if owners[tensor] in differing
            }
            if isinstance(op, Loop):  # carried from trip to trip
                # Output i is carried to input i. Inputs behind the outputs are the same in each trip.
                self._entering[graph] |= {
                    graph_input
                    for graph_input, tensor in zip(graph.inputs, graph.outputs, strict=False)
                    if tensor in leaving
                }
                self._entering[graph] |= {tensor for tensor in graph.inputs if tensor.by_ref and tensor in leaving}
            differing_after |= {
                owner for owner, tensor in zip(outputs, graph.outputs, strict=False) if tensor in leaving
            }
            differing_after |= {
                owners[tensor]
                for graph_input, tensor in zip(graph.inputs, operands, strict=False)
                if owners[tensor] in changed and graph_input in leaving
            }
        # Replicas may take different branches, so every result may differ.
        if isinstance(op, If) and read[0] in differing:
            differing_after.update(outputs)
        # The call has settled all that it gives and changes, so earlier differences end here.
        differing -= {*outputs, *changed}
        differing |= differing_after


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
    # Rounded up, so that the shards of all replicas together hold the whole.
    size = -(-math.prod(buffer.shape) // ir.replication_factor)
    return ir.remote_buffer((size,), buffer.dtype, buffer.entries, buffer.shape)


def _shard_load(graph: Graph, load: Op, part: RemoteBuffer) -> None:
    """Load and gather a shard instead of the whole, and copy the whole to the tensor that was loaded into."""
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
    """Store the replica's own shard instead of the whole."""
    whole, entry = store.inputs
    with _like(store):
        builder, group = Builder(graph), graph.ir.grouping()
        # All replicas hold the same values, so each takes its own part without any exchange.
        own_shard = builder.create(ReplicatedReduceScatter, [whole], ["shard"], group=group, op="local", rts=True)
        stored = builder.create(RemoteStore, [own_shard.outputs[0], entry], [], buffer=part)
    _replace(graph, store, [own_shard, stored])


@contextmanager
def _like(op: Op) -> Iterator[None]:
    """Within the block, new ops run on the IPU and tile set of ``op``."""
    with CONTEXT.detached(op.ipu), CONTEXT.on_tiles(op.tile_set):
        yield


def _replace(graph: Graph, old_op: Op, new_ops: list[Op]) -> None:
    """Put the ``new_ops``, which are the last ones of the graph, in the place of ``old_op``.

    The result of the last new op replaces that of ``old_op``, and the new ops take over its constraints of order.
    """
    for op in new_ops:
        op.location, op.scope, op.module, op.phase = old_op.location, old_op.scope, old_op.module, old_op.phase
    replacements = dict(zip(old_op.outputs, new_ops[-1].outputs, strict=True))
    for old_output, new_output in replacements.items():
        for reader in old_output.consumers:
            reader.inputs = [replacements.get(tensor, tensor) for tensor in reader.inputs]
            new_output.consumers.append(reader)
        del graph.tensors[old_output.id]
    graph.outputs = [replacements.get(tensor, tensor) for tensor in graph.outputs]
    for tensor in old_op.inputs:
        tensor.consumers.remove(old_op)
    graph.ops = [op for op in graph.ops if op not in set(new_ops)]
    place = graph.ops.index(old_op)
    graph.ops[place : place + 1] = new_ops
    earlier = graph.constraints.pop(old_op, set())
    # What waited for the old op waits for the last new one, and all new ops wait for what it waited for.
    for predecessors in graph.constraints.values():
        if old_op in predecessors:
            predecessors.remove(old_op)
            predecessors.add(new_ops[-1])
    for op in new_ops:
        graph.constraints.setdefault(op, set()).update(earlier)
    graph.version += 1
