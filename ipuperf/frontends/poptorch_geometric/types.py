"""Graphs as arguments and results of models (``poptorch_geometric: types.py``)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch_geometric.data import HeteroData
from torch_geometric.data.data import BaseData

from ipuperf.frontends.poptorch.export.structure import ICustomArgParser, register_for_all_runs

_WITHIN = ("_slice_dict", "_inc_dict")
"""Where graphs begin in a batch on the host, for taking it apart: not true of the tensors of a call."""


class PyGArgsParser(ICustomArgParser):
    """The tensors of a graph or a batch: by name; of a heterogeneous one those of the whole first, then those of each
    type of nodes and of edges."""

    def yieldTensors(self, struct: BaseData) -> Iterator[torch.Tensor]:
        """The tensors, always in the same order.

        Raises:
            ValueError: no graph.
        """
        if not isinstance(struct, BaseData):
            raise ValueError(f"Unsupported data type: {type(struct)}")
        for store, key in _places(struct):
            yield store[key]

    def reconstruct(self, original_structure: BaseData, tensor_iterator: Iterator[torch.Tensor]) -> BaseData:
        """A graph like ``original_structure`` with other tensors; attributes that are no tensors are its own."""
        if not isinstance(original_structure, BaseData):
            raise ValueError(f"Unsupported data type: {type(original_structure)}")
        rebuilt = copy.copy(original_structure)
        for store, key in _places(rebuilt):
            store[key] = next(tensor_iterator)
        for name in _WITHIN:
            rebuilt.stores[0].__dict__.pop(name, None)
        return rebuilt


def registerCustomArgParsers() -> None:
    """Let models take and return graphs and batches of PyTorch Geometric."""
    register_for_all_runs(BaseData, PyGArgsParser())


def _places(graph: BaseData) -> list[tuple[Any, str]]:
    """Each tensor's store and name."""
    stores = [graph._global_store, *graph.node_stores, *graph.edge_stores] if isinstance(graph, HeteroData) else [graph]
    return [
        (store, key)
        for store in stores
        for key in sorted(store.keys(), key=str)
        if isinstance(store[key], torch.Tensor)
    ]
