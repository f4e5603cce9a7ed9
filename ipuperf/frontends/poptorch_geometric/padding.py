"""Graphs of padding: like the graphs of a batch, with as many nodes and edges as the batch lacks."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from enum import Enum
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import is_sparse

from .counts import HOMOGENEOUS, Counts
from .fixed_size_options import FixedSizeOptions

_MASKS = frozenset({"train_mask", "val_mask", "test_mask"})


class Level(Enum):
    """What an attribute has a value for."""

    NODE = "node"
    EDGE = "edge"
    GRAPH = "graph"


class PaddingGraphs:
    """Makes graphs of padding for a batch.

    A tensor that has a row for each node (edge) in all graphs of the batch has one for each node (edge) of padding;
    any other tensor is one value of a graph. Edges of padding join the first node of their graph with itself, so that
    they reach no real node.

    Args:
        graphs: the batch.
        options: what padding holds.
        labels: whether ``y`` belongs to nodes or to graphs; None: found as for other attributes.
        exclude: attributes that are left out.
    """

    def __init__(
        self, graphs: Sequence[Any], options: FixedSizeOptions, labels: Level | None, exclude: Container[str]
    ) -> None:
        self._graphs, self._options, self._labels, self._exclude = graphs, options, labels, exclude

    def make(self, nodes: Counts, edges: Counts) -> Any:
        """A graph with so many nodes and edges of each type."""
        example = self._graphs[0]
        if not isinstance(example, HeteroData):
            graph = Data()
            self._fill(graph, [g._store for g in self._graphs], nodes[HOMOGENEOUS], edges[HOMOGENEOUS])
            return graph
        graph = HeteroData()
        self._fill(graph._global_store, [g._global_store for g in self._graphs], None, None)
        for kind in example.node_types:
            self._fill(graph[kind], [g[kind] for g in self._graphs], nodes[kind], None)
        for kind in example.edge_types:
            self._fill(graph[kind], [g[kind] for g in self._graphs], None, edges[kind])
        return graph

    def _fill(self, graph: Any, stores: Sequence[Any], nodes: int | None, edges: int | None) -> None:
        """Give ``made`` the attributes that the stores of all graphs have."""
        sized = False
        for key, value in stores[0].items():
            if key in self._exclude:
                continue
            if not isinstance(value, torch.Tensor):
                graph[key] = nodes if key == "num_nodes" else self._options.pad_graph_defaults.get(key, value)
                continue
            level = self._level(key, stores)
            sized = sized or level is Level.NODE
            graph[key] = self._padding(key, value, level, nodes, edges)
        # Without a tensor of nodes PyTorch Geometric cannot tell how many there are.
        if nodes is not None and not sized:
            graph["num_nodes"] = nodes

    def _padding(self, key: str, value: torch.Tensor, level: Level, nodes: int | None, edges: int | None) -> Any:
        if is_sparse(value):
            raise TypeError(f"{key}: a sparse tensor has no fixed size; give the graph's edge_index instead")
        options = self._options
        if key == "edge_index":
            return value.new_zeros((2, edges or 0))
        if level is Level.GRAPH:
            return _filled(value, list(value.shape), options.graph_pad_value)
        shape = list(value.shape)
        axis = self._graphs[0].__cat_dim__(key, value)
        shape[axis] = nodes if level is Level.NODE else edges  # type: ignore[assignment]
        pad = options.node_pad_value if level is Level.NODE else options.edge_pad_value
        # A mask of padding selects nothing, whatever the value of padding.
        return _filled(value, shape, 0.0 if key in _MASKS else pad)

    def _level(self, key: str, stores: Sequence[Any]) -> Level:
        if key == "y" and self._labels is not None:
            return self._labels
        for level in (Level.NODE, Level.EDGE):
            answers = [getattr(store, f"is_{level.value}_attr", None) for store in stores]
            if all(ask is not None and key in store and ask(key) for ask, store in zip(answers, stores, strict=True)):
                return level
        return Level.GRAPH


def _filled(like: torch.Tensor, shape: Sequence[int], value: float) -> torch.Tensor:
    whole = not (like.is_floating_point() or like.is_complex())
    return like.new_full(tuple(shape), int(value) if whole else value)


def shares(count: int, parts: int) -> list[int]:
    """``count`` divided into ``parts`` that differ by at most one, the larger ones first."""
    least, more = divmod(count, parts)
    return [least + (part < more) for part in range(parts)]


def shared_out(nodes: Counts, edges: Counts, graphs: int) -> Iterator[tuple[Counts, Counts]]:
    """Nodes and edges of each of ``graphs`` graphs of padding; edges go where nodes at both ends are.

    Raises:
        RuntimeError: edges without a node that they could join.
    """
    node_shares = {kind: shares(count, graphs) for kind, count in nodes.items()}
    edge_shares = {}
    for kind, count in edges.items():
        ends = (kind[0], kind[-1]) if kind != HOMOGENEOUS else (kind,)
        # Larger shares come first, so the first graphs are those that have nodes of every kind.
        hosts = min(graphs, *(nodes[end] for end in ends))
        if count and not hosts:
            named = f" of type {kind}" if kind != HOMOGENEOUS else ""
            raise RuntimeError(
                f"The batch needs {count} edges of padding{named}, which join nodes of padding, but its nodes fill it: "
                "increase num_nodes of the fixed size options by at least 1"
            )
        edge_shares[kind] = [*shares(count, hosts), *[0] * (graphs - hosts)] if hosts else [0] * graphs
    for graph in range(graphs):
        yield (
            Counts({kind: share[graph] for kind, share in node_shares.items()}),
            Counts({kind: share[graph] for kind, share in edge_shares.items()}),
        )
