"""What stands for a graph or for its gradient in the interface of addons.

Source: popxl-addons: popxl_addons/graph_common.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Union

from ipuperf.base.kinds import told
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.transforms.autodiff import GradGraphInfo

if TYPE_CHECKING:
    from .graph import BoundGraph, GraphWithNamedArgs

GraphLike = Union[popxl.Graph, "GraphWithNamedArgs", "BoundGraph"]
GradGraphInfoLike = Union[GradGraphInfo, "GraphWithNamedArgs"]
CalledGraphsGradInfoLike = Mapping[GraphLike, GradGraphInfoLike]
CalledGraphsGradInfo = Mapping[popxl.Graph, GradGraphInfo]


def plain_graph(graph: GraphLike) -> popxl.Graph:
    """The graph itself; TypeError for what is none."""
    plain = graph if isinstance(graph, popxl.Graph) else getattr(graph, "graph", None)
    if not isinstance(plain, popxl.Graph):
        raise TypeError(f"{told(graph)} is no graph; a popxl.Graph or a popxl_addons.GraphWithNamedArgs is needed")
    return plain


class CalledGradients(dict[popxl.Graph, GradGraphInfo]):
    """Gradients of graphs, used where a graph that calls them is differentiated.

    Args:
        known: to begin with; graphs and gradients in any of the forms above.
    """

    def __init__(self, known: CalledGraphsGradInfoLike | None = None) -> None:
        super().__init__()
        self.add_submap(known or {})

    def add(self, fwd_graph: GraphLike, grad_graph: GradGraphInfoLike) -> None:
        """The gradient of ``fwd_graph``, instead of one that was known before."""
        info = grad_graph if isinstance(grad_graph, GradGraphInfo) else grad_graph.grad_graph_info
        self[plain_graph(fwd_graph)] = info

    def add_submap(self, called_graphs_grad_info: CalledGraphsGradInfoLike) -> None:
        """All of another collection."""
        for graph, info in called_graphs_grad_info.items():
            self.add(graph, info)

    def consolidate(self) -> dict[popxl.Graph, GradGraphInfo]:
        """A plain dictionary of the same."""
        return dict(self)


__all__ = ["CalledGradients", "CalledGraphsGradInfo", "CalledGraphsGradInfoLike", "GradGraphInfoLike", "GraphLike"]
