"""Checks of operands for functions that make ops, as upstream's own functions use them (the module name is upstream's).

Source: popart: python/popxl/python_files/ops/utils.py.
"""

from __future__ import annotations

from ..graph import Graph
from ..handle import Tensor
from ..placement import place_of


def check_in_graph(graph: Graph, **tensors: Tensor) -> None:
    """ValueError unless all ``tensors`` belong to ``graph``."""
    for name, tensor in tensors.items():
        if tensor not in graph:
            owner = tensor._ir_tensor.graph.name or "main"
            raise ValueError(f"{name} {tensor.id!r} is of graph {owner!r}, not of {graph.name or 'main'!r}")


def check_tensor_ipu_and_tile_set(**tensors: Tensor) -> None:
    """ValueError unless all ``tensors`` are on one IPU and one tile set, as far as that is known of them."""
    places = {name: place_of(tensor._ir_tensor) for name, tensor in tensors.items()}
    for index, what in enumerate(("IPUs", "tile sets")):
        known = {name: place[index] for name, place in places.items() if place[index] is not None}
        if len(set(known.values())) > 1:
            listed = ", ".join(f"{name} on {place}" for name, place in known.items())
            raise ValueError(f"operands are on different {what}: {listed}")


__all__ = ["check_in_graph", "check_tensor_ipu_and_tile_set"]
