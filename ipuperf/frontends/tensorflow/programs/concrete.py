"""``tf.function`` on the IPU: each concrete function is a program."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import concrete_function, function_type_utils, polymorphic_function

from ..importer.markers import is_marker
from ..importer.tracer import TracedFunction
from .hosting import ProgramHost
from .program import TracedProgram

_HOSTS: weakref.WeakKeyDictionary[Any, ProgramHost] = weakref.WeakKeyDictionary()
"""The program of each concrete function, by its graph."""
_FIXED: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""By a ``tf.function`` that leaves lengths open: the same without a signature."""


def call(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a ``tf.function``, or a concrete one, on the IPU now; its results.

    Raises:
        ValueError: another function.
    """
    concrete, flat = _concrete(fn, args, kwargs)
    with tf.device("/CPU:0"):
        found = _host(concrete, len(flat)).run(flat)
    return concrete.function_type.pack_output(found)


def program_of(fn: Any, *args: Any, **kwargs: Any) -> TracedProgram:
    """The program that a ``tf.function``, or a concrete one, is for such arguments."""
    concrete, flat = _concrete(fn, args, kwargs)
    return _host(concrete, len(flat)).program


def _concrete(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """The concrete function for arguments, and the tensors among these; what is not given has the function's default.

    Where a signature (or ``reduce_retracing``) leaves lengths open, the function is traced for those that are given, as
    XLA compiles it.
    """
    positional, named = tuple(args), dict(kwargs)
    if isinstance(fn, polymorphic_function.Function):
        kind = fn.function_type
        given = function_type_utils.canonicalize_function_inputs(positional, named, kind, fn._default_values)
        positional, named = given.args, given.kwargs
        with intercepted(None):
            concrete = fn.get_concrete_function(*positional, **named)
            if not all(spec.shape.is_fully_defined() for spec in concrete.function_type.flat_inputs):
                concrete = _of_given_shapes(fn).get_concrete_function(*positional, **named)
    elif isinstance(fn, concrete_function.ConcreteFunction):
        concrete = fn
    else:
        raise ValueError(
            "IPUStrategyV1.run(fn, ...) does not support eager execution. Either convert `fn` into a tf.function or "
            "consider calling strategy.run inside a tf.function."
        )
    kind = concrete.function_type
    return concrete, kind.unpack_inputs(function_type_utils.canonicalize_function_inputs(positional, named, kind))


def _of_given_shapes(fn: Any) -> Any:
    """The same function, traced anew for all shapes."""
    if fn not in _FIXED:
        _FIXED[fn] = tf.function(fn.python_function, autograph=fn._autograph)
    return _FIXED[fn]


def _host(concrete: Any, arguments: int) -> ProgramHost:
    """The host's side of the program of a concrete function."""
    graph = concrete.graph
    if graph not in _HOSTS:
        graph._add_control_dependencies = True
        results = len(concrete.function_type.flat_outputs)  # what TensorFlow appends for a backward pass is no result
        traced = TracedFunction(graph, list(graph.inputs[:arguments]), None, list(graph.outputs[:results]))
        _HOSTS[graph] = ProgramHost(TracedProgram(traced, graph.name))
    return _HOSTS[graph]


_call = polymorphic_function.Function.__call__
_ACTIVE: list[Callable[..., Any] | None] = []


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What calling a ``tf.function`` does: one that is compiled runs on the IPU in the scope of a strategy."""
    run = _ACTIVE[-1] if _ACTIVE else None
    if run is not None and self._jit_compile and tf.executing_eagerly():
        return run(self, args, kwargs)
    try:
        return _call(self, *args, **kwargs)
    except tf.errors.OpError:
        graphs = [found.graph for found in self._list_all_concrete_functions() if self._jit_compile]
        if not any(is_marker(op) for graph in graphs for op in graph.get_operations()):
            raise
    raise RuntimeError(f"{self._name} uses what only an IPU has: call it in the scope of an IPUStrategy, or by its run")


polymorphic_function.Function.__call__ = _called


@contextmanager
def intercepted(run: Callable[..., Any] | None) -> Iterator[None]:
    """Functions with ``jit_compile=True`` that are called in the block are run by ``run(function, args, kwargs)``; by
    TensorFlow where it is None."""
    _ACTIVE.append(run)
    try:
        yield
    finally:
        _ACTIVE.pop()
