"""Leaving out random nodes or edges of graphs that are too large for a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch_geometric.data import HeteroData

from .counts import HOMOGENEOUS, Counts, edge_counts, node_counts


def trim_nodes(graphs: Sequence[Any], limits: Counts) -> list[Any]:
    """The graphs with at most ``limits`` nodes in all, and the edges between them; none loses its last node of a type.

    Raises:
        RuntimeError: fewer nodes than graphs are allowed.
    """
    return _trimmed(graphs, limits, [node_counts(graph) for graph in graphs], "nodes", lambda g: g.subgraph)


def trim_edges(graphs: Sequence[Any], limits: Counts) -> list[Any]:
    """The graphs with at most ``limits`` edges in all; none loses its last edge of a type.

    Raises:
        RuntimeError: fewer edges than graphs with edges are allowed.
    """
    return _trimmed(graphs, limits, [edge_counts(graph) for graph in graphs], "edges", lambda g: g.edge_subgraph)


def _trimmed(
    graphs: Sequence[Any],
    limits: Counts,
    counts: Sequence[Counts],
    subject: str,
    cut: Callable[[Any], Callable[..., Any]],
) -> list[Any]:
    masks: list[dict[Any, torch.Tensor]] = [{} for _ in graphs]
    for kind, limit in limits.items():
        sizes = [count.get(kind, 0) for count in counts]
        if sum(sizes) > limit:
            for mask, choice in zip(masks, _kept(sizes, limit, subject), strict=True):
                mask[kind] = choice
    trimmed = []
    for graph, mask in zip(graphs, masks, strict=True):
        hetero = isinstance(graph, HeteroData)
        trimmed.append(cut(graph)(mask if hetero else mask[HOMOGENEOUS]) if mask else graph)
    return trimmed


def _kept(sizes: Sequence[int], limit: int, kind: str) -> list[torch.Tensor]:
    """For each graph which of its elements stay, ``limit`` in all, one at least of each graph that has any."""
    holders = sum(size > 0 for size in sizes)
    if limit < holders:
        raise RuntimeError(
            f"{limit} {kind} cannot be shared by {holders} graphs: each graph keeps at least one of its {kind}"
        )
    free = torch.ones(sum(sizes), dtype=torch.bool)
    start = 0
    for size in sizes:
        if size:
            free[start + int(torch.randint(size, ()))] = False
        start += size
    candidates = free.nonzero().flatten()
    choice = torch.ones_like(free)
    choice[candidates[torch.randperm(len(candidates))[: sum(sizes) - limit]]] = False
    return list(choice.split(list(sizes)))
