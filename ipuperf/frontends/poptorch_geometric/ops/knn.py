"""Nearest neighbours in a fixed number (``poptorch_geometric: ops/knn.py``)."""

from __future__ import annotations

import torch
from torch import Tensor

from ipuperf.frontends.poptorch.errors import InputError, UnsupportedError


def knn(
    x: Tensor,
    y: Tensor,
    k: int,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """The ``k`` points of ``x`` nearest to each point of ``y``, of the same graph if there are batches.

    Args:
        x, y: points, ``[N, features]`` and ``[M, features]``.
        k: neighbours of each, which every graph must have.
        batch_x, batch_y: the graphs of the points.
        cosine: unsupported.
        num_workers, batch_size: need not be given: there are no workers, and all distances are computed.

    Returns:
        int32 ``[2, M k]``: points of ``y``, and their neighbours, the nearest first.
    """
    return nearest_points(x, y, k, batch_x, batch_y, cosine, num_workers, batch_size)


def nearest_points(
    x: Tensor,
    y: Tensor,
    k: int,
    batch_x: Tensor | None,
    batch_y: Tensor | None,
    cosine: bool,
    num_workers: int,
    batch_size: int | None,
    itself: bool = True,
) -> Tensor:
    """:func:`knn`, without a point itself among its neighbours if not ``itself`` (then ``y`` is ``x``)."""
    if cosine:
        raise UnsupportedError(
            "knn: cosine=True is unsupported; scale the points to length 1, which gives the same order"
        )
    if num_workers < 1 or (batch_size is not None and batch_size < 1):
        raise InputError(f"knn: num_workers is {num_workers}, batch_size {batch_size}; expected at least 1")
    if k > len(x) - (not itself):
        raise InputError(f"knn: k is {k}, but there are {len(x) - (not itself)} points to choose from")
    left, right = (points.view(-1, 1) if points.dim() == 1 else points for points in (y, x))
    distances = ((left[:, None, :] - right[None, :, :]) ** 2).sum(-1)
    if batch_x is not None or batch_y is not None:
        graphs = [
            torch.zeros(len(points), dtype=torch.int32) if batch is None else batch
            for points, batch in ((y, batch_y), (x, batch_x))
        ]
        distances = torch.where(graphs[0][:, None] == graphs[1][None, :], distances, torch.inf)
    if not itself:
        distances = torch.where(torch.eye(len(x), dtype=torch.bool), torch.inf, distances)
    columns = distances.topk(k, 1, largest=False).indices
    rows = torch.arange(len(y), dtype=columns.dtype)[:, None].expand(-1, k)
    return torch.stack([rows.reshape(-1), columns.reshape(-1)])
