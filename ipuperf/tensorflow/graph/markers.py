"""Markers: ops of a TensorFlow graph that stand for what only an IPU has.

A marker is a raw ``PyFunc`` op with real inputs and outputs of fixed shapes, whose token names what it means: an object
with ``build(importer, inputs)``, called where the op stands in the imported graph. TensorFlow itself runs a marker as
one clear error. Where TensorFlow differentiates through one, the gradient function given makes the ops of its gradient.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import script_ops

from .values import Value

if TYPE_CHECKING:
    from .importer import Importer

PREFIX = "ipuperf:"
#: ``gradient(op, *grads)``: gradients of the marker's inputs, as a function registered with TensorFlow gives them.
Gradient = Callable[..., Any]


class Meaning(Protocol):
    """What a marker stands for."""

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """Make its ops where the importer is (``importer.place``); one value for each output."""


class _Marker:
    """A registered marker; called by TensorFlow if it runs the op."""

    def __init__(self, token: str, name: str, meaning: Meaning) -> None:
        self.token = token
        self.name = name
        self.meaning = meaning

    def __call__(self, *operands: Any) -> NoReturn:
        raise RuntimeError(
            f"{self.name} exists only in programs of the IPU: call the function that it is in through "
            "ipu_compiler.compile, IPUStrategy.run or a tf.function of the strategy"
        )


_NUMBERS = itertools.count()
#: By token; each lives as long as the graph that it is in.
_MARKERS: weakref.WeakValueDictionary[str, _Marker] = weakref.WeakValueDictionary()
_GRADIENTS = itertools.count()


def marker(
    name: str,
    meaning: Meaning,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.TensorSpec],
    *,
    effect: bool = True,
    gradient: Gradient | None = None,
) -> list[tf.Tensor]:
    """A new marker in the default graph.

    Args:
        name: what it is called in the graph and in errors.
        meaning: what it stands for.
        inputs: tensors and handles of variables.
        outputs: shapes and types of its outputs; shapes are fixed.
        effect: it is there for what it does, also where nothing uses its outputs, and keeps its order among the other
            ops with effects; False: it is a function of its inputs.
        gradient: see :data:`Gradient`; None: no gradient flows through it.

    Returns:
        The outputs; the op is ``.op`` of one of them, and for a marker without outputs the last of the graph's ops.
    """
    graph = ops.get_default_graph()
    kept = _Marker(f"{PREFIX}{next(_NUMBERS)}", name, meaning)
    _MARKERS[kept.token] = kept
    script_ops._py_funcs._funcs[kept.token] = kept
    _keep(graph, kept)
    make = tf.raw_ops.PyFunc if effect else tf.raw_ops.PyFuncStateless
    types = [spec.dtype for spec in outputs]
    overrides = {} if gradient is None else dict.fromkeys(("PyFunc", "PyFuncStateless"), _registered(gradient))
    with graph.gradient_override_map(overrides):
        made = make(input=list(inputs), token=kept.token, Tout=types, name=name)
    found = list(made) if isinstance(made, (list, tuple)) else []
    for tensor, spec in zip(found, outputs, strict=True):
        tensor.set_shape(spec.shape)
    return found


def _keep(graph: Any, kept: _Marker) -> None:
    """Let a marker live as long as the graph and those around it."""
    while graph is not None:
        if not hasattr(graph, "ipuperf_markers"):
            graph.ipuperf_markers = []
        graph.ipuperf_markers.append(kept)
        graph = getattr(graph, "outer_graph", None)


def _registered(gradient: Gradient) -> str:
    name = f"IpuperfMarker{next(_GRADIENTS)}"
    tf.RegisterGradient(name)(gradient)
    return name


def is_marker(op: tf.Operation) -> bool:
    """Whether an op is a marker."""
    return op.type in ("PyFunc", "PyFuncStateless") and op.get_attr("token").startswith(PREFIX.encode())


def meaning_of(op: tf.Operation) -> Meaning:
    """What a marker stands for."""
    return _MARKERS[op.get_attr("token").decode()].meaning
