"""The nearest of some points (``poptorch_geometric: ops/nearest.py``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .knn import nearest_points


def nearest(
    x: Tensor,
    y: Tensor,
    batch_x: Tensor | Sequence[int] | None = None,
    batch_y: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """For each point of ``x`` the number of the nearest point of ``y``, of the same graph if there are batches.

    Args:
        x, y: points, ``[N, features]`` and ``[M, features]``.
        batch_x, batch_y: the graphs of the points.

    Returns:
        ``[N]``.
    """
    of_y, of_x = (None if batch is None else torch.as_tensor(batch) for batch in (batch_y, batch_x))
    return nearest_points(y, x, 1, of_y, of_x, cosine=False, num_workers=1, batch_size=None)[1]
