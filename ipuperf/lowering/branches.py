"""Which of two graphs takes longer, as far as that is certain before a simulation.

Steps on tiles alone have a known time. The time of collectives, host and Streaming Memory transfers and copies between
IPUs depends on links and other traffic. They are therefore not added up; their number and bytes are compared by kind. A
graph takes longer for certain if it has at least as much of every kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ipuperf.ir import Graph, IrError
from ipuperf.ops.base import Op

from .lowered import LoweredGraph

Amounts = dict[Graph, Counter[str]]
"""Amounts of work of each graph, by kind; computed once."""


def longer_of(op: Op, graphs: Sequence[LoweredGraph], known: Amounts) -> LoweredGraph:
    """The branch of ``op`` that takes longer; the first if they are equal.

    Raises:
        IrError: each branch has more of some kind than the other.
    """
    first_amounts, second_amounts = (_amounts(graph, known) for graph in graphs)
    # Enough of every kind: only then is the order certain, whatever the traffic.
    if all(first_amounts[key] >= amount for key, amount in second_amounts.items()):
        return graphs[0]
    if all(second_amounts[key] >= amount for key, amount in first_amounts.items()):
        return graphs[1]
    descriptions = "; ".join(
        f"{g.graph.name!r}: {_told(amounts)}"
        for g, amounts in zip(graphs, (first_amounts, second_amounts), strict=True)
    )
    raise IrError(
        f"{op.where()}: which branch takes longer cannot be said before they run ({descriptions}), and a program has "
        "one time whatever its data are; move what communicates out of the conditional, "
        "or into the branch with more work"
    )


def _amounts(lowered: LoweredGraph, known: Amounts) -> Counter[str]:
    """Amounts of a graph and the graphs it calls, on all IPUs, by kind."""
    if lowered.graph in known:
        return known[lowered.graph]
    totals = known[lowered.graph] = Counter()
    for lowered_op in lowered.ops:
        copies = (*lowered_op.copies.before.values(), *lowered_op.copies.after_trip.values())
        steps = [*lowered_op.steps.steps, *(step for copy_steps in copies for step in copy_steps)]
        for step in steps if lowered_op.shared is None else [*steps, lowered_op.shared]:
            for key, amount in step.amounts():
                totals[key] += amount
        for body, trips in lowered_op.calls:
            totals.update({key: trips * amount for key, amount in _amounts(body, known).items()})
    return totals


def _told(amounts: Counter[str]) -> str:
    return ", ".join(f"{key} {amount}" for key, amount in sorted(amounts.items()))
