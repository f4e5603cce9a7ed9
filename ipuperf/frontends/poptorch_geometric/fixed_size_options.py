"""How large a padded batch is (``poptorch_geometric: fixed_size_options.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from torch_geometric.data import HeteroData
from tqdm import tqdm

from .counts import HOMOGENEOUS, Counts, edge_counts, node_counts

Size = int | dict[Any, int]


class FixedSizeOptions:
    """Sizes of the batches of a loader, and what their padding holds.

    Args:
        num_nodes: nodes of a batch, those of padding included; for graphs of several types a number for each type, or
            one for all.
        num_edges: edges of a batch likewise; by default those of a graph without self-loops that has all edges.
        num_graphs: graphs of a batch; at least one of them is padding.
        node_pad_value, edge_pad_value, graph_pad_value: what features of padding hold; 0.0 by default.
        pad_graph_defaults: what attributes of padding graphs that are no tensors hold; by default what the first graph
            of the batch holds.

    Raises:
        ValueError: fewer than two graphs, or a size below 1.
    """

    def __init__(
        self,
        num_nodes: Size,
        num_edges: Size | None = None,
        num_graphs: int = 2,
        node_pad_value: float | None = None,
        edge_pad_value: float | None = None,
        graph_pad_value: float | None = None,
        pad_graph_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        _check_graphs(num_graphs)
        self.num_nodes = num_nodes
        whole = _total(num_nodes)
        self.num_edges: Size = num_edges or whole * (whole - 1)
        self.num_graphs = num_graphs
        self.node_pad_value = node_pad_value or 0.0
        self.edge_pad_value = edge_pad_value or 0.0
        self.graph_pad_value = graph_pad_value or 0.0
        self.pad_graph_defaults = dict(pad_graph_defaults or {})
        for name, size in (("num_nodes", num_nodes), ("num_edges", self.num_edges)):
            least = min(size.values(), default=0) if isinstance(size, dict) else size
            if least < (name == "num_nodes"):
                raise ValueError(f"FixedSizeOptions: {name} is {size}, expected at least {int(name == 'num_nodes')}")

    def is_hetero(self) -> bool:
        """Whether nodes and edges have a size for each of their types."""
        return isinstance(self.num_nodes, dict) and isinstance(self.num_edges, dict)

    def to_hetero(self, node_types: Sequence[Any], edge_types: Sequence[Any]) -> FixedSizeOptions:
        """Give each type the size that was given for all; returns itself."""
        if not isinstance(self.num_nodes, dict):
            self.num_nodes = dict.fromkeys(node_types, self.num_nodes)
        if not isinstance(self.num_edges, dict):
            self.num_edges = dict.fromkeys(edge_types, self.num_edges)
        return self

    @property
    def total_num_nodes(self) -> int:
        """Nodes of all types."""
        return _total(self.num_nodes)

    @property
    def total_num_edges(self) -> int:
        """Edges of all types."""
        return _total(self.num_edges)

    @classmethod
    def from_dataset(
        cls, dataset: Any, batch_size: int, sample_limit: int | None = None, progress_bar: bool | None = None
    ) -> FixedSizeOptions:
        """Sizes that any ``batch_size - 1`` graphs of a data set fit into, with one node and edge of padding.

        Args:
            dataset: of graphs of PyTorch Geometric.
            batch_size: graphs of a batch, one of them padding.
            sample_limit: look at so many graphs from the start only; by default at all.
            progress_bar: show how far this is; by default for more than 10,000 graphs.
        """
        _check_graphs(batch_size)
        count = len(dataset) if sample_limit is None else min(sample_limit, len(dataset))
        shown = count > 10_000 if progress_bar is None else progress_bar
        nodes, edges = _largest(tqdm(islice(dataset, count), total=count, disable=not shown))
        return cls(
            _plain({kind: size * (batch_size - 1) + 1 for kind, size in nodes.items()}),
            _plain({kind: size * (batch_size - 1) + 1 for kind, size in edges.items()}),
            batch_size,
        )

    @classmethod
    def from_loader(cls, loader: Iterable[Any], sample_limit: int = 1000) -> FixedSizeOptions:
        """Sizes of the largest batch among ``sample_limit`` of a loader, with a node, an edge and a graph of padding.

        The loader is iterated again until so many are seen. Batches that come later may be larger.
        """
        nodes, edges, graphs, seen = Counts(), Counts(), 0, 0
        while seen < sample_limit:
            previous = seen
            for batch in islice(loader, sample_limit - seen):
                _raise_to(nodes, node_counts(batch))
                _raise_to(edges, edge_counts(batch))
                graphs = max(graphs, getattr(batch, "num_graphs", 1))
                seen += 1
            if seen == previous:
                raise ValueError("FixedSizeOptions.from_loader: the loader gives no batch")
        return cls(
            _plain({kind: size + 1 for kind, size in nodes.items()}),
            _plain({kind: size + 1 for kind, size in edges.items()}),
            graphs + 1,
        )

    def limits(self, graph: Any) -> tuple[Counts, Counts]:
        """Nodes and edges of a batch for each type that ``graph`` has.

        Raises:
            AssertionError: the options have no size for a type.
        """
        if not isinstance(graph, HeteroData):
            return Counts({HOMOGENEOUS: self.total_num_nodes}), Counts({HOMOGENEOUS: self.total_num_edges})
        self.to_hetero(graph.node_types, graph.edge_types)
        assert isinstance(self.num_nodes, dict)
        assert isinstance(self.num_edges, dict)
        return (
            _of_types(self.num_nodes, graph.node_types, "Node", "num_nodes"),
            _of_types(self.num_edges, graph.edge_types, "Edge", "num_edges"),
        )

    def __repr__(self) -> str:
        reserved = {"num_nodes": "node", "num_edges": "edge", "num_graphs": "graph"}
        shown = []
        for name in (*reserved, "node_pad_value", "edge_pad_value", "graph_pad_value", "pad_graph_defaults"):
            remark = f" (At least one {reserved[name]} reserved for padding)" if name in reserved else ""
            shown.append(f"{name}={getattr(self, name)}{remark}")
        return f"FixedSizeOptions({', '.join(shown)})"


def _check_graphs(count: int) -> None:
    if count < 2:
        raise ValueError(
            f"The number of graphs in the batch must be at least 2 (one real graph, one of padding); {count} given"
        )


def _total(size: Size) -> int:
    return sum(size.values()) if isinstance(size, dict) else size


def _largest(graphs: Iterable[Any]) -> tuple[Counts, Counts]:
    nodes, edges = Counts(), Counts()
    for graph in graphs:
        _raise_to(nodes, node_counts(graph))
        _raise_to(edges, edge_counts(graph))
    if not nodes:
        raise ValueError("FixedSizeOptions.from_dataset: the data set is empty")
    return nodes, edges


def _raise_to(largest: Counts, counts: Counts) -> None:
    for kind, count in counts.items():
        largest[kind] = max(largest.get(kind, 0), count)


def _plain(counts: dict[Any, int]) -> Size:
    """One number for graphs of one type."""
    return counts.get(HOMOGENEOUS, counts)


def _of_types(sizes: dict[Any, int], types: Sequence[Any], subject: str, option: str) -> Counts:
    for kind in types:
        if kind not in sizes:
            raise AssertionError(
                f"FixedSizeOptions.{option} has no size for {subject.lower()} type {kind}, which the data has; it has "
                f"sizes for {list(sizes)}"
            )
    return Counts({kind: sizes[kind] for kind in types})
