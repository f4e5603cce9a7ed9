"""How loaders make batches of one size (``poptorch_geometric: pyg_dataloader.py``)."""

from __future__ import annotations

from enum import Enum


class FixedSizeStrategy(Enum):
    """How many real graphs a batch has.

    - ``PadToMax``: always ``batch_size - 1``, and one graph of padding.
    - ``StreamPack``: as many as fit, taken in order; the other graphs are padding.
    """

    PadToMax = 0
    StreamPack = 1


class OverSizeStrategy(Enum):
    """What happens to graphs that do not fit into a batch.

    - ``Error``: an error.
    - ``Skip``: with ``StreamPack``, a graph that fits into no batch is left out.
    - ``TrimNodes``, ``TrimEdges``, ``TrimNodesAndEdges``: random nodes (edges) of the batch are left out.
    """

    Error = 0
    Skip = 1
    TrimNodes = 2
    TrimEdges = 3
    TrimNodesAndEdges = 4

    @property
    def trims_nodes(self) -> bool:
        """Whether nodes are left out."""
        return self in (OverSizeStrategy.TrimNodes, OverSizeStrategy.TrimNodesAndEdges)

    @property
    def trims_edges(self) -> bool:
        """Whether edges are left out."""
        return self in (OverSizeStrategy.TrimEdges, OverSizeStrategy.TrimNodesAndEdges)
