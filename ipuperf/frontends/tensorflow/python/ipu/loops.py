"""``loops.repeat``: a loop on the device whose iterations take elements of an infeed queue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ...effects import EFFECTS
from ...importer.tracer import trace
from ...programs.infeed import IPUInfeedQueue, as_arguments
from ...programs.looping import repeated


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
    given, found = [t.dtype.name for t in carried], [t.dtype.name for t in listed]
    if given != found:
        raise TypeError(f"Mismatch between input types and output types for loop body: {given} vs {found}.")
    for index, (before, after) in enumerate(zip(carried, listed)):
        if not before.shape.is_compatible_with(after.shape):
            raise ValueError(
                f"loop body: value {index} has shape {before.shape} at the start of an iteration and {after.shape} "
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
    found = trace("condition", condition, [tf.convert_to_tensor(v) for v in values])
    holds = tf.get_static_value(found.tensors[0]) if len(found.tensors) == 1 else None
    if holds is None:
        raise NotImplementedError(
            "loops.while_loop: a condition on values of the loop makes the number of iterations depend on data, which "
            "programs here cannot express; use loops.repeat with a fixed number"
        )
    if maximum_iterations is None and holds:
        raise NotImplementedError("loops.while_loop: a constant condition needs maximum_iterations, or it never ends")
    return repeat((maximum_iterations or 0) if holds else 0, body, inputs, infeed_queue)


__all__ = ["repeat", "while_loop"]
