"""Exchanges that belong together: ``merge_exchange`` and ``io_tile_exchange``; and ``decompose_sum``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ipuperf import ir as _ir
from ipuperf import ops as _k

from .. import context
from ..graph import Graph

_EXCHANGES = (_k.HostLoad, _k.HostStore, _k.RemoteLoad, _k.RemoteStore)


@contextmanager
def merge_exchange() -> Iterator[None]:
    """Host transfers that follow each other in this block happen together.

    Upstream makes one op of the loads and stores in the block. Here they stay ops of their own: the lowering makes one
    exchange of host transfers that are neighbours in the order of execution, whether in such a block or not, and remote
    transfers follow each other. The block only keeps its ops in the order they are written.
    """
    with context.in_sequence(True):
        yield


@contextmanager
def io_tile_exchange(verify_overlap: bool = True) -> Iterator[None]:
    """The exchanges of this block run on the I/O tiles, together, so that they overlap with computation.

    Args:
        verify_overlap: check that they can: there are exchanges only, and none needs the result of another.

    Raises:
        RuntimeError: they cannot.
    """
    copies: list[_ir.Op] = []
    graph = context.gcg()
    hook = graph.register_op_created_hook(copies.append)
    try:
        with context.io_tiles(), merge_exchange():
            yield
    finally:
        graph.remove_op_created_hook(hook)
    if verify_overlap:
        _verify([op for op in copies if not isinstance(op, _k.Init)])


def _verify(ops: Sequence[_ir.Op]) -> None:
    """RuntimeError unless ``ops`` are exchanges that are independent of each other."""
    others = [op.label for op in ops if not isinstance(op, _EXCHANGES)]
    if others:
        raise RuntimeError(f"io_tile_exchange: {others} are no exchanges; move them out of the block")
    results = {tensor: op for op in ops for tensor in op.outputs}
    for op in ops:
        needed = next((results[t] for t in op.inputs if t in results), None)
        if needed is not None:
            raise RuntimeError(
                f"io_tile_exchange: {op.label} needs the result of {needed.label}, so they are not one exchange; give "
                "them a block each, or verify_overlap=False"
            )


def decompose_sum(graph: Graph) -> Graph:
    """``graph``: gradients that meet are already added two by two as soon as they are there, which is what the upstream
    transform makes of its sums of many tensors.

    Raises:
        TypeError: not a graph.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"decompose_sum: a {type(graph).__name__}; a popxl.Graph is needed")
    return graph
