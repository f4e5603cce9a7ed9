"""``ops.remote_code_load``: code of graphs that waits in Streaming Memory until it is loaded."""

from __future__ import annotations

from ipuperf import ops as _k
from ipuperf.base.near_names import instead_of

from ..arguments import checked_arguments
from ..context import gcg
from ..graph import Graph
from .operands import create

_LOCATIONS = ("executable", "compute_buffer", "io_buffer")


@checked_arguments
def remote_code_load(graph: Graph, destination: str) -> None:
    """Load the code of ``graph`` from Streaming Memory to where it is executed; see :class:`ipuperf.ops.RemoteCodeLoad`
    for what it costs. Its order among the calls of the graph is for ``popxl.in_sequence`` to say.

    Raises:
        ValueError: the current graph, whose code runs at that moment, or an unknown destination; NotImplementedError:
            a destination that upstream does not support either.
    """
    if graph == gcg():
        raise ValueError(
            f"The remote_code_load op cannot load the code of graph {graph.name or 'main'!r} from within that graph"
        )
    if destination not in _LOCATIONS:
        raise ValueError(f"remote_code_load: destination {destination!r}{instead_of(destination, _LOCATIONS)}")
    if destination != "executable":
        raise NotImplementedError(
            f"remote_code_load of graph {graph.name!r}: destination {destination!r} is not supported; allowed: "
            "executable"
        )
    create(_k.RemoteCodeLoad, [], [], code=graph._base)
