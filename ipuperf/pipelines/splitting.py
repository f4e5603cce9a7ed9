"""A backward in two: gradients that earlier stages wait for, and gradients of weights, which nothing waits for.

An op belongs to the weights if all that it leads to is the gradient of one variable. What leads to several (the
gradient of a layer's result, ops that compute all gradients of a norm at once) is computed with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ipuperf.ir import Derivative, Op, Tensor, Variable, schedule


@dataclass(frozen=True)
class SplitBackward:
    """Which part of a gradient graph computes gradients of weights.

    Attributes:
        ops: its ops, in order.
        late: forward tensors that they read.
        carried: tensors of the gradient graph that they read and that are given or made before.
        trained: graph inputs whose gradients they make.
    """

    ops: tuple[Op, ...]
    late: frozenset[Tensor]
    carried: tuple[Tensor, ...]
    trained: frozenset[Tensor]


def split_of(derivative: Derivative, trained: Mapping[Tensor, Variable]) -> SplitBackward:
    """The split of a gradient graph; ``trained`` are the graph inputs that are parameters."""
    leads: dict[Tensor, set[Variable | None]] = {}
    for connection, tensor in zip(derivative.outputs, derivative.graph.outputs, strict=True):
        leads.setdefault(tensor, set()).add(trained.get(connection.tensor))
    order = schedule(derivative.graph)
    ops: list[Op] = []
    for op in reversed(order):
        targets = set().union(*(leads.get(tensor, ()) for tensor in op.outputs))
        alone = len(targets) == 1 and None not in targets
        if alone:
            ops.append(op)
        for tensor in op.inputs:
            leads.setdefault(tensor, set()).update(targets if alone else (None,))
    made = {tensor for op in ops for tensor in op.outputs}
    read = dict.fromkeys(tensor for op in reversed(ops) for tensor in op.inputs if tensor not in made)
    forward = {
        image: connection.tensor
        for connection, image in zip(derivative.inputs, derivative.graph.inputs, strict=True)
        if not connection.is_gradient
    }
    given = {*derivative.graph.inputs, *(tensor for op in order for tensor in op.outputs)}
    return SplitBackward(
        tuple(reversed(ops)),
        frozenset(forward[tensor] for tensor in read if tensor in forward),
        tuple(tensor for tensor in read if tensor in given and tensor not in forward),
        frozenset(
            c.tensor for c, tensor in zip(derivative.outputs, derivative.graph.outputs, strict=True) if tensor in made
        ),
    )
