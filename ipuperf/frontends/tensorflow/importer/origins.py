"""Where ops of TensorFlow's graph come from, and what is written on them for the import: shard, phase, line.

Gradient ops belong to their forward op: they stand where it does, on the same shard, of phase ``bwd``. ``tf.gradients``
says which op that is (``_original_op``); a tape names a gradient op after it: ``gradient_tape/`` and the forward op, or
its scope (``tensorflow: python/eager/backprop.py``).
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import ops

import ipuperf
from ipuperf.ir.phase import Phase

_PACKAGES = ("tensorflow", "keras", "tf_keras", "ipuperf", "wrapt", "numpy")


class _PassedOver(dict[str, bool]):
    """By file: whether it is never the user's."""

    def __missing__(self, file: str) -> bool:
        passed = self[file] = any(file.startswith(root) for root in _ROOTS) or "__autograph_generated" in file
        return passed


def _roots() -> list[str]:
    site = {sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")}
    site.add(os.path.dirname(os.path.dirname(os.path.abspath(tf.__file__))))
    package_folder = os.path.dirname(ipuperf.__file__)
    standard = os.path.dirname(os.path.abspath(os.__file__))
    roots = [os.path.join(folder, package) + os.sep for folder in site for package in _PACKAGES]
    return [
        *roots,
        package_folder + os.sep,
        *(os.path.join(standard, name) for name in ("contextlib.py", "functools.py")),
    ]


_ROOTS = _roots()
_PASSED_OVER = _PassedOver()


def user_line(op: tf.Operation) -> str:
    """``file:line`` of the user's code that made ``op``; ``""`` where there is none."""
    frames: Any = op.traceback
    if frames is None:
        return ""
    for index in range(len(frames) - 1, -1, -1):
        frame = frames[index]
        if not _PASSED_OVER[frame.filename]:
            return f"{frame.filename}:{frame.lineno}"
    return ""


LINE = "_ipu_line"
"""Attribute of ops that a library makes for an object of the user's (a layer): the line that called the library, and
the line of the object."""
_TAPE = "gradient_tape"


def own_attribute(op: tf.Operation, name: str) -> Any:
    """An attribute that :mod:`ipuperf.tensorflow.importer.origins` has written on ``op``; None without."""
    # Most graphs have no such attribute, and asking an op for it would cost an exception each time.
    if not getattr(op.graph, "ipuperf_written", False):
        return None
    try:
        value = op.get_attr(name)
    except ValueError:
        return None
    return value.decode() if isinstance(value, bytes) else value


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
        origin = OpOrigin(scope, _line(forward))
        self._known[forward.name] = origin
        # The first op of a scope stands for the scope.
        self._known.setdefault(scope, origin)
        return origin

    def _of_forward(self, name: str, op: tf.Operation) -> OpOrigin:
        """The place of the forward op ``name``, or of the innermost known scope around it."""
        scope_name = name
        while scope_name:
            if scope_name in self._known:
                return self._known[scope_name]
            scope_name = scope_name.rpartition("/")[0]
        return OpOrigin(name, _line(op))


def _line(op: tf.Operation) -> str:
    """The user's line of an op; where a library has made it for an object, that of the object."""
    line, known = user_line(op), own_attribute(op, LINE)
    caller, _, object_line = (known or "").partition("\n")
    return object_line if object_line and caller == line else line


SHARD = "_ipu_shard"
PHASE = "_ipu_phase"


@contextmanager
def written(name: str, value: int | str) -> Iterator[None]:
    """Ops of the default graph that are made in the block have this attribute."""
    if isinstance(value, int):
        attribute = attr_value_pb2.AttrValue(i=value)
    else:
        attribute = attr_value_pb2.AttrValue(s=value.encode())
    graph = ops.get_default_graph()
    graph.ipuperf_written = True
    with graph._attr_scope({name: attribute}):
        yield


def shard_of(op: tf.Operation) -> int | None:
    """The shard that an op was made on; of a gradient op that of its forward op, if it has one."""
    chain = [op]
    while chain[-1]._original_op is not None:
        chain.append(chain[-1]._original_op)
    shards = (own_attribute(ancestor, SHARD) for ancestor in reversed(chain))
    return next((int(shard) for shard in shards if shard is not None), None)


def phase_of(op: tf.Operation) -> Phase | None:
    """The phase that an op was made for; None: that of its surroundings."""
    if op.type.startswith("ResourceApply"):
        return "update"
    written_on: Phase | None = own_attribute(op, PHASE)
    return written_on or ("bwd" if is_gradient(op) else None)


def on_line(caller: str, line: str) -> AbstractContextManager[None]:
    """Ops of the default graph that are made in the block on the user's line ``caller`` stand on ``line``."""
    return written(LINE, f"{caller}\n{line}")
