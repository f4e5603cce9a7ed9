"""Batches of sampled neighbourhoods of one large graph (``poptorch_geometric: neighbor_loader.py``)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch_geometric.loader import NeighborLoader
from torch_geometric.loader.utils import get_input_nodes

from ipuperf.frontends import poptorch

from .collate import CombinedBatchingCollater, FixedSizeCollater
from .dataloader import no_collate_fn
from .fixed_size_options import FixedSizeOptions
from .pyg_dataloader import OverSizeStrategy

_NOT_TENSORS = ("batch_size", "input_id")


class FixedSizeNeighborLoader(poptorch.DataLoader):
    """Samples neighbourhoods of nodes as PyTorch Geometric's ``NeighborLoader`` does, and pads them to one size.

    How many nodes a micro-batch began with is ``batch["batch_size"]`` (of a heterogeneous graph: of their type), which
    is not ``batch.batch_size``, PyTorch Geometric's name for the graphs of a batch.

    Args:
        data: the graph.
        num_neighbors: how many neighbours of each node are sampled, hop by hop.
        input_nodes: the nodes that micro-batches begin with; by default all.
        batch_size: such nodes of a micro-batch.
        over_size_strategy: what happens if a neighbourhood does not fit.
        fixed_size_options: sizes of a micro-batch; by default those of sampled ones
            (:meth:`.FixedSizeOptions.from_loader`).
        add_pad_masks: add masks that say what is real (:class:`.FixedSizeCollater`).
        follow_batch: attributes that get a vector of the graph of each element.
        exclude_keys: attributes that are left out.
        options: of the model; by default new ones.
        kwargs: of ``NeighborLoader``, or of :class:`poptorch.DataLoader <ipuperf.poptorch.DataLoader>`.

    Raises:
        ImportError: PyTorch Geometric finds no library that samples (``pyg-lib`` or ``torch-sparse``) and no
            ``neighbor_sampler`` was given.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        fixed_size_options: FixedSizeOptions | None = None,
        add_pad_masks: bool = True,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        options: poptorch.Options | None = None,
        **kwargs: Any,
    ) -> None:
        no_collate_fn(self, kwargs)
        known = set(inspect.signature(NeighborLoader.__init__).parameters)
        sampling = {name: kwargs.pop(name) for name in sorted(known & set(kwargs))}
        self._neighbors = NeighborLoader(data, num_neighbors, input_nodes, batch_size=batch_size, **sampling)
        self._kind, *targets = get_input_nodes(data, input_nodes)[:2]
        nodes = next(index for index in targets if index is not None)
        sizes = fixed_size_options or FixedSizeOptions.from_loader(self._neighbors)
        trims = (over_size_strategy.trims_nodes, over_size_strategy.trims_edges)
        self._fixed = FixedSizeCollater(sizes, add_pad_masks, *trims, follow_batch, exclude_keys)
        super().__init__(
            options or poptorch.Options(),
            range(len(nodes)),
            batch_size=batch_size,
            collate_fn=CombinedBatchingCollater(self._sampled, batch_size),
            **kwargs,
        )

    def _sampled(self, indices: list[int]) -> Any:
        """The padded neighbourhood of these nodes, with their number and indices as the sampler gives them."""
        graph = self._neighbors(indices)
        aside = graph[self._kind] if self._kind else graph
        constants = {name: aside[name] for name in _NOT_TENSORS if name in aside}
        for name in constants:
            del aside[name]
        batch = self._fixed([graph])
        for name, value in constants.items():
            (batch[self._kind] if self._kind else batch)[name] = value
        return batch
