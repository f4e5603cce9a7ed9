"""An optimiser's own ``compute_gradients`` in a pipeline.

Stages are differentiated one by one, so ``compute_gradients`` is called once, in a graph of its own, with a loss that
stands in for the real one: a number whose gradients are the graph's arguments. What it gives for a variable is then
built where the stage has that variable's gradient, in each micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..importer import resource_of
from ..importer.tracer import TracedFunction, changed_handles, trace
from ..keras.optimizers import GRADIENTS, KerasOptimizer, overridden, scales_loss
from .accumulation import IpuOptimizer, Optimizer, innermost, wrappers
from .update_slices import has_effect

_PLAIN = (Optimizer.compute_gradients, IpuOptimizer.compute_gradients)


@dataclass
class GradientMapping:
    """What ``compute_gradients`` makes of gradients.

    Attributes:
        traced: the arguments and the results are the gradients of ``variables``.
        effects: by the number of a variable, the ops of its gradient that are there for what they do.
    """

    traced: TracedFunction
    variables: list[Any]
    effects: list[list[tf.Operation]]

    def changed(self) -> dict[Any, int]:
        """By variable, the numbers of those whose gradients are changed or seen."""
        traced = self.traced
        pairs = enumerate(zip(traced.tensors, traced.arguments))
        numbers = [i for i, (result, argument) in pairs if result is not argument or self.effects[i]]
        return {resource_of(self.variables[i].handle): i for i in numbers}


def with_own_gradients(optimizer: Any) -> Any:
    """The optimiser to ask for gradients, as one of version 1; None where they are the plain ones.

    Raises:
        NotImplementedError: a ``LossScaleOptimizer`` around a method of the program's own.
    """
    if isinstance(optimizer, Optimizer):
        chain = (*wrappers(optimizer), innermost(optimizer))
        return (
            optimizer if any(type(optimizer_part).compute_gradients not in _PLAIN for optimizer_part in chain) else None
        )
    method = overridden(optimizer, *GRADIENTS)
    if method is None:
        return None
    wrapped = getattr(optimizer, "inner_optimizer", None)
    if wrapped is not None and scales_loss(wrapped):
        raise NotImplementedError(
            f"pipeline: {optimizer.name} scales the loss around an optimizer with a {method} of its own, which would "
            "see scaled gradients; change the gradients in apply_gradients"
        )
    return KerasOptimizer(optimizer)


def trace_gradients(optimizer: Any, loss: tf.Tensor, variables: Sequence[Any], name: str) -> GradientMapping:
    """Call ``optimizer.compute_gradients`` for gradients of ``variables``.

    Raises:
        NotImplementedError: a result depends on the loss itself, on gradients of several variables or on a tensor of a
            stage, is missing, or a variable is changed.
    """
    stand_in: list[tf.Tensor] = []

    def computed(*gradients: tf.Tensor) -> list[Any]:
        # The stand-in loss is zero everywhere and has the given gradients, so compute_gradients sees just these.
        parts = [tf.cast(_with_gradient(g)(tf.convert_to_tensor(v)), loss.dtype) for g, v in zip(gradients, variables)]
        stand_in.append(tf.add_n(parts, name="loss"))
        pairs = optimizer.compute_gradients(stand_in[0], var_list=list(variables))
        results = {resource_of(v.handle): g for g, v in pairs if g is not None}
        missing = [v.name for v in variables if resource_of(v.handle) not in results]
        if missing:
            raise NotImplementedError(
                f"pipeline: compute_gradients of optimizer {name!r} gives no gradient for {missing[0]!r}; choose the "
                "variables by `var_list`"
            )
        return [results[resource_of(v.handle)] for v in variables]

    traced = trace("own_gradients", computed, [tf.TensorSpec(v.shape, v.dtype) for v in variables], automatic=True)
    numbers = {id(tensor): i for i, tensor in enumerate(traced.arguments)}
    effects: list[list[tf.Operation]] = [[] for _ in variables]

    def only(tensors: Iterable[tf.Tensor], allowed: int | None) -> int:
        """The number of the one gradient that tensors depend on."""
        # Each result may depend on its own gradient alone, which one stage has.
        needed = _ancestors(tensors)
        of = {numbers[key] for key in needed if key in numbers} | ({allowed} if allowed is not None else set())
        if id(stand_in[0]) in needed or len(of) > 1:
            several = "the loss itself" if id(stand_in[0]) in needed else "the gradients of several variables"
            raise NotImplementedError(
                f"pipeline: compute_gradients of optimizer {name!r} uses {several}, which no stage has in a "
                "micro-batch; each stage has the gradients of its own variables: change them in apply_gradients"
            )
        return of.pop() if of else 0

    for number, result in enumerate(traced.tensors):
        only([result], number)
    for op in traced.graph.get_operations():
        if has_effect(op):
            effects[only(op.inputs, None)].append(op)
    used = next((t for t in traced.captured if t.dtype != tf.resource and not hasattr(t, "numpy")), None)
    if used is not None or changed_handles(traced):
        fault = "assigns to a variable" if used is None else f"uses tensor {used.name}"
        raise NotImplementedError(
            f"pipeline: compute_gradients of optimizer {name!r} {fault}; it can use gradients, variables that it "
            "leaves as they are, and numbers"
        )
    return GradientMapping(traced, list(variables), effects)


def _with_gradient(gradient: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function of a tensor, 0 everywhere, that has this gradient."""

    @tf.custom_gradient
    def zero(tensor: tf.Tensor) -> Any:
        return tf.zeros((), tensor.dtype), lambda upstream: upstream * gradient

    return zero


def _ancestors(tensors: Iterable[tf.Tensor]) -> set[int]:
    """Identities of tensors and of all that they are computed from."""
    ancestors: set[int] = set()
    waiting = list(tensors)
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in ancestors:
            ancestors.add(id(tensor))
            # IdentityN passes each operand on by itself: a result depends on one of them, not on all.
            passed = tensor.op.type == "IdentityN"
            waiting += [tensor.op.inputs[tensor.value_index]] if passed else tensor.op.inputs
    return ancestors
