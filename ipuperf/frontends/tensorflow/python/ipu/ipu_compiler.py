"""``ipu_compiler.compile``: one program from a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ...importer.tracer import TracedFunction, trace
from ...programs.hosting import ProgramHost
from ...programs.program import TracedProgram
from .scopes import ordinal_of


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
    given = getattr(computation, "__name__", "program")
    name = given if given.isidentifier() else "program"
    traced = trace(name, computation, arguments, automatic=tf.executing_eagerly())
    program = TracedProgram(traced, name)
    if not tf.executing_eagerly():
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
    rest = iter(results)
    return tf.nest.map_structure(lambda leaf: next(rest) if isinstance(leaf, tf.Tensor) else done, structure)


__all__ = ["compile"]
