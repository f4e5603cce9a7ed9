"""Splits a backward in two: gradients that earlier stages wait for, and gradients of weights, for which nothing waits.

An op belongs to the weights if it leads to the gradient of one variable only. An op that leads to several (the gradient
of a layer's result, ops that compute all gradients of a norm at once) stays with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ipuperf.ir import Derivative, Op, Tensor, Variable, schedule


@dataclass(frozen=True)
class SplitBackward:
    """The part of a gradient graph that computes gradients of weights.

    Attributes:
        ops: its ops, in order.
        late: forward tensors that they read.
        carried: tensors of the gradient graph that they read and that are inputs or results of the other part.
        trained: graph inputs whose gradients they make.
    """

    ops: tuple[Op, ...]
    late: frozenset[Tensor]
    carried: tuple[Tensor, ...]
    trained: frozenset[Tensor]


def split_of(derivative: Derivative, trained: Mapping[Tensor, Variable]) -> SplitBackward:
    """The split of a gradient graph. ``trained`` maps the graph inputs that are parameters to their variables."""
    leads_to: dict[Tensor, set[Variable | None]] = {}
    for connection, tensor in zip(derivative.outputs, derivative.graph.outputs, strict=True):
        leads_to.setdefault(tensor, set()).add(trained.get(connection.tensor))
    order = schedule(derivative.graph)
    ops: list[Op] = []
    # Backwards, so that everything an op leads to is known when it is reached.
    for op in reversed(order):
        targets = set().union(*(leads_to.get(tensor, ()) for tensor in op.outputs))
        for_one_weight = len(targets) == 1 and None not in targets
        if for_one_weight:
            ops.append(op)
        for tensor in op.inputs:
            # None marks a tensor that the other part needs; everything before it belongs there too.
            leads_to.setdefault(tensor, set()).update(targets if for_one_weight else (None,))
    weight_tensors = {tensor for op in ops for tensor in op.outputs}
    # A dictionary keeps the order, which a set would change from run to run.
    operands = dict.fromkeys(tensor for op in reversed(ops) for tensor in op.inputs if tensor not in weight_tensors)
    forward = {
        image: connection.tensor
        for connection, image in zip(derivative.inputs, derivative.graph.inputs, strict=True)
        if not connection.is_gradient
    }
    available = {*derivative.graph.inputs, *(tensor for op in order for tensor in op.outputs)}
    return SplitBackward(
        tuple(reversed(ops)),
        frozenset(forward[tensor] for tensor in operands if tensor in forward),
        tuple(tensor for tensor in operands if tensor in available and tensor not in forward),
        frozenset(
            connection.tensor
            for connection, tensor in zip(derivative.outputs, derivative.graph.outputs, strict=True)
            if tensor in weight_tensors
        ),
    )
