"""One program from a function, and loops in programs whose iterations take elements of an infeed queue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ..effects import EFFECTS, checked_kinds
from ..importer.tracer import TracedFunction, trace
from ..programs.hosting import ProgramHost
from ..programs.infeed import IPUInfeedQueue, as_arguments
from ..programs.looping import repeated
from ..programs.program import TracedProgram
from .placing import ordinal_of


@checked_kinds("computation")
def compile(computation: Callable[..., Any], inputs: Sequence[Any] | None = None) -> Any:
    """Make one IPU program of ``computation``.

    Args:
        inputs: its arguments: tensors (placeholders among them), data, nested.

    Returns:
        What ``computation`` returned, as tensors of the graph that are there when the program has run: a list for a
        tensor or a flat list; an operation where it returned operations only or nothing. In eager mode the program runs
        at once.

    Raises:
        TypeError: ``computation`` is not callable, or ``inputs`` no list. GraphError (when it runs): an op that the IPU
            does not have.
    """
    if not callable(computation):
        raise TypeError(f"ipu_compiler.compile: {computation!r} is not a function")
    if inputs is not None and not isinstance(inputs, (list, tuple)):
        raise TypeError(f"ipu_compiler.compile: inputs must be a list, got {type(inputs).__name__}")
    if isinstance(ops.get_default_graph(), FuncGraph) and not tf.executing_eagerly():
        return computation(*(inputs or ()))  # a part of the program that is being traced
    arguments = tf.nest.map_structure(tf.convert_to_tensor, list(inputs or ()), expand_composites=True)
    function_name = getattr(computation, "__name__", "program")
    name = function_name if function_name.isidentifier() else "program"
    traced = trace(name, computation, arguments, automatic=tf.executing_eagerly())
    program = TracedProgram(traced, name)
    if not tf.executing_eagerly():
        # An op without a meaning shows which device the scopes around give.
        place = tf.no_op(name="ipu_place").device
        program.device = ordinal_of(place) if "IPU" in place.upper() else program.device
    host = ProgramHost(program)
    flat = tf.nest.flatten(arguments)
    if tf.executing_eagerly():
        return _packed(traced, host.run(flat), None)
    results, done = host.in_graph(flat)
    return _packed(traced, results, done)


def _packed(traced: TracedFunction, results: list[tf.Tensor], done: tf.Operation | None) -> Any:
    """The results in the form that ``xla.compile`` documents."""
    structure = traced.structure
    if not results:
        return done
    flat = not isinstance(structure, dict) and not any(
        tf.nest.is_nested(part) for part in (structure if isinstance(structure, (list, tuple)) else [structure])
    )
    if flat:
        return results
    remaining = iter(results)
    return tf.nest.map_structure(lambda leaf: next(remaining) if isinstance(leaf, tf.Tensor) else done, structure)


@checked_kinds()
def repeat(
    n: int,
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: IPUInfeedQueue | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Execute ``body`` ``n`` times.

    Args:
        n: number of iterations, known when the program is built.
        body: takes the values of ``inputs`` of the iteration before, then an element of the queue (a dictionary as
            named arguments); returns new values for ``inputs``, then any operations.
        inputs: initial values.
        infeed_queue: read once per iteration.
        use_while_v1: no effect.

    Returns:
        The values after the last iteration: a list, the value itself when there is one, an operation when there are
        none.

    Raises:
        TypeError: ``body`` cannot be called with these arguments, or returns values of other types.
        ValueError: it returns values of other shapes or after operations, or the number of iterations does not suit the
            gradient accumulation inside.
    """
    EFFECTS.given("ipu.loops.repeat(use_while_v1)", use_while_v1)
    known = tf.get_static_value(n) if tf.is_tensor(n) else n
    if known is None:
        raise NotImplementedError("loops.repeat: the number of iterations has to be known when the program is compiled")
    if isinstance(known, (bool, float)) or known < 0:
        raise ValueError(f"loops.repeat: the number of iterations has to be an integer of at least 0, not {known!r}")
    values = [] if inputs is None else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    _check_arguments(body, values, infeed_queue)
    carried = [tf.convert_to_tensor(value) for value in values]
    positional, named = as_arguments(infeed_queue.element_spec) if infeed_queue is not None else ([], {})
    traced = trace("loop", body, [*carried, *positional], named)
    traced.tensors = _results(traced.structure, carried)
    return repeated(traced, int(known), carried, infeed_queue)


def _check_arguments(body: Callable[..., Any], values: Sequence[Any], infeed_queue: IPUInfeedQueue | None) -> None:
    positional, named = as_arguments(infeed_queue.element_spec) if infeed_queue is not None else ([], {})
    try:
        inspect.signature(body).bind(*values, *positional, **named)
    except TypeError as error:
        start = "Supplied loop body function cannot be called with the specified inputs. You specified "
        if infeed_queue is None:
            raise TypeError(f"{start}{len(values)} inputs: {values}, but the loop body needs: {error}") from None
        raise TypeError(
            f"{start}{len(values)} inputs: {values} and {infeed_queue.number_of_tuple_elements} additional inputs from "
            f"infeed, but the computation needs: {error}"
        ) from None
    except ValueError:  # no signature, e.g. a built-in function
        return


def _results(outputs: Any, carried: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors that ``body`` returned, checked against its arguments."""
    listed = [] if outputs is None else list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    while listed and (isinstance(listed[-1], tf.Operation) or listed[-1] is None):
        listed.pop()
    if any(not isinstance(o, tf.Tensor) for o in listed):
        raise ValueError("IPU loop body must return zero or more Tensor values followed by zero or more Operations.")
    start_types, end_types = [t.dtype.name for t in carried], [t.dtype.name for t in listed]
    if start_types != end_types:
        raise TypeError(f"Mismatch between input types and output types for loop body: {start_types} vs {end_types}.")
    for index, (start, end) in enumerate(zip(carried, listed)):
        if not start.shape.is_compatible_with(end.shape):
            raise ValueError(
                f"loop body: value {index} has shape {start.shape} at the start of an iteration and {end.shape} "
                "at its end; they must be the same"
            )
    return listed


@checked_kinds()
def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: IPUInfeedQueue | None = None,
    maximum_iterations: int | None = None,
    use_while_v1: bool = True,
) -> Any:
    """:func:`repeat` for loops whose ``condition`` is a constant.

    Raises:
        NotImplementedError: the condition depends on values of the loop, or there is no ``maximum_iterations``.
    """
    EFFECTS.given("ipu.loops.while_loop(use_while_v1)", use_while_v1)
    values = [] if inputs is None else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    traced = trace("condition", condition, [tf.convert_to_tensor(v) for v in values])
    holds = tf.get_static_value(traced.tensors[0]) if len(traced.tensors) == 1 else None
    if holds is None:
        raise NotImplementedError(
            "loops.while_loop: a condition on values of the loop makes the number of iterations depend on data, which "
            "programs here cannot express; use loops.repeat with a fixed number"
        )
    if maximum_iterations is None and holds:
        raise NotImplementedError("loops.while_loop: a constant condition needs maximum_iterations, or it never ends")
    return repeat((maximum_iterations or 0) if holds else 0, body, inputs, infeed_queue)
