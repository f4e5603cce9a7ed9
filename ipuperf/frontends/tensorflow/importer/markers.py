"""Markers: ops of a TensorFlow graph that stand for what only an IPU has.

A marker is a raw ``PyFunc`` op with real inputs and outputs of fixed shapes, whose token names what it means: an object
with ``build(importer, inputs)``, called where the op stands in the imported graph. TensorFlow itself runs a marker as
one clear error, or as what its meaning gives for arrays. Where TensorFlow differentiates through one, the gradient
function given makes the ops of its gradient.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import script_ops

from .values import Value

if TYPE_CHECKING:
    from .graph import Importer

PREFIX = "ipuperf:"
#: ``gradient(op, *grads)``: gradients of the marker's inputs, one for each (None where none flows), as a function that
#: is registered with TensorFlow gives them.
Gradient = Callable[..., Any]


class Meaning(Protocol):
    """What a marker stands for. One with ``on_host(*arrays)`` has values on the host too; one whose ``arranged`` is
    true takes and gives :class:`.arranged.Arranged` values."""

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """Make its ops where the importer is (``importer.place``); one value for each output."""


class MadeBy:
    """A meaning that is a function alone.

    Args:
        build: see :class:`Meaning`.
        changes: numbers of the inputs that are variables which it changes; None: it may change them all.
    """

    def __init__(
        self, build: Callable[[Importer, Sequence[Value]], Sequence[Value]], changes: Sequence[int] | None = None
    ) -> None:
        self.build = build
        if changes is not None:
            self.changed = lambda: list(changes)


class _Marker:
    """A registered marker; called by TensorFlow if it runs the op."""

    def __init__(self, token: str, name: str, meaning: Meaning) -> None:
        self.token = token
        self.name = name
        self.meaning = meaning

    def __call__(self, *operands: Any) -> Any:
        on_host = getattr(self.meaning, "on_host", None)
        if on_host is not None:
            return on_host(*operands)
        raise RuntimeError(
            f"{self.name} exists only in programs of the IPU: call the function that it is in through "
            "ipu_compiler.compile, IPUStrategy.run or a tf.function of the strategy"
        )


_NUMBERS = itertools.count()
#: By token; each lives as long as the graph that it is in.
_MARKERS: weakref.WeakValueDictionary[str, _Marker] = weakref.WeakValueDictionary()


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
        The outputs; a marker without outputs is the last of the graph's ops.
    """
    graph = ops.get_default_graph()
    entry = _Marker(f"{PREFIX}{next(_NUMBERS)}", name, meaning)
    _MARKERS[entry.token] = entry
    # TensorFlow looks the token up here when it runs the op.
    script_ops._py_funcs._funcs[entry.token] = entry
    _keep(graph, entry)
    make = tf.raw_ops.PyFunc if effect else tf.raw_ops.PyFuncStateless

    def made(*operands: tf.Tensor) -> list[tf.Tensor]:
        types = [spec.dtype for spec in outputs]
        result = make(input=list(operands), token=entry.token, Tout=types, name=name)
        tensors = list(result) if isinstance(result, (list, tuple)) else []
        for tensor, spec in zip(tensors, outputs, strict=True):
            tensor.set_shape(spec.shape)
        return tensors

    return made(*inputs) if gradient is None else _differentiable(made, list(inputs), gradient)


def _differentiable(
    made: Callable[..., list[tf.Tensor]], inputs: list[tf.Tensor], gradient: Gradient
) -> list[tf.Tensor]:
    """What ``made`` gives for the inputs, with a gradient for tapes and for ``tf.gradients``."""
    # Only floating tensors have gradients; handles and integers go around the custom gradient.
    places = [i for i, t in enumerate(inputs) if t.dtype.is_floating]

    @tf.custom_gradient
    def function(*operands: tf.Tensor) -> Any:
        by_place = dict(zip(places, operands, strict=True))
        results = made(*(by_place.get(i, t) for i, t in enumerate(inputs)))

        def backward(*grads: tf.Tensor) -> list[tf.Tensor | None]:
            gained = gradient(results[0].op, *grads)
            flat_grads = list(gained) if isinstance(gained, (list, tuple)) else [gained]
            return [flat_grads[i] for i in places]

        return results, backward

    results = function(*(inputs[i] for i in places))
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _keep(graph: Any, entry: _Marker) -> None:
    """Let a marker live as long as the graph and those around it."""
    while graph is not None:
        if not hasattr(graph, "ipuperf_markers"):
            graph.ipuperf_markers = []
        graph.ipuperf_markers.append(entry)
        graph = getattr(graph, "outer_graph", None)


def is_marker(op: tf.Operation) -> bool:
    """Whether an op is a marker."""
    return op.type in ("PyFunc", "PyFuncStateless") and op.get_attr("token").startswith(PREFIX.encode())


def meaning_of(op: tf.Operation) -> Meaning:
    """What a marker stands for."""
    return _MARKERS[op.get_attr("token").decode()].meaning
