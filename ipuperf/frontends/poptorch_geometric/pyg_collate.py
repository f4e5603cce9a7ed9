"""PyTorch Geometric's collater with all its arguments optional (``poptorch_geometric: pyg_collate.py``)."""

from __future__ import annotations

from collections.abc import Sequence

from torch_geometric.loader.dataloader import Collater as _PyGCollater


class Collater(_PyGCollater):
    """Joins graphs to one batch.

    Args:
        follow_batch: attributes that get a vector of the graph of each element.
        exclude_keys: attributes that are left out.
    """

    def __init__(self, follow_batch: Sequence[str] | None = None, exclude_keys: Sequence[str] | None = None) -> None:
        super().__init__(None, list(follow_batch or ()), list(exclude_keys or ()))
