"""The loop on the device that ``loops.repeat`` asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops

from ipuperf.ir import Tensor
from ipuperf.ops import Loop

from ..importer import Importer, Value, marker, tensor_of
from ..importer.tracer import TracedFunction, changed_captures
from ..importer.tracing import Frame, frame_of, use_frame
from .infeed import IPUInfeedQueue


def repeated(traced: TracedFunction, n: int, carried: Sequence[tf.Tensor], infeed: IPUInfeedQueue | None) -> Any:
    """A loop of ``n`` iterations of a traced body, in the default graph: the carried values after it, or the operation
    where there are none."""
    loop = _Repeat(traced, n, len(carried), infeed)
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in carried]
    inputs = [*carried, *traced.captured]
    results = marker("repeat", loop, inputs, specs)
    record.record_operation("repeat", results, inputs, _no_gradient)
    if not results:
        return ops.get_default_graph().get_operations()[-1]
    return results[0] if len(results) == 1 else results


def _no_gradient(*_: Any) -> NoReturn:
    raise NotImplementedError(
        "loops.repeat has no gradient: take gradients inside of its body, or use tf.while_loop, which has one"
    )


class _Repeat:
    """A loop where the op stands; its inputs are the carried values and what the body captures."""

    def __init__(self, traced: TracedFunction, n: int, carried: int, infeed: IPUInfeedQueue | None) -> None:
        self._traced = traced
        self._n = n
        self._carried = carried
        self._infeed = infeed

    def changed(self) -> list[int]:
        """Inputs that are variables which the body may change."""
        return changed_captures(self._traced, self._carried)

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """The loop."""
        outer = frame_of(importer.place, "loops.repeat")
        carried = [tensor_of(value, outer) for value in inputs[: self._carried]]
        if not self._n:
            return carried
        frame = outer.inner("loop", outer.executions * self._n)
        with use_frame(frame):
            values: list[Value] = [frame.graph.add_input(t.spec, f"carried_{i}") for i, t in enumerate(carried)]
            if self._infeed is not None:
                values += self._infeed.load(frame, self)
            for result in self._traced.build(frame, values, inputs[self._carried :]):
                frame.graph.add_output(tensor_of(result, frame))
        return close(outer, frame, carried, self._n)


def close(outer: Frame, frame: Frame, carried: Sequence[Tensor], n: int) -> list[Tensor]:
    """The loop op in ``outer``; with gradient accumulation a loop of updates around the loop of micro-batches.

    Raises:
        ValueError: the number of iterations is no multiple of that of the micro-batches.
    """
    accumulation = frame.accumulation
    if accumulation is not None:
        if n % accumulation.count:
            raise ValueError(
                f"Detected a gradient accumulation operation with {accumulation.count} number of mini batches inside a "
                f"loop with {n} iterations: the number of iterations has to be a multiple of it"
            )
        middle = outer.inner("weight_update", outer.executions * (n // accumulation.count))
        inner_carried = [middle.graph.add_input(t.spec, f"carried_{i}") for i, t in enumerate(carried)]
        frame.outer = middle
        results = _loop(middle, frame, inner_carried, accumulation.count)
        accumulation.update(middle)
        for tensor in results:
            middle.graph.add_output(tensor)
        frame, n = middle, n // accumulation.count
    return _loop(outer, frame, carried, n)


def _loop(outer: Frame, frame: Frame, carried: Sequence[Tensor], n: int) -> list[Tensor]:
    operands = [*carried, *frame.captured]
    names = [t.name for t in frame.graph.outputs]
    return outer.create(Loop, operands, names, callee=frame.graph, trip_count=n).outputs
