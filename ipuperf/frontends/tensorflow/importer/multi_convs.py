"""``ipu.nn_ops.multi_conv``: convolutions of a function become one op when its graph has been imported, and so do the
gradients that TensorFlow makes of them.

A call of such a function is a name scope, in which the importer puts the gradients of its ops, too. Source: tensorflow:
compiler/plugin/poplar/driver/passes/multi_conv_fixer.cc.

Simplified: of a function that is a ``tf.function`` of its own, whose gradient TensorFlow writes into another graph, the
gradients stay single convolutions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework import ops

from ipuperf.ir import IrError, Op, Tensor, roots
from ipuperf.ops import Conv, ConvInputGrad, ConvWeightGrad
from ipuperf.ops.products.multi_conv import PLAN_TYPES, multi_conv_of

from ..effects import checked_kinds
from . import GraphError

if TYPE_CHECKING:
    from .tracing import Frame


_JOINED = (Conv, ConvInputGrad, ConvWeightGrad)


@checked_kinds()
def planning(options: Mapping[str, str]) -> dict[str, Any]:
    """PopLibs' options of a multi-convolution as attributes of the op.

    Raises:
        ValueError: an unknown option, a value that it cannot have.
    """
    attributes: dict[str, Any] = {}
    for name, value in options.items():
        try:
            if name == "planType" and value in PLAN_TYPES:
                attributes["plan_type"] = value
            elif name == "perConvReservedTiles" and int(value) >= 0:
                attributes["per_conv_reserved_tiles"] = int(value)
            elif name == "cycleBackOff" and float(value) >= 0:
                attributes["cycle_back_off"] = float(value)
            else:
                raise ValueError(name)
        except ValueError:
            raise ValueError(
                f"multi_conv: option {name}={value!r}; allowed: planType ({' or '.join(PLAN_TYPES)}), "
                "perConvReservedTiles (a whole number from 0 up), cycleBackOff (a number from 0 up)"
            ) from None
    return attributes


@contextmanager
def multi_conv_scope(options: Mapping[str, str]) -> Iterator[None]:
    """Convolutions of the default graph that are made in the block are one op, with these options."""
    attributes = planning(options)
    with tf.name_scope("multi_conv") as scope:
        graph = ops.get_default_graph()
        if not hasattr(graph, "ipuperf_multi_convs"):
            graph.ipuperf_multi_convs = {}
        graph.ipuperf_multi_convs[scope] = attributes
        yield


@checked_kinds()
def join_multi_convs(frame: Frame, graph: tf.Graph, start: int) -> None:
    """Join the convolutions among the ops that ``frame`` got from ``graph``: its ops from number ``start`` on.

    Raises:
        GraphError: one of them needs the result of another.
    """
    scopes: Mapping[str, dict[str, Any]] = getattr(graph, "ipuperf_multi_convs", {})
    groups: dict[tuple[str, bool, bool], list[Op]] = {}
    for op in frame.graph.ops[start:] if scopes else ():
        scope = next((scope for scope in scopes if f"/{scope}" in f"/{op.scope}/"), None)
        if scope is not None and isinstance(op, _JOINED):
            groups.setdefault((scope, op.phase == "bwd", isinstance(op, ConvWeightGrad)), []).append(op)
    several = [(scope, group) for (scope, *_), group in groups.items() if len(group) > 1]
    if not several:
        return
    region = frame.graph.ops[start:]
    _free(frame, region)
    for scope, group in several:
        try:
            multi_conv_of(group, **scopes[scope])
        except IrError as error:
            raise GraphError(f"multi_conv: {error}") from error
    region, frame.last = frame.graph.ops[start:], None
    for op in region:
        frame.chain([op])


def _free(frame: Frame, region: Sequence[Op]) -> None:
    """Instead of the order in which they were made, ops keep what must come first: what changes something after those
    that read it before, before those that read it then, and what shows outside in order."""
    graph, inside, root = frame.graph, set(region), roots(frame.graph)
    for op in region:
        graph.constraints[op] = {earlier for earlier in graph.constraints.get(op, ()) if earlier not in inside}
    changed: dict[Tensor, Op] = {}
    readers: dict[Tensor, list[Op]] = {}
    fixed: Op | None = None
    for op in region:
        used = {root.get(tensor, tensor) for tensor in op.inputs}
        predecessors: list[Op] = [changed[tensor] for tensor in used if tensor in changed]
        if not op.movable():
            predecessors += [fixed] if fixed is not None else []
            fixed = op
        for index in op.modified_inputs():
            target = root.get(op.inputs[index], op.inputs[index])
            predecessors += readers.pop(target, [])
            changed[target] = op
        for tensor in used:
            readers.setdefault(tensor, []).append(op)
        graph.constraints[op].update(earlier for earlier in predecessors if earlier is not op)
