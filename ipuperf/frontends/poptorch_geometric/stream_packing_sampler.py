"""Batches of as many graphs as fit (``poptorch_geometric: stream_packing_sampler.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from functools import cached_property
from typing import Any

from torch.utils.data.sampler import RandomSampler, Sampler, SequentialSampler


class UnknownLengthError(NotImplementedError, TypeError):
    """The number of batches is not known: what upstream raises, and what ``list`` and progress bars understand."""


class StreamPackingSampler(Sampler[list[int]]):
    """Takes graphs in order and begins a new batch when the next one does not fit.

    A graph fits if the batch then has no more graphs, nodes and edges than allowed, and keeps a node and an edge for
    each graph that may still come: these may all be padding.

    Args:
        data_source: the graphs.
        max_num_graphs: of a batch.
        max_num_nodes, max_num_edges: of a batch; by default ``max_num_graphs`` times those of the largest graph.
        base_sampler: the order of the graphs, any iterable of indices with a length; by default as they are.
        allow_skip_data: leave out a graph that fits into no batch; otherwise it is an error.

    Raises:
        ValueError: limits without room for ``max_num_graphs`` graphs, or an empty ``base_sampler``.
    """

    def __init__(
        self,
        data_source: Any,
        max_num_graphs: int,
        max_num_nodes: int | None = None,
        max_num_edges: int | None = None,
        base_sampler: Iterable[int] | None = None,
        allow_skip_data: bool = False,
    ) -> None:
        for name, value, least in (
            ("max_num_graphs", max_num_graphs, 1),
            ("max_num_nodes", max_num_nodes, max_num_graphs),
            ("max_num_edges", max_num_edges, max_num_graphs),
        ):
            if (value is None and name == "max_num_graphs") or (value is not None and value < least):
                raise ValueError(f"Invalid value for `{name}`: {value!r}, expected at least {least}")
        if isinstance(base_sampler, Sized) and len(base_sampler) == 0:
            raise ValueError(f"The `base_sampler` {base_sampler} is invalid: its length is 0")
        self.data_source = data_source
        self.max_num_graphs = max_num_graphs
        self.max_num_nodes = max_num_nodes or max_num_graphs * max(graph.num_nodes for graph in data_source)
        self.max_num_edges = max_num_edges or max_num_graphs * max(graph.num_edges for graph in data_source)
        self.base_sampler: Iterable[int] = SequentialSampler(data_source) if base_sampler is None else base_sampler
        self.allow_skip_data = allow_skip_data

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        nodes = edges = 0
        for index in self.base_sampler:
            graph = self.data_source[index]
            if batch and not self._fits(len(batch), nodes + graph.num_nodes, edges + graph.num_edges):
                yield batch
                batch, nodes, edges = [], 0, 0
            # A graph may not fit into an empty batch either.
            if self._fits(len(batch), nodes + graph.num_nodes, edges + graph.num_edges):
                batch.append(index)
                nodes, edges = nodes + graph.num_nodes, edges + graph.num_edges
            elif not self.allow_skip_data:
                raise RuntimeError(
                    f"The sample {index} with {graph.num_nodes} nodes and {graph.num_edges} edges fits into no batch "
                    f"of {self.max_num_graphs} graphs, {self.max_num_nodes} nodes and {self.max_num_edges} edges (a "
                    "node and an edge are kept for each further graph). If it shall be left out, use `allow_skip_data`."
                )
        if batch:
            yield batch

    def __len__(self) -> int:
        """Batches of an epoch.

        Raises:
            UnknownLengthError: the order is random, so that the number of batches differs.
        """
        if isinstance(self.base_sampler, RandomSampler):
            raise UnknownLengthError(
                "StreamPackingSampler: the number of batches is not known with a `RandomSampler`, whose order differs "
                "in every epoch; do without the length"
            )
        return self._length

    @cached_property
    def _length(self) -> int:
        return sum(1 for _ in self)

    def _fits(self, graphs: int, nodes: int, edges: int) -> bool:
        """Whether one graph more than ``graphs``, with so many nodes and edges in all then, leaves room for padding."""
        left = self.max_num_graphs - graphs - 1
        return left >= 0 and self.max_num_nodes - nodes >= left and self.max_num_edges - edges >= left
