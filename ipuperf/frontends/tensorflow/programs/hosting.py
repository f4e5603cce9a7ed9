"""How the host runs a program: as an op of a graph of version 1, or at once.

In a graph the program is one op (``tf.numpy_function``): its inputs are the arguments and the values of the variables,
its outputs the results and the new values of the variables that the program may change, which are assigned after it.
So sessions, feeds, initialisers and savers are TensorFlow's. What a run raises is what ``Session.run`` raises, and
sessions place operations softly, as there is no device of the name of an IPU.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session as _session
from tensorflow.python.eager.polymorphic_function import concrete_function, function_type_utils, polymorphic_function
from tensorflow.python.ops import resource_variable_ops

from ..importer import Resource, resource_of
from ..importer.markers import is_marker
from ..importer.tracer import TracedFunction, changed_handles
from .program import TracedProgram, spec_of


class ProgramHost:
    """The host's side of a program.

    Args:
        program: the program.
    """

    def __init__(self, program: TracedProgram) -> None:
        self.program = program
        self.handles = program.handles
        self.resources = [resource_of(handle) for handle in self.handles]
        self._number = {resource: number for number, resource in enumerate(self.resources)}
        self._on_device: dict[Resource, tf.Tensor] = {}
        # A program has one set of variables on its device, so runs of it take turns.
        self._running = threading.RLock()

    def number(self, resource: Resource) -> int:
        """Which of the handles is that of a resource."""
        return self._number[resource]

    # -- in a graph ----------------------------------------------------------------------------------------------------

    def in_graph(self, arguments: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Operation]:
        """The program as an op of the default graph: its results, and an operation that is done when it has run and
        its variables have their new values."""
        program, traced = self.program, self.program.traced
        fed = [*arguments, *program.feeds]
        specs = [spec_of(resource) for resource in self.resources]
        values = [
            resource_variable_ops.read_variable_op(handle, spec.dtype) for handle, spec in zip(self.handles, specs)
        ]
        places = [self.number(resource_of(h)) for h in changed_handles(traced)]
        types = [t.dtype for t in traced.tensors] + [specs[place].dtype for place in places]
        with tf.device("/device:CPU:0"):
            outputs = tf.numpy_function(
                self._called(len(fed), places, types),
                [*fed, *values],
                # numpy_function needs a result, also of a program that has none.
                types or [tf.int32],
                stateful=True,
                name=program.name,
            )
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        count = len(traced.tensors)
        assigned = []
        for place, value in zip(places, outputs[count:]):
            # numpy_function loses shapes.
            value.set_shape(specs[place].shape)
            assigned.append(resource_variable_ops.assign_variable_op(self.handles[place], value))
        done = tf.group(*assigned, outputs[0].op, name=f"{program.name}_done")
        results = []
        # Whoever fetches a result alone gets the assignments of variables with it.
        with tf.control_dependencies([done]):
            for tensor, value in zip(traced.tensors, outputs):
                value.set_shape(tensor.shape)
                results.append(tf.identity(value))
        return results, done

    def _called(self, count: int, places: Sequence[int], types: Sequence[tf.DType]) -> Callable[..., list[np.ndarray]]:
        def call(*operands: np.ndarray) -> list[np.ndarray]:
            try:
                results, changed = self.program.run(operands[:count], operands[count:], self.number)
            except Exception as error:
                # TensorFlow turns exceptions into texts; the exception is kept here, and raised again by the session.
                raise _RAISED.keep(error) from None
            values = [changed.get(self.resources[p], operands[count + p]) for p in places]
            if not types:
                return [np.int32(0)]
            return [np.asarray(v, d.as_numpy_dtype) for v, d in zip([*results, *values], types)]

        return call

    # -- at once -------------------------------------------------------------------------------------------------------

    def run(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Run it now; its results."""
        with self._running:
            return self._run(arguments)

    def _run(self, arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        program, traced = self.program, self.program.traced
        program.finish()
        resource_handles = [a for a in arguments if a.dtype == tf.resource]
        handles = [*traced.captured, *resource_handles]
        handles = [h for h in handles if h.dtype == tf.resource]
        for resource, handle in zip(self.resources, handles):
            if resource in program.iterators:
                program.iterators[resource].handle = handle
        values = [_read(handle) for handle in handles]
        numbers = [a.numpy() for a in arguments if a.dtype != tf.resource]
        present = self._take_present(values)
        results, changed = program.run(numbers, values, self.number, present)
        values_after = dict(zip(self.resources, values))
        for resource, value in changed.items():
            values_after[resource] = tf.constant(value, spec_of(resource).dtype)
            resource_variable_ops.assign_variable_op(handles[self.number(resource)], values_after[resource])
        # The tensors are kept: this is what makes their addresses comparable (`_take_present`).
        self._on_device = {
            resource: values_after[resource] for resource in program.lasting() if resource in values_after
        }
        return [tf.constant(value, t.dtype) for value, t in zip(results, traced.tensors)]

    def _take_present(self, values: Sequence[tf.Tensor | None]) -> set[Resource]:
        """The variables that have their present values on the device, which nothing is known about from here on.

        A variable of TensorFlow shares its memory with the tensor that was assigned to it, or read, last. As long as
        this tensor is kept, whatever changes the variable gives it another memory.
        """
        before_run, self._on_device = self._on_device, {}
        present = dict(zip(self.resources, values))
        return {resource for resource, tensor in before_run.items() if _same_memory(tensor, present[resource])}


def _same_memory(left: tf.Tensor, right: tf.Tensor) -> bool:
    """Whether two tensors, both kept, are the same elements in memory."""
    return _address(left) == _address(right)


def _address(tensor: tf.Tensor) -> int | None:
    """Where a tensor's elements are: the first field of what DLPack calls a managed tensor. (``numpy()`` copies.)"""
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    return ctypes.c_void_p.from_address(_managed_tensor(capsule, b"dltensor")).value


_managed_tensor = ctypes.pythonapi.PyCapsule_GetPointer
_managed_tensor.restype, _managed_tensor.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _read(handle: tf.Tensor) -> tf.Tensor | None:
    """The value of a variable; None for an iterator."""
    data = resource_variable_ops.get_eager_safe_handle_data(handle)
    if data is None or not data.is_set:
        return None
    return resource_variable_ops.read_variable_op(handle, tf.as_dtype(data.shape_and_type[0].dtype))


class _Raised:
    """Errors of programs that sessions run, until the session raises them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[str, Exception] = {}

    def keep(self, error: Exception) -> Exception:
        """Keep ``error``; what the op raises instead."""
        with self._lock:
            mark = f"ipuperf program error {len(self._errors)}:{id(error)}"
            self._errors[mark] = error
        return RuntimeError(mark)

    def taken(self, message: str) -> Exception | None:
        """The error that a message of TensorFlow is about."""
        with self._lock:
            mark = next((m for m in self._errors if m in message), None)
            return None if mark is None else self._errors.pop(mark)


_RAISED = _Raised()
_run = _session.BaseSession.run
_begin = _session.BaseSession.__init__


def _begin_with_ipus(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
    """Operations of the host that a program has put on ``/device:IPU:0`` run on the processor."""
    placed = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    if config is not None:
        placed.CopyFrom(config)
        placed.allow_soft_placement = True
    _begin(self, target, graph, placed)


def _run_and_raise(self: Any, *arguments: Any, **named: Any) -> Any:
    try:
        return _run(self, *arguments, **named)
    except tf.errors.OpError as error:
        error_raised = _RAISED.taken(error.message)
        if error_raised is None:
            raise
        raise error_raised from error_raised.__cause__


_session.BaseSession.run = _run_and_raise
_session.BaseSession.__init__ = _begin_with_ipus


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
        results = _host(concrete, len(flat)).run(flat)
    return concrete.function_type.pack_output(results)


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
        bound = function_type_utils.canonicalize_function_inputs(positional, named, kind, fn._default_values)
        positional, named = bound.args, bound.kwargs
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
        graphs = [function.graph for function in self._list_all_concrete_functions() if self._jit_compile]
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
