"""``ops.remote_code_load``: code of graphs in Streaming Memory, which is not simulated."""

from __future__ import annotations

from ..context import gcg
from ..graph import Graph


def remote_code_load(graph: Graph, destination: str) -> None:
    """Load the code of ``graph`` from Streaming Memory (upstream).

    Raises:
        ValueError: the current graph, whose code runs at that moment, or an unknown destination;
        NotImplementedError: otherwise: all code stays in tile memory here, as long as the program runs.
    """
    if graph == gcg():
        raise ValueError(
            f"The remote_code_load op cannot load the code of graph {graph.name or 'main'!r} from within that graph"
        )
    if destination not in ("executable", "compute_buffer", "io_buffer"):
        raise ValueError(f"remote_code_load: destination {destination!r}; allowed: executable")
    raise NotImplementedError(
        f"remote_code_load of graph {graph.name!r}: code always stays in tile memory here; leave the call out"
    )
