"""``loops.repeat``: a loop on the device whose iterations take elements of an infeed queue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ipuperf.ir import TensorSpec
from ipuperf.ops import Loop

from ...array import Array, convert
from ...effects import EFFECTS
from ...infeed import IPUInfeedQueue, as_arguments
from ...tracing import Frame, Operation, current_frame, use_frame


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
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ValueError(f"loops.repeat: the number of iterations has to be an integer of at least 0, not {n!r}")
    values = [] if inputs is None else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    _check_arguments(body, values, infeed_queue)
    outer = current_frame()
    carried = [convert(value) for value in values]
    frame = outer.inner("loop", outer.executions * n)
    with use_frame(frame):
        arguments = [
            Array(frame.graph.add_input(TensorSpec(a.shape, a.dtype), f"carried_{i}")) for i, a in enumerate(carried)
        ]
        positional, named = as_arguments(infeed_queue.load(frame)) if infeed_queue is not None else ([], {})
        tensors = _results(body(*arguments, *positional, **named), arguments)
        for tensor in tensors:
            frame.graph.add_output(_own(frame, tensor))
    operands = [a.tensor for a in carried]
    results = _close(outer, frame, operands, n)
    if not carried:
        return Operation("repeat")
    return results[0] if len(results) == 1 else results


def _check_arguments(body: Callable[..., Any], values: Sequence[Any], infeed_queue: IPUInfeedQueue | None) -> None:
    positional, named = as_arguments(infeed_queue.element) if infeed_queue is not None else ([], {})
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


def _results(outputs: Any, arguments: Sequence[Array]) -> list[Array]:
    """The arrays that ``body`` returned, checked against its arguments."""
    listed = [] if outputs is None else list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    while listed and (isinstance(listed[-1], Operation) or listed[-1] is None):
        listed.pop()
    if any(isinstance(o, Operation) or o is None for o in listed):
        raise ValueError("IPU loop body must return zero or more Tensor values followed by zero or more Operations.")
    arrays = [convert(o, arguments[i] if i < len(arguments) else None) for i, o in enumerate(listed)]
    given, found = [a.dtype.name for a in arguments], [a.dtype.name for a in arrays]
    if given != found:
        raise TypeError(f"Mismatch between input types and output types for loop body: {given} vs {found}.")
    for index, (argument, array) in enumerate(zip(arguments, arrays)):
        if argument.shape != array.shape:
            raise ValueError(
                f"loop body: value {index} has shape {argument.shape} at the start of an iteration and {array.shape} "
                "at its end; they must be the same"
            )
    return arrays


def _own(frame: Frame, array: Array) -> Any:
    """The tensor as an output of the frame: inputs and captured values are outputs of the graph itself."""
    return frame.get(array.tensor)


def _close(outer: Frame, frame: Frame, carried: list[Any], n: int) -> list[Array]:
    """The loop op in ``outer``; with gradient accumulation a loop of updates around the loop of micro-batches."""
    accumulation = frame.accumulation
    if accumulation is not None:
        if n % accumulation.count:
            raise ValueError(
                f"Detected a gradient accumulation operation with {accumulation.count} number of mini batches inside a "
                f"loop with {n} iterations: the number of iterations has to be a multiple of it"
            )
        middle = outer.inner("weight_update", outer.executions * (n // accumulation.count))
        inner_carried = [middle.graph.add_input(t.spec, f"carried_{i}") for i, t in enumerate(carried)]
        results = _loop(middle, frame, inner_carried, accumulation.count)
        accumulation.update(middle)
        for tensor in results:
            middle.graph.add_output(tensor)
        frame, n = middle, n // accumulation.count
    return [Array(t) for t in _loop(outer, frame, carried, n)]


def _loop(outer: Frame, frame: Frame, carried: list[Any], n: int) -> list[Any]:
    operands = [*carried, *frame.captured]
    names = [t.name for t in frame.graph.outputs]
    return outer.create(Loop, operands, names, callee=frame.graph, trip_count=n).outputs


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
    with use_frame(current_frame().inner("condition", 0)):
        holds = condition(*(convert(v) for v in values))
    if not isinstance(holds, bool):
        raise NotImplementedError(
            "loops.while_loop: a condition on values of the loop makes the number of iterations depend on data, which "
            "programs here cannot express; use loops.repeat with a fixed number"
        )
    if maximum_iterations is None and holds:
        raise NotImplementedError("loops.while_loop: a constant condition needs maximum_iterations, or it never ends")
    return repeat(maximum_iterations or 0 if holds else 0, body, inputs, infeed_queue)
