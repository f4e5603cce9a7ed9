"""Loaders of graphs for a model's calls (``poptorch_geometric: dataloader.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data.sampler import RandomSampler, SequentialSampler
from torch_geometric.data import HeteroData

from ipuperf.frontends import poptorch
from ipuperf.frontends.poptorch.errors import require

from .collate import CombinedBatchingCollater, FixedSizeCollater
from .fixed_size_options import FixedSizeOptions
from .pyg_collate import Collater
from .pyg_dataloader import FixedSizeStrategy, OverSizeStrategy
from .stream_packing_sampler import StreamPackingSampler


class DataLoader(poptorch.DataLoader):
    """Joins graphs to batches as they are: a model takes them if all have one size.

    Args:
        dataset: graphs of PyTorch Geometric.
        batch_size: graphs of a micro-batch.
        shuffle: shuffle in every epoch.
        follow_batch: attributes that get a vector of the graph of each element.
        exclude_keys: attributes that are left out.
        options: of the model; by default new ones.
        kwargs: of :class:`poptorch.DataLoader <ipuperf.poptorch.DataLoader>`, but ``collate_fn``.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        options: poptorch.Options | None = None,
        **kwargs: Any,
    ) -> None:
        no_collate_fn(self, kwargs)
        collater = CombinedBatchingCollater(Collater(follow_batch, exclude_keys), batch_size)
        super().__init__(
            options or poptorch.Options(),
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            collate_fn=collater,
            **kwargs,
        )


class FixedSizeDataLoader(poptorch.DataLoader):
    """Joins graphs to batches that are padded to one size.

    Args:
        dataset: graphs of PyTorch Geometric.
        batch_size: graphs of a micro-batch, one at least of them padding.
        shuffle: shuffle in every epoch.
        fixed_size_options: sizes of a micro-batch; by default what any ``batch_size - 1`` graphs fit into.
        fixed_size_strategy: how many real graphs a micro-batch has.
        over_size_strategy: what happens to graphs that do not fit.
        add_pad_masks: add masks that say what is real (:class:`.FixedSizeCollater`).
        follow_batch: attributes that get a vector of the graph of each element.
        exclude_keys: attributes that are left out.
        options: of the model; by default new ones.
        kwargs: of :class:`poptorch.DataLoader <ipuperf.poptorch.DataLoader>`, but ``collate_fn``. A ``batch_sampler``
            gives the graphs of each micro-batch.

    Raises:
        AssertionError: ``batch_size`` is not the ``num_graphs`` of the options, or a ``collate_fn``.
        ValueError: ``StreamPack`` with a ``batch_sampler``, or ``Skip`` without ``StreamPack``.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 2,
        shuffle: bool = False,
        fixed_size_options: FixedSizeOptions | None = None,
        fixed_size_strategy: FixedSizeStrategy = FixedSizeStrategy.PadToMax,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.Error,
        add_pad_masks: bool = True,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        options: poptorch.Options | None = None,
        **kwargs: Any,
    ) -> None:
        no_collate_fn(self, kwargs)
        self.fixed_size_options = fixed_size_options or FixedSizeOptions.from_dataset(dataset, batch_size)
        sizes = self.fixed_size_options
        require(
            batch_size == sizes.num_graphs,
            "`num_graphs` in fixed size options must match provided batch size in dataloader. `num_graphs` is "
            f"{sizes.num_graphs} but batch size is {batch_size}.",
        )
        if isinstance(dataset[0], HeteroData):
            sizes.to_hetero(dataset[0].node_types, dataset[0].edge_types)
        self.padded_batch_size = batch_size
        if fixed_size_strategy is FixedSizeStrategy.StreamPack:
            if kwargs.get("batch_sampler") is not None:
                raise ValueError(f"{fixed_size_strategy} makes its own batches: without it, or without `batch_sampler`")
            skip = over_size_strategy is OverSizeStrategy.Skip
            kwargs["batch_sampler"] = _packing(dataset, sizes, shuffle, skip)
        elif over_size_strategy is OverSizeStrategy.Skip:
            raise ValueError(
                f"{over_size_strategy} needs FixedSizeStrategy.StreamPack: {fixed_size_strategy} has no other"
            )
        collater = FixedSizeCollater(
            sizes,
            add_pad_masks,
            over_size_strategy.trims_nodes,
            over_size_strategy.trims_edges,
            follow_batch,
            exclude_keys,
        )
        has_sampler = kwargs.get("batch_sampler") is not None
        super().__init__(
            options or poptorch.Options(),
            dataset,
            batch_size=1 if has_sampler else batch_size - 1,
            shuffle=False if has_sampler else shuffle,
            collate_fn=CombinedBatchingCollater(collater, None if has_sampler else batch_size - 1),
            **kwargs,
        )


def no_collate_fn(loader: object, kwargs: dict[str, Any]) -> None:
    """``AssertionError`` for a ``collate_fn``: a loader of graphs has its own."""
    name = type(loader).__name__
    require(
        "collate_fn" not in kwargs, f"Cannot set `collate_fn` with `{name}`, which has its own; see FixedSizeCollater"
    )


def _packing(dataset: Any, sizes: FixedSizeOptions, shuffle: bool, skip: bool) -> StreamPackingSampler:
    """A sampler that leaves a graph, a node and an edge for padding."""
    order = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    nodes, edges = sizes.total_num_nodes - 1, sizes.total_num_edges - 1
    return StreamPackingSampler(dataset, sizes.num_graphs - 1, nodes, edges, order, skip)
