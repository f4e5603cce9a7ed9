"""Which of two graphs takes longer, as far as that is plain before a simulation.

What tiles do alone has a known time. Collectives, transfers of Streaming Memory, of the host and between IPUs take as
long as links and other traffic let them, so they are not added up but compared: by kind, how many there are and how
many bytes they move. A graph takes longer for certain if it has at least as much of everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ipuperf.ir import Graph, IrError
from ipuperf.ops.base import Op

from .lowered import LoweredGraph

Known = dict[Graph, Counter[str]]
"""What graphs do, by kind, found out once."""


def longer_of(op: Op, graphs: Sequence[LoweredGraph], known: Known) -> LoweredGraph:
    """The one of two branches of ``op`` that takes longer; of equal ones the first.

    Raises:
        IrError: the one has more of something, the other of something else.
    """
    first, second = (_amounts(graph, known) for graph in graphs)
    if all(first[key] >= amount for key, amount in second.items()):
        return graphs[0]
    if all(second[key] >= amount for key, amount in first.items()):
        return graphs[1]
    told = "; ".join(f"{g.graph.name!r}: {_told(own)}" for g, own in zip(graphs, (first, second), strict=True))
    raise IrError(
        f"{op.where()}: which branch takes longer cannot be said before they run ({told}), and a program has one time "
        "whatever its data are; move what communicates out of the conditional, or into the branch with more work"
    )


def _amounts(lowered: LoweredGraph, known: Known) -> Counter[str]:
    """What a graph and the graphs below it do, on all IPUs, by kind."""
    if lowered.graph in known:
        return known[lowered.graph]
    found = known[lowered.graph] = Counter()
    for item in lowered.ops:
        copies = (*item.copies.before.values(), *item.copies.after_trip.values())
        own = [*item.steps.steps, *(step for steps in copies for step in steps)]
        for step in own if item.shared is None else [*own, item.shared]:
            for key, amount in step.amounts():
                found[key] += amount
        for body, trips in item.calls:
            found.update({key: trips * amount for key, amount in _amounts(body, known).items()})
    return found


def _told(amounts: Counter[str]) -> str:
    return ", ".join(f"{key} {amount}" for key, amount in sorted(amounts.items()))
