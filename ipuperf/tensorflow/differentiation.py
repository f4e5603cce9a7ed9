"""Gradients inside the frame under construction: ``tf.gradients``, ``GradientTape`` and the optimisers use them.

The gradient ops stand in the same graph as the forward ops, after them; what no wanted gradient needs is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from ipuperf.ir import CONTEXT, Constant, Derivative, GradientBuilder, Op, Tensor
from ipuperf.ops import Add

from .array import Array, convert
from .effects import EFFECTS
from .tracing import Frame, current_frame, leaves


class _InlineBuilder(GradientBuilder):
    """Builds gradient ops in the forward's own graph, where forward values are at hand."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(Derivative(frame.graph, frame.graph), Add, {})

    def forward(self, tensor: Tensor) -> Tensor:
        return tensor


def gradients(ys: Any, xs: Sequence[Any]) -> list[Array | None]:
    """Gradients of the sum of ``ys`` with respect to variables or arrays ``xs``; None where there is no path.

    Raises:
        IrError: an op without gradient lies between them.
    """
    frame = current_frame()
    targets = [_target(frame, x) for x in xs]
    losses = [frame.get(convert(y).tensor) for y in leaves(ys)]
    before, constants = list(frame.graph.ops), set(frame.graph.tensors)
    grads = _backward(frame, before, losses, [t for t in targets if t is not None])
    wanted = [None if t is None else grads.get(t) for t in targets]
    kept = _drop_dead(frame, before, constants, {g for g in wanted if g is not None})
    frame.chain(kept)
    return [None if g is None else Array(g) for g in wanted]


def _target(frame: Frame, x: Any) -> Tensor | None:
    """The tensor that stands for ``x`` in the frame; None for a variable that the frame does not use."""
    if isinstance(x, Array):
        return frame.get(x.tensor)
    variable = frame.program.variable(x)
    return variable if variable.graph is frame.graph else frame.images.get(variable)


def _backward(frame: Frame, order: list[Op], losses: list[Tensor], targets: list[Tensor]) -> dict[Tensor, Tensor]:
    builder = _InlineBuilder(frame)
    active = set(targets)
    for op in order:
        if any(t in active for t in op.inputs):
            active.update(t for t in op.outputs if t.dtype.is_floating_point)
    grads: dict[Tensor, Tensor] = {}
    for loss in losses:
        if loss in active:
            grads[loss] = frame.graph.constant(np.ones(loss.shape, loss.dtype.numpy), name="grad_ys")
    for op in reversed(order):
        out = [grads.get(t) for t in op.outputs]
        if all(g is None for g in out) or not any(t in active for t in op.inputs):
            continue
        with ExitStack() as place:
            place.enter_context(CONTEXT.phase("bwd"))
            place.enter_context(CONTEXT.building(builder))
            if op.ipu is not None:
                place.enter_context(CONTEXT.on_ipu(op.ipu))
            for tensor, grad in zip(op.inputs, op.gradient(builder, out), strict=True):
                if grad is None or tensor not in active:
                    continue
                grads[tensor] = builder.op(Add, [grads[tensor], grad], "grad_sum") if tensor in grads else grad
    return grads


def _drop_dead(frame: Frame, before: list[Op], constants: set[str], wanted: set[Tensor]) -> list[Op]:
    """Remove new ops and constants that ``wanted`` does not need; the new ops that remain, in order."""
    graph, needed, kept = frame.graph, set(wanted), list[Op]()
    for op in reversed(graph.ops[len(before) :]):
        if any(t in needed for t in op.outputs):
            kept.append(op)
            needed.update(op.inputs)
            continue
        for tensor in op.inputs:
            tensor.consumers.remove(op)
        for tensor in op.outputs:
            del graph.tensors[tensor.id]
    graph.ops = [*before, *reversed(kept)]
    graph.version += 1
    for key in [k for k, t in graph.tensors.items() if k not in constants and isinstance(t, Constant)]:
        if graph.tensors[key] not in needed:
            del graph.tensors[key]
    return kept[::-1]


class GradientTape:
    """``tf.GradientTape``: since the whole frame is recorded anyway, the tape only asks for gradients.

    Raises:
        NotImplementedError: ``watch_accessed_variables=False``; RuntimeError: gradients are asked for twice without
            ``persistent``, as TensorFlow does.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        EFFECTS.given("GradientTape(watch_accessed_variables)", watch_accessed_variables)
        self._persistent = persistent
        self._used = False

    def __enter__(self) -> GradientTape:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def watch(self, tensor: Any) -> None:
        """Every array is watched."""

    def gradient(self, target: Any, sources: Any) -> Any:
        """Gradients of ``target`` in the structure of ``sources``."""
        if self._used and not self._persistent:
            raise RuntimeError(
                "A non-persistent GradientTape can only be used to compute one set of gradients (or jacobians)"
            )
        self._used = True
        if isinstance(sources, (list, tuple)):
            return gradients(target, list(sources))
        return gradients(target, [sources])[0]
