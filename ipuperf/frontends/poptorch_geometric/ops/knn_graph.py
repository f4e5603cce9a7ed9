"""Graphs of nearest neighbours (``poptorch_geometric: ops/knn_graph.py``)."""

from __future__ import annotations

from torch import Tensor

from ipuperf.frontends.poptorch.errors import InputError

from .knn import nearest_points


def knn_graph(
    x: Tensor,
    k: int,
    batch: Tensor | None = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Edges between each point of ``x`` and its ``k`` nearest ones, with itself among them if ``loop``: ``[2, N k]``.

    ``flow`` says whether the neighbours are the sources of the edges (``source_to_target``) or their targets; for the
    other arguments see :func:`knn`.
    """
    if flow not in ("source_to_target", "target_to_source"):
        raise InputError(f"knn_graph: flow is {flow!r}; allowed: source_to_target, target_to_source")
    neighbours = nearest_points(x, x, k, batch, batch, cosine, num_workers, batch_size, itself=loop)
    return neighbours.flip(0) if flow == "source_to_target" else neighbours
