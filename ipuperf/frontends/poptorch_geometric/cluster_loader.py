"""Batches of clusters of one large graph (``poptorch_geometric: cluster_loader.py``)."""

from __future__ import annotations

from typing import Any

from torch_geometric.loader import ClusterData, ClusterLoader

from ipuperf.frontends import poptorch
from ipuperf.frontends.poptorch.errors import require

from .collate import CombinedBatchingCollater, FixedSizeCollater
from .fixed_size_options import FixedSizeOptions
from .pyg_dataloader import OverSizeStrategy


class FixedSizeClusterLoader(poptorch.DataLoader):
    """Joins clusters to one graph each time, and pads it to one size.

    Args:
        cluster_data: the graph in clusters.
        fixed_size_options: sizes of a micro-batch, of two graphs: the clusters' one, and that of padding.
        batch_size: clusters of a micro-batch.
        over_size_strategy: what happens if they do not fit.
        add_pad_masks: add masks that say what is real (:class:`.FixedSizeCollater`).
        options: of the model; by default new ones.
        kwargs: of :class:`poptorch.DataLoader <ipuperf.poptorch.DataLoader>`, but ``collate_fn``, ``batch_sampler``,
            ``shuffle`` and ``exclude_keys``.

    Raises:
        AssertionError: options for other than two graphs, or one of these arguments.
    """

    def __init__(
        self,
        cluster_data: ClusterData,
        fixed_size_options: FixedSizeOptions,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        add_pad_masks: bool = True,
        options: poptorch.Options | None = None,
        **kwargs: Any,
    ) -> None:
        refused = sorted({"collate_fn", "batch_sampler", "shuffle", "exclude_keys"} & set(kwargs))
        require(not refused, f"`FixedSizeClusterLoader` does not support the following arguments: {refused}.")
        require(
            fixed_size_options.num_graphs == 2,
            "The number of graphs in a batch specified by the fixed sized options must be 2 when using the "
            f"FixedSizeClusterLoader, currently it is set to {fixed_size_options.num_graphs}",
        )
        trims = (over_size_strategy.trims_nodes, over_size_strategy.trims_edges)
        fixed = FixedSizeCollater(fixed_size_options, add_pad_masks, *trims)
        join = ClusterLoader(cluster_data, batch_size=batch_size).collate_fn
        self.cluster_data = cluster_data
        super().__init__(
            options or poptorch.Options(),
            range(len(cluster_data)),
            batch_size=batch_size,
            collate_fn=CombinedBatchingCollater(lambda clusters: fixed([join(clusters)]), batch_size),
            **kwargs,
        )
