"""A whole program as text: every graph it executes, op by op, and the data of its main graph."""

import re
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ipuperf.ir import Constant, Graph, Ir, Op, Stream, Tensor, Variable, schedule


def figures(ir: Ir) -> dict[str, object]:
    """The row of a program: graphs, ops, and a checksum of :func:`program_text`."""
    graphs = list(_graphs(ir.main_graph))
    return {
        "graphs": len(graphs),
        "ops": sum(len(graph.ops) for graph in graphs),
        "text": checksum(program_text(ir)),
    }


def checksum(text: str) -> str:
    """Eight digits that change with the text."""
    return f"{zlib.crc32(text.encode()):08x}"


def program_text(ir: Ir) -> str:
    """One line for each graph, op and tensor with data. Ops have numbers of their own, in the order of execution."""
    lines = [f"replicas {ir.replication_factor} io tiles {ir.num_io_tiles}"]
    for graph in _graphs(ir.main_graph):
        lines.append(f"graph {graph.name} {graph.phase} {[_tensor(t) for t in graph.inputs]}")
        lines += [_op(op) for op in schedule(graph)]
        lines.append(f"gives {[t.id for t in graph.outputs]}")
        lines += [_data(t) for t in graph.tensors.values() if isinstance(t, Constant | Variable | Stream)]
    return "\n".join(lines)


def _graphs(graph: Graph) -> Iterator[Graph]:
    seen: dict[Graph, None] = {}
    waiting = [graph]
    while waiting:
        graph = waiting.pop()
        if graph not in seen:
            seen[graph] = None
            waiting += [callee for op in schedule(graph) for callee in op.called_graphs()]
    return iter(seen)


def _op(op: Op) -> str:
    attributes = {name: _value(value) for name, value in sorted(op.attributes.items())}
    place = f"ipu {op.ipu} {op.tile_set} {op.phase} {op.scope}"
    return f"{op.type} {attributes} {place} {[t.id for t in op.inputs]} -> {[_tensor(t) for t in op.outputs]}"


def _tensor(tensor: Tensor) -> str:
    return f"{tensor.id} {tensor.spec} {tensor.meta_shape} {tensor.by_ref} {tensor.ipu}"


def _data(tensor: Tensor) -> str:
    said: list[Any] = []
    if isinstance(tensor, Stream):
        said = [tensor.direction, tensor.transfers]
    elif isinstance(tensor, Variable):
        said = [tensor.grouping, tensor.retrieval, tensor.remote, tensor.shard_over]
    values = _sum(np.asarray(tensor.data)) if isinstance(tensor, Constant | Variable) else ""
    return f"{type(tensor).__name__} {_tensor(tensor)} {[_value(value) for value in said]} {values}"


def _sum(data: np.ndarray) -> str:
    return f"{data.dtype} {data.shape} {zlib.crc32(np.ascontiguousarray(data).tobytes()):08x}"


def _value(value: Any) -> str:
    if isinstance(value, Graph):
        return f"graph {value.name}"
    if isinstance(value, np.ndarray):
        return _sum(value)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
