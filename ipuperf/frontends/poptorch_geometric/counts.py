"""Nodes and edges of a graph by type; a graph of one type has the type :data:`HOMOGENEOUS`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_geometric.data import Data, HeteroData

HOMOGENEOUS = ""


class Counts(dict[Any, int]):
    """A number for each type of nodes or edges."""

    def over(self, other: Counts) -> Counts:
        """How much more each number is than the other's of its type."""
        return Counts({kind: count - other.get(kind, 0) for kind, count in self.items()})


def node_counts(graph: Any) -> Counts:
    """Nodes of a graph by type."""
    if isinstance(graph, HeteroData):
        return Counts({kind: graph[kind].num_nodes for kind in graph.node_types})
    return Counts({HOMOGENEOUS: graph.num_nodes})


def edge_counts(graph: Any) -> Counts:
    """Edges of a graph by type."""
    if isinstance(graph, HeteroData):
        return Counts({kind: graph[kind].num_edges for kind in graph.edge_types})
    return Counts({HOMOGENEOUS: graph.num_edges})


def total(counts: Sequence[Counts]) -> Counts:
    """The sums over graphs."""
    return Counts({kind: sum(count.get(kind, 0) for count in counts) for kind in counts[0]})


def of_one_class(graphs: Sequence[Any]) -> None:
    """``TypeError`` unless all are ``Data`` or all ``HeteroData`` of PyTorch Geometric, ``ValueError`` without any."""
    if not graphs:
        raise ValueError("a batch of no graphs; expected at least one")
    for kind in (Data, HeteroData):
        if all(isinstance(graph, kind) for graph in graphs):
            return
    names = sorted({type(graph).__name__ for graph in graphs})
    raise TypeError(f"a batch holds {', '.join(names)}; expected graphs that are all Data or all HeteroData")
