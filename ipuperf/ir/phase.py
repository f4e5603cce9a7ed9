"""What each op is for: forward, recomputation, backward, weight update, I/O.

Whoever makes an op says so: an op class that can only be one thing (:attr:`Op.own_phase`: host and remote I/O, the
optimisers' ops), the context in which it is made (:meth:`BuildContext.phase`: autodiff, recomputation, pipelines,
optimisers), or the graph in which it is made (:attr:`Graph.phase`: the gradient graphs). Names say nothing.

Nobody says it of the ops that a PopXL user writes. :func:`phases_of` follows the data there, as a reader would:

- an op that reads a gradient (what a backward op makes or changes, also inside of a call, and what is computed from
  that) is backward; if by that it changes a tensor that is no gradient, it is an update;
- a call or loop is what its graph was made for, or what the ops of its graph are, when they are all one thing;
  ``other`` when they are several. I/O does not count there, nor do ops of which nobody says anything and that make
  integers only (counters, entries of remote buffers): loads, calls of a gradient graph and stores are a backward loop;
- everything else is what its graph is called for, when all calls of it are for one thing, and forward otherwise.

A gradient that goes by way of a remote buffer is not followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from .graph import calling
from .schedule import changes, roots, schedule

if TYPE_CHECKING:
    from .graph import Graph
    from .op import Op
    from .tensor import Tensor

Phase = Literal["fwd", "recompute", "bwd", "update", "io", "other"]
"""What an op is for; the words are those of traces (``ipuperf.trace.PHASES``)."""

_Found = dict["Op", "Phase | None"]


class _Followed(NamedTuple):
    """Phases of the ops of a graph as far as it and what it calls tell, and the gradients that are made or changed
    in it (owners of their storage)."""

    phases: _Found
    gradients: set[Tensor]


def phases_of(graph: Graph) -> Mapping[Op, Phase]:
    """The phase of each op that ``graph`` executes when it is called for nothing in particular; those of called graphs
    included."""
    return _final(_followed(graph))


def _followed(main: Graph) -> dict[Graph, _Followed]:
    """What is known of a graph and of what it calls; callers come after what they call."""
    found: dict[Graph, _Followed] = {}
    waiting = [main]
    while waiting:
        graph = waiting[-1]
        calls = [callee for callee in graph.called_graphs() if callee not in found]
        if not calls or graph in found:
            waiting.pop()
            if graph not in found:
                found[graph] = _follow(graph, found)
        waiting += calls
    return found


def _follow(graph: Graph, found: Mapping[Graph, _Followed]) -> _Followed:
    """Phases of the ops of ``graph`` from what they say, what they call and which gradients they read."""
    root, changing, calls = roots(graph), changes(graph), set(calling(graph))
    gradients: set[Tensor] = set()
    result: _Found = {}
    made: Sequence[Tensor]
    for op in schedule(graph):
        phase = result[op] = op.phase or _said_of_callee(op) or _read(op, gradients, root) or _called(op, found)
        if phase == "bwd":
            gradients.update([root[tensor] for tensor in op.outputs])
            made = [op.inputs[index] for index in changing.get(op, ())]
        else:
            made = _made_inside(op, changing.get(op, ()), found) if op in calls else ()
        if made:
            gradients.update([root.get(tensor, tensor) for tensor in made])
    return _Followed(result, gradients)


def _made_inside(op: Op, changing: Sequence[int], found: Mapping[Graph, _Followed]) -> list[Tensor]:
    """Results and changed operands (``changing``: their indices) of a call that are gradients in the graph it calls."""
    made: list[Tensor] = []
    for callee, operands in op.calls():
        changed = {op.inputs[index] for index in changing}
        root, inside = roots(callee), found[callee].gradients
        pairs = [(inner, outer) for inner, outer in zip(callee.inputs, operands, strict=False) if outer in changed]
        pairs += zip(callee.outputs, op.outputs, strict=False)
        made += [outer for inner, outer in pairs if root.get(inner, inner) in inside]
    return made


def _said_of_callee(op: Op) -> Phase | None:
    """What the graph that is called was made for."""
    return next((callee.phase for callee in op.called_graphs() if callee.phase), None)


def _read(op: Op, gradients: set[Tensor], root: Mapping[Tensor, Tensor]) -> Phase | None:
    """The phase of an op that reads a gradient; None for others."""
    read = [root.get(tensor, tensor) in gradients for tensor in op.inputs]
    if not any(read):
        return None
    return "bwd" if all(read[index] for index in op.modified_inputs()) else "update"


def _called(op: Op, found: Mapping[Graph, _Followed]) -> Phase | None:
    """What the ops of a called graph are, I/O and counters aside; None for no call, or when they do not say."""
    inside = [pair for callee in op.called_graphs() for pair in found[callee].phases.items()]
    kinds = {phase for inner, phase in inside if phase != "io" and not (phase is None and _counts(inner))}
    if len(kinds) < 2:
        return next(iter(kinds), None)
    return None if kinds == {None, "update"} else "other"


def _counts(op: Op) -> bool:
    """Whether all that an op makes are integers."""
    return bool(op.outputs) and not any(tensor.dtype.is_floating_point for tensor in op.outputs)


def _final(found: Mapping[Graph, _Followed]) -> dict[Op, Phase]:
    """Ops of which nothing is known are what their graph is called for."""
    purposes: dict[Graph, set[Phase]] = {graph: set() for graph in found}
    result: dict[Op, Phase] = {}
    for graph, known in reversed(list(found.items())):
        purpose = _purpose(purposes[graph])
        result.update({op: phase or purpose for op, phase in known.phases.items()})
        for op in calling(graph):
            for callee in op.called_graphs():
                purposes[callee].add(result[op])
    return result


def _purpose(calls: set[Phase]) -> Phase:
    """What a graph is called for."""
    return next(iter(calls)) if len(calls) == 1 and "other" not in calls else "fwd"
