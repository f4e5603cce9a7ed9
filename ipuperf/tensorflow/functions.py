"""``tf.function`` on the IPU: each concrete function is a program."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_type as _types
from tensorflow.python.eager.polymorphic_function import concrete_function, function_type_utils, polymorphic_function

from .hosting import Host
from .program import TracedProgram
from .tracer import Traced

_HOSTS: weakref.WeakKeyDictionary[Any, Host] = weakref.WeakKeyDictionary()
"""The program of each concrete function, by its graph."""


def call(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a ``tf.function``, or a concrete one, on the IPU now; its results.

    Raises:
        ValueError: another function.
    """
    if isinstance(fn, concrete_function.ConcreteFunction):
        concrete = fn
    elif isinstance(fn, polymorphic_function.Function):
        with _not_intercepted():
            concrete = fn.get_concrete_function(*args, **kwargs)
    else:
        raise ValueError(
            "IPUStrategyV1.run(fn, ...) does not support eager execution. Either convert `fn` into a tf.function or "
            "consider calling strategy.run inside a tf.function."
        )
    kind = concrete.function_type
    bound = function_type_utils.canonicalize_function_inputs(tuple(args), dict(kwargs), kind)
    flat = kind.unpack_inputs(bound)
    return _run(concrete, kind, [a for a in flat])


def _run(concrete: Any, kind: _types.FunctionType, arguments: Sequence[tf.Tensor]) -> Any:
    graph = concrete.graph
    if graph not in _HOSTS:
        holders = list(graph.inputs[: len(arguments)])
        graph._add_control_dependencies = True
        traced = Traced(graph, holders, None, list(graph.outputs))
        _HOSTS[graph] = Host(TracedProgram(traced, concrete.name_stem if hasattr(concrete, "name_stem") else graph.name))
    with tf.device("/CPU:0"):
        found = _HOSTS[graph].run(arguments)
    return kind.pack_output(found)


_call = polymorphic_function.Function.__call__
_ACTIVE: list[Callable[..., Any] | None] = []


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    run = _ACTIVE[-1] if _ACTIVE else None
    if run is not None and self._jit_compile and tf.executing_eagerly():
        return run(self, args, kwargs)
    return _call(self, *args, **kwargs)


@contextmanager
def intercepted(run: Callable[..., Any]) -> Iterator[None]:
    """Functions with ``jit_compile=True`` that are called in the block are run by ``run(function, args, kwargs)``."""
    polymorphic_function.Function.__call__ = _called
    _ACTIVE.append(run)
    try:
        yield
    finally:
        _ACTIVE.pop()
        if not _ACTIVE:
            polymorphic_function.Function.__call__ = _call


@contextmanager
def _not_intercepted() -> Iterator[None]:
    _ACTIVE.append(None)
    try:
        yield
    finally:
        _ACTIVE.pop()
