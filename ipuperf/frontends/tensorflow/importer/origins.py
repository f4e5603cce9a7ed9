"""Where the ops of a graph stand in reports: their name scope, the user's line. Gradient ops stand where their forward
op does.

``tf.gradients`` says which op that is; a tape names a gradient op after it: ``gradient_tape/`` and the forward op, or
its scope (``tensorflow: python/eager/backprop.py``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from .lines import user_line

LINE = "_ipu_line"
"""Attribute of ops that a library makes for an object of the user's (a layer): the line that called the library, and
the line of the object."""
_TAPE = "gradient_tape"


def own_attribute(op: tf.Operation, name: str) -> Any:
    """An attribute that :mod:`ipuperf.tensorflow.importer.attributes` has written on ``op``; None without."""
    if not getattr(op.graph, "ipuperf_written", False):
        return None
    try:
        found = op.get_attr(name)
    except ValueError:
        return None
    return found.decode() if isinstance(found, bytes) else found


def is_gradient(op: tf.Operation) -> bool:
    """Whether TensorFlow has made ``op`` for a gradient."""
    return op._original_op is not None or _TAPE in op.name.split("/")


class OpOrigin(NamedTuple):
    """The place of an op in reports.

    Attributes:
        scope: name scopes, without the op's own name; empty for none.
        line: ``file:line`` of the user's code; empty where there is none.
    """

    scope: str
    line: str


class Origins:
    """Places of the ops of one graph, asked for in its order."""

    def __init__(self) -> None:
        self._known: dict[str, OpOrigin] = {}

    def of(self, op: tf.Operation) -> OpOrigin:
        """The place of an op; of a gradient op that of its forward op."""
        forward = op
        while forward._original_op is not None:
            forward = forward._original_op
        scope, _, _ = forward.name.rpartition("/")
        parts = scope.split("/")
        if _TAPE in parts:
            return self._of_forward("/".join(parts[parts.index(_TAPE) + 1 :]), op)
        found = OpOrigin(scope, _line(forward))
        self._known[forward.name] = found
        self._known.setdefault(scope, found)
        return found

    def _of_forward(self, name: str, op: tf.Operation) -> OpOrigin:
        """The place of the forward op ``name``, or of the innermost known scope around it."""
        inner = name
        while inner:
            if inner in self._known:
                return self._known[inner]
            inner = inner.rpartition("/")[0]
        return OpOrigin(name, _line(op))


def _line(op: tf.Operation) -> str:
    """The user's line of an op; where a library has made it for an object, that of the object."""
    line, known = user_line(op), own_attribute(op, LINE)
    caller, _, own = (known or "").partition("\n")
    return own if own and caller == line else line
