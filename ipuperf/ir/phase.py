"""The phase of each op: forward, recomputation, backward, weight update or I/O.

The maker of an op states its phase in one of three places: an op class that has only one use (:attr:`Op.own_phase`:
host and remote I/O, the optimisers' ops), the context in which the op is made (:meth:`BuildContext.phase`: autodiff,
recomputation, pipelines, optimisers), or the graph in which it is made (:attr:`Graph.phase`: the gradient graphs).
Names play no part.

Nobody states a phase for the ops that a PopXL user writes. :func:`phases_of` follows the data there, as a reader would:

- An op that reads a gradient is backward. Gradients are what a backward op makes or changes, also inside a call, and
  what is computed from them. If such an op changes a tensor that is no gradient, it is an update.
- A call or loop has the phase that its graph was made for, or the phase of the ops in its graph when these all agree;
  ``other`` when they do not. I/O does not count there, nor do ops without a stated phase that make integers only
  (counters, entries of remote buffers): loads, calls of a gradient graph and stores are a backward loop.
- Every other op has the phase for which its graph is called, when all calls agree, and is forward otherwise.

A gradient that passes through a remote buffer is not followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from .graph import Graph, callees_first, calling
from .op import Op
from .schedule import changes, roots, schedule
from .tensor import Tensor

Phase = Literal["fwd", "recompute", "bwd", "update", "io", "other"]
"""The phases of ops; traces use the same words (``ipuperf.trace.PHASES``)."""

_PartialPhases = dict["Op", "Phase | None"]


class _Followed(NamedTuple):
    """Facts about the ops of a graph, as far as it and its callees tell.

    ``phases`` has the phases as far as they are known. ``gradients`` has the gradients that are made or changed in the
    graph, each by the tensor that owns its storage.
    """

    phases: _PartialPhases
    gradients: set[Tensor]


def phases_of(graph: Graph) -> Mapping[Op, Phase]:
    """The phase of each op that ``graph`` executes, ops of called graphs included. ``graph`` itself is called for no
    phase."""
    return _final(_followed(graph))


def _followed(main: Graph) -> dict[Graph, _Followed]:
    """What is known of a graph and of the graphs it calls, callees first."""
    followed: dict[Graph, _Followed] = {}
    for graph in callees_first(main):
        followed[graph] = _follow(graph, followed)
    return followed


def _follow(graph: Graph, followed: Mapping[Graph, _Followed]) -> _Followed:
    """The phases of the ops of ``graph``, from what they state, what they call and which gradients they read."""
    root, changing, calls = roots(graph), changes(graph), set(calling(graph))
    gradients: set[Tensor] = set()
    phases: _PartialPhases = {}
    gradient_tensors: Sequence[Tensor]
    for op in schedule(graph):
        phase = phases[op] = op.phase or _said_of_callee(op) or _read(op, gradients, root) or _called(op, followed)
        # What a backward op makes or changes is a gradient; other ops pass gradients on only through calls.
        if phase == "bwd":
            gradients.update([root[tensor] for tensor in op.outputs])
            gradient_tensors = [op.inputs[index] for index in changing.get(op, ())]
        else:
            gradient_tensors = _made_inside(op, changing.get(op, ()), followed) if op in calls else ()
        if gradient_tensors:
            gradients.update([root.get(tensor, tensor) for tensor in gradient_tensors])
    return _Followed(phases, gradients)


def _made_inside(op: Op, changing: Sequence[int], followed: Mapping[Graph, _Followed]) -> list[Tensor]:
    """Results and changed operands of a call that are gradients in the called graph.

    ``changing`` holds the indices of the operands that the call changes.
    """
    outer_gradients: list[Tensor] = []
    for callee, operands in op.calls():
        changed = {op.inputs[index] for index in changing}
        root, callee_gradients = roots(callee), followed[callee].gradients
        pairs = [
            (callee_tensor, caller_tensor)
            for callee_tensor, caller_tensor in zip(callee.inputs, operands, strict=False)
            if caller_tensor in changed
        ]
        pairs += zip(callee.outputs, op.outputs, strict=False)
        outer_gradients += [
            caller_tensor
            for callee_tensor, caller_tensor in pairs
            if root.get(callee_tensor, callee_tensor) in callee_gradients
        ]
    return outer_gradients


def _said_of_callee(op: Op) -> Phase | None:
    """The phase for which a called graph was made."""
    return next((callee.phase for callee in op.called_graphs() if callee.phase), None)


def _read(op: Op, gradients: set[Tensor], root: Mapping[Tensor, Tensor]) -> Phase | None:
    """The phase of an op that reads a gradient; None for other ops."""
    reads_gradient = [root.get(tensor, tensor) in gradients for tensor in op.inputs]
    if not any(reads_gradient):
        return None
    return "bwd" if all(reads_gradient[index] for index in op.modified_inputs()) else "update"


def _called(op: Op, followed: Mapping[Graph, _Followed]) -> Phase | None:
    """The common phase of the ops of a called graph, I/O and counters aside; None for no call, or when the ops do not
    tell."""
    callee_phases = [pair for callee in op.called_graphs() for pair in followed[callee].phases.items()]
    kinds = {
        phase for callee_op, phase in callee_phases if phase != "io" and not (phase is None and _counts(callee_op))
    }
    # Loads, stores and counters surround a backward loop without being a phase of their own.
    if len(kinds) < 2:
        return next(iter(kinds), None)
    return None if kinds == {None, "update"} else "other"


def _counts(op: Op) -> bool:
    """Whether all results of an op are integers."""
    return bool(op.outputs) and not any(tensor.dtype.is_floating_point for tensor in op.outputs)


def _final(followed: Mapping[Graph, _Followed]) -> dict[Op, Phase]:
    """Give each op without a known phase the phase for which its graph is called."""
    purposes: dict[Graph, set[Phase]] = {graph: set() for graph in followed}
    final_phases: dict[Op, Phase] = {}
    # Callers come first here, so all calls of a graph have their final phase when it is reached.
    for graph, known_phases in reversed(list(followed.items())):
        purpose = _purpose(purposes[graph])
        final_phases.update({op: phase or purpose for op, phase in known_phases.phases.items()})
        for op in calling(graph):
            for callee in op.called_graphs():
                purposes[callee].add(final_phases[op])
    return final_phases


def _purpose(calls: set[Phase]) -> Phase:
    """The phase for which a graph is called."""
    return next(iter(calls)) if len(calls) == 1 and "other" not in calls else "fwd"
