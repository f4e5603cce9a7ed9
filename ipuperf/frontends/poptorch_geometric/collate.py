"""Batches of one size (``poptorch_geometric: collate.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from ipuperf.frontends.poptorch.errors import require

from .counts import HOMOGENEOUS, Counts, edge_counts, node_counts, of_one_class, total
from .fixed_size_options import FixedSizeOptions
from .padding import Level, PaddingGraphs, shared_out
from .pyg_collate import Collater
from .trimming import trim_edges, trim_nodes
from .types import PyGArgsParser


def make_exclude_keys(include_keys: Iterable[str], data: Any) -> tuple[str, ...]:
    """The attributes of a graph other than these."""
    return tuple(sorted(set(data.keys()) - set(include_keys)))


class FixedSizeCollater(Collater):
    """Joins graphs to a batch and pads it to the sizes of ``fixed_size_options``.

    Args:
        fixed_size_options: nodes, edges and graphs of the batch, and what padding holds.
        add_masks_to_batch: add ``graphs_mask``, ``nodes_mask`` and ``edges_mask`` (of a heterogeneous batch: the latter
            two to each type), True for what is real.
        trim_nodes, trim_edges: leave out random nodes (edges) of a batch that has too many; otherwise it is an error.
        follow_batch: attributes that get a vector of the graph of each element.
        exclude_keys: attributes that are left out.
    """

    def __init__(
        self,
        fixed_size_options: FixedSizeOptions,
        add_masks_to_batch: bool = False,
        trim_nodes: bool = False,
        trim_edges: bool = False,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
    ) -> None:
        super().__init__(follow_batch, exclude_keys)
        self.opts = fixed_size_options
        self.add_masks_to_batch = add_masks_to_batch
        self.trim_nodes = trim_nodes
        self.trim_edges = trim_edges
        self._labels: Level | None = None

    def __call__(self, data_list: list[Any]) -> Any:
        """The batch of a list of graphs.

        Raises:
            TypeError: no list, or not of graphs of one class.
            ValueError: no graph.
            RuntimeError: more graphs, nodes or edges than fit, or nothing that could hold the padding.
            AssertionError: labels ``y`` are neither one for each node nor one for each graph.
        """
        if not isinstance(data_list, list):
            raise TypeError(f"Expected list, got {type(data_list).__name__}.")
        of_one_class(data_list)
        labels = self._label_level(data_list)
        padding = self._padding_count(len(data_list))
        graphs = self._fitted(data_list, padding)
        nodes, edges = self._missing(graphs)
        if any((*nodes.values(), *edges.values())) and not padding:
            raise RuntimeError(
                f"Requested to pad a batch to {self.opts.num_graphs} graphs but collater got a list of {len(graphs)} "
                "graphs and cannot create additional graphs to pad nodes and edges."
            )
        padding_graphs = PaddingGraphs(graphs, self.opts, labels, self.exclude_keys)
        padded = [padding_graphs.make(*share) for share in shared_out(nodes, edges, padding)] if padding else []
        batch = super().__call__([*graphs, *padded])
        if self.add_masks_to_batch:
            _add_masks(batch, len(graphs), nodes, edges)
        return batch

    def _padding_count(self, real: int) -> int:
        """Graphs of padding beside so many real ones."""
        if real > self.opts.num_graphs:
            raise RuntimeError(
                f"a batch of {real} graphs does not fit: {self.opts.num_graphs} graphs are allowed, one of them padding"
            )
        return self.opts.num_graphs - real

    def _fitted(self, graphs: Sequence[Any], padding: int) -> list[Any]:
        """The graphs, trimmed if that is asked for. A node stays free for padding, which edges of padding join."""
        fitted = list(graphs)
        nodes, edges = self.opts.limits(graphs[0])
        if self.trim_nodes and any(missing < 0 for missing in self._missing(fitted)[0].values()):
            fitted = trim_nodes(fitted, Counts({kind: limit - (padding > 0) for kind, limit in nodes.items()}))
        if self.trim_edges and any(missing < 0 for missing in self._missing(fitted)[1].values()):
            fitted = trim_edges(fitted, edges)
        missing_nodes, missing_edges = self._missing(fitted)
        _check_room("nodes", missing_nodes, nodes, len(fitted))
        _check_room("edges", missing_edges, edges, len(fitted))
        return fitted

    def _missing(self, graphs: Sequence[Any]) -> tuple[Counts, Counts]:
        """Nodes and edges that the batch lacks; negative if it has too many."""
        nodes, edges = self.opts.limits(graphs[0])
        return (
            nodes.over(total([node_counts(graph) for graph in graphs])),
            edges.over(total([edge_counts(graph) for graph in graphs])),
        )

    def _label_level(self, graphs: Sequence[Any]) -> Level | None:
        """Whether the labels ``y`` of this batch, or else of one before, belong to nodes or to graphs."""
        if not isinstance(graphs[0], Data) or getattr(graphs[0], "y", None) is None:
            return None
        rows = [graph.y.shape[0] if graph.y.dim() else 0 for graph in graphs]
        of_nodes = all(count == graph.num_nodes for count, graph in zip(rows, graphs, strict=True))
        of_graphs = all(count == 1 for count in rows)
        # Where both fit, the batch does not tell them apart, and what an earlier one told holds.
        if of_nodes != of_graphs:
            self._labels = Level.NODE if of_nodes else Level.GRAPH
        require(
            (of_nodes or of_graphs) and self._labels is not None,
            "Incorrect input data. The size of the shape of labels `y` must be either the number of nodes or the "
            f"number of graphs (1 for each graph); this batch has {rows}",
        )
        return self._labels


def _check_room(subject: str, missing: Counts, limits: Counts, graphs: int) -> None:
    for kind, count in missing.items():
        if count < 0:
            named = f" of type {kind}" if kind != HOMOGENEOUS else ""
            raise RuntimeError(
                f"{graphs} graphs do not fit into the batch: {limits[kind]} {subject}{named} are allowed, {-count} "
                f"more are needed. Allow more, or set `trim_{subject}`, which leaves out what is too much."
            )


def _add_masks(batch: Any, graphs: int, nodes: Counts, edges: Counts) -> None:
    """Say what is real: the first ``graphs`` graphs, and all but so many nodes and edges at the end."""
    batch.graphs_mask = torch.arange(batch.num_graphs) < graphs
    for name, missing, counts in (("nodes_mask", nodes, node_counts(batch)), ("edges_mask", edges, edge_counts(batch))):
        for kind, count in counts.items():
            store = batch[kind] if isinstance(batch, HeteroData) else batch
            setattr(store, name, torch.arange(count) < count - missing[kind])


class CombinedBatchingCollater:
    """Collates the graphs of one call of a model: micro-batch by micro-batch, their tensors joined along axis 0.

    Args:
        collater: of one micro-batch.
        mini_batch_size: graphs that a micro-batch is made of; None: all that are given make one.
    """

    def __init__(self, collater: Callable[[list[Any]], Any], mini_batch_size: int | None = None) -> None:
        self.collater = collater
        self.mini_batch_size = mini_batch_size
        self.parser = PyGArgsParser()

    def __call__(self, batch: list[Any]) -> Any:
        """The joined batch of a list of graphs."""
        size = len(batch) if self.mini_batch_size is None else self.mini_batch_size
        require(len(batch) % size == 0, f"Invalid batch size. Got {len(batch)} graphs and `mini_batch_size={size}`.")
        batches = [self.collater(batch[start : start + size]) for start in range(0, len(batch), size)]
        tensors = zip(*(self.parser.yieldTensors(b) for b in batches), strict=True)
        return self.parser.reconstruct(batches[0], (torch.cat(parts) for parts in tensors))
