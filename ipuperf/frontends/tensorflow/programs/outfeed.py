"""``IPUOutfeedQueue``: brings results of loop iterations or micro-batches to the host, also while a program runs.

Every element is put into the queue at the moment when the program's mathematics reaches its enqueue, so another thread
or a callback (:meth:`IPUOutfeedQueue.on_enqueue`, not upstream) can dequeue during a run. Simplifications: the
simulated clock moves on at the end of a run only; with ``LAST`` every element is sent and the host keeps the last one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf.ir import Stream
from ipuperf.ir.attributes import ANYTHING, Attribute
from ipuperf.ops import Environment, HostStore, Kernel
from ipuperf.ops.binding import sequence

from ..effects import EFFECTS, checked_kinds
from ..importer import Importer, MadeBy, Value, marker, tensor_of
from ..importer.tracing import device_dtype, frame_of
from .devices import check_ordinal
from .infeed import on_host
from .program import TracedProgram


class IPUOutfeedMode(Enum):
    """``ALL``: a dequeue gives every element since the one before; ``LAST``: only the newest."""

    ALL = "all"
    LAST = "get_last"


class OutfeedStore(HostStore):
    """A HostStore that also hands its value, ``(R, *shape)``, to attribute ``sink`` when it is executed."""

    type: ClassVar[str] = "HostStore"

    sink = Attribute(ANYTHING)

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Store, then hand over a copy."""
        store, sink, tensor = super().kernel(inputs, outputs, env), self.sink, inputs[0]
        return sequence(store, lambda: sink(tensor.copy()))


class IPUOutfeedQueue:
    """A queue from a program to the host.

    Args:
        outfeed_mode: which elements :meth:`dequeue` gives.
        feed_name: stem of the names of the streams.
        device_ordinal, replication_factor, buffer_depth, optimise_latency: without effect.

    Raises:
        ValueError: the mode is no :class:`IPUOutfeedMode`, a buffer of no element, a number of no device.
    """

    @checked_kinds("outfeed_mode", "device_ordinal")
    def __init__(
        self,
        outfeed_mode: IPUOutfeedMode | None = None,
        device_ordinal: int | None = None,
        buffer_depth: int = 3,
        optimise_latency: bool = False,
        feed_name: str | None = None,
        replication_factor: int | None = None,
        outfeed_all: Any = None,
    ) -> None:
        if isinstance(outfeed_mode, str):  # older releases had the name of the feed first
            feed_name, outfeed_mode = outfeed_mode, None
        if outfeed_all is not None:
            outfeed_mode = IPUOutfeedMode.ALL if outfeed_all else IPUOutfeedMode.LAST
        self._outfeed_mode = outfeed_mode or IPUOutfeedMode.ALL
        if not isinstance(self._outfeed_mode, IPUOutfeedMode):
            raise ValueError(
                "Expected `outfeed_mode` value to be of `ipu_outfeed_queue.IPUOutfeedMode` type, but is "
                f"{type(outfeed_mode)}."
            )
        if isinstance(buffer_depth, int) and buffer_depth < 1:
            raise ValueError(f"buffer_depth is {buffer_depth}; at least one element is needed")
        check_ordinal(device_ordinal)
        EFFECTS.given("ipu.ipu_outfeed_queue.IPUOutfeedQueue(device_ordinal)", device_ordinal)
        EFFECTS.given("ipu.ipu_outfeed_queue.IPUOutfeedQueue(replication_factor)", replication_factor)
        EFFECTS.given("ipu.ipu_outfeed_queue.IPUOutfeedQueue(buffer_depth)", buffer_depth)
        EFFECTS.given("ipu.ipu_outfeed_queue.IPUOutfeedQueue(optimise_latency)", optimise_latency)
        self._name = feed_name or "outfeed"
        self._structure: Any = None
        self._specs: list[tf.TensorSpec] = []
        self._graphs: set[Any] = set()
        self._programs: list[tuple[TracedProgram, object, list[Stream]]] = []
        self._partial: list[deque[np.ndarray]] = []
        self._elements: list[list[np.ndarray]] = []
        self._lock = threading.Condition()
        self._callbacks: list[Callable[[IPUOutfeedQueue], Any]] = []

    # -- in a program ------------------------------------------------------------------------------------------------

    def enqueue(self, tensors: Any) -> tf.Operation:
        """Send a tensor, or a tuple, list or dictionary of tensors, where the call stands.

        Raises:
            RuntimeError: outside of a program. ValueError: a second enqueue in the same program, or no tensors.
        """
        graph = ops.get_default_graph()
        if not isinstance(graph, FuncGraph):
            raise RuntimeError("an outfeed queue is fed inside of a program: in a function that the IPU runs")
        owner, sent = object(), []
        for index, tensor in enumerate(self.described(tensors)):
            marker("outfeed_enqueue", MadeBy(partial(self._store, index, owner)), [tensor], [])
            sent.append(graph.get_operations()[-1])
        return tf.group(*sent, name="outfeed_enqueued") if sent else None

    def _store(self, index: int, owner: object, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """Send a tensor of an element where its op stands: those of an element may be on several IPUs. ``owner`` is the
        same for all of them."""
        frame = frame_of(importer.place, "IPUOutfeedQueue.enqueue")
        stream = self.declare(frame.program, owner, frame.executions)[index]
        frame.create(OutfeedStore, [tensor_of(inputs[0], frame)], [], stream=stream, sink=self.sink(index))
        return []

    def described(self, tensors: Any) -> list[tf.Tensor]:
        """The tensors of a structure that the default graph enqueues, which becomes that of the queue.

        Raises:
            ValueError: a second enqueue in the same graph, something other than tensors, keys that are no strings.
        """
        if self.enqueued:
            raise ValueError("An outfeed can only be enqueued once.")
        if isinstance(tensors, dict) and not all(isinstance(key, str) for key in tensors):
            raise ValueError("Expected all keys in the outfeed dictionary to be strings.")
        for leaf in tf.nest.flatten(tensors):
            if not tf.is_tensor(leaf) and not isinstance(leaf, (tf.Variable, np.ndarray, np.generic, bool, int, float)):
                raise ValueError(
                    "IPUOutfeedQueue Enqueue input needs to be a tensor, or a tuple, list or dictionary of tensors; it "
                    f"holds {leaf!r}"
                )
        structure = tf.nest.map_structure(tf.convert_to_tensor, tensors)
        flat = tf.nest.flatten(structure)
        graph = ops.get_default_graph()
        while graph is not None:
            self._graphs.add(graph)
            graph = getattr(graph, "outer_graph", None)
        self._structure = tf.nest.map_structure(lambda _: None, structure)
        self._specs = [tf.TensorSpec(t.shape, t.dtype) for t in flat]
        self._partial = [deque() for _ in flat]
        return flat

    def declare(self, program: TracedProgram, owner: object, executions: int) -> list[Stream]:
        """Streams for the tensors of an element in a program that sends them ``executions`` times.

        Raises:
            ValueError: something else in the program sends to the queue, too.
        """
        for known, owner_known, streams in self._programs:
            if known is program and owner_known is owner:
                return streams
            if known is program:
                raise ValueError("An outfeed can only be enqueued once.")
        streams = [
            program.stream(f"{self._name}_{i}", spec.shape, device_dtype(spec.dtype), "d2h", executions)
            for i, spec in enumerate(self._specs)
        ]
        self._programs.append((program, owner, streams))
        return streams

    def sink(self, index: int) -> Callable[[np.ndarray], None]:
        """What takes tensor ``index`` of each element, of shape ``(R, *shape)``."""

        def take(value: np.ndarray) -> None:
            with self._lock:
                self._partial[index].append(value)
                if not all(self._partial):
                    return
                element = [parts.popleft() for parts in self._partial]
                if self._outfeed_mode is IPUOutfeedMode.LAST:
                    self._elements.clear()
                self._elements.append(element)
                self._lock.notify_all()
            for callback in self._callbacks:
                callback(self)

        return take

    # -- host --------------------------------------------------------------------------------------------------------

    @property
    def enqueued(self) -> bool:
        """Whether the graph that is being traced has an enqueue, or one inside of it; on the host, any has."""
        graph = ops.get_default_graph()
        return graph in self._graphs if isinstance(graph, FuncGraph) else bool(self._graphs)

    def on_enqueue(self, callback: Callable[[IPUOutfeedQueue], Any]) -> None:
        """Call ``callback(queue)`` after each element that arrives, in the middle of a run (not upstream)."""
        self._callbacks.append(callback)

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """The elements that have arrived, stacked along a new first axis, in the structure that was enqueued.

        Shapes are ``(elements, *shape)``, with several replicas ``(elements, replicas, *shape)``; in mode ``LAST`` the
        first axis is missing. Without elements it is empty. In graph mode these are tensors that a session fetches.

        Raises:
            ValueError: no program has an enqueue, or nothing has arrived in mode LAST.
        """
        EFFECTS.given("ipu.ipu_outfeed_queue.IPUOutfeedQueue.dequeue(wait_for_completion)", wait_for_completion)
        if not self.enqueued:
            raise ValueError("Trying to dequeue an outfeed which has not been enqueued.")
        if tf.executing_eagerly():
            tensors = [tf.constant(v, spec.dtype) for v, spec in zip(self.take(), self._specs)]
        else:
            tensors = tf.numpy_function(
                self._fetched, [], [spec.dtype for spec in self._specs], stateful=True, name="outfeed_dequeue"
            )
            tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
        return tf.nest.pack_sequence_as(self._structure, tensors)

    def _fetched(self) -> list[np.ndarray]:
        return [v.astype(spec.dtype.as_numpy_dtype) for v, spec in zip(self.take(), self._specs)]

    def take(self) -> list[np.ndarray]:
        """:meth:`dequeue` now: an array per tensor of an element."""
        with self._lock:
            elements = list(self._elements)
            if self._outfeed_mode is IPUOutfeedMode.ALL:
                self._elements.clear()
        if self._outfeed_mode is IPUOutfeedMode.LAST:
            if not elements:
                raise ValueError("Trying to dequeue an outfeed in mode LAST before any element has arrived.")
            return [part if len(part) > 1 else part[0] for part in elements[-1]]
        return [self._stacked(spec, [e[i] for e in elements]) for i, spec in enumerate(self._specs)]

    def _stacked(self, spec: tf.TensorSpec, parts: list[np.ndarray]) -> np.ndarray:
        if parts:
            stacked = np.stack(parts)
            return stacked if stacked.shape[1] > 1 else stacked[:, 0]
        replicas = self._programs[-1][0].ir.replication_factor if self._programs else 1
        shape = [size or 0 for size in spec.shape]  # Keras' symbolic call of a layer knows no batch
        return np.empty((0, *((replicas,) if replicas > 1 else ()), *shape), spec.dtype.as_numpy_dtype)

    def __iter__(self) -> Iterator[Any]:
        """The elements that have arrived, one by one.

        Raises:
            RuntimeError: in graph mode.
        """
        if not tf.executing_eagerly():
            raise RuntimeError("IPUOutfeedQueue can only be iterated over in eager mode; use dequeue()")
        stacked = self.take()
        for number in range(min((len(leaf) for leaf in stacked), default=0)):
            yield tf.nest.pack_sequence_as(
                self._structure, [tf.constant(a[number], spec.dtype) for a, spec in zip(stacked, self._specs)]
            )

    @property
    def deleter(self) -> tf.Operation | None:
        """Forgets all elements: now in eager mode, otherwise an operation for a session."""
        return on_host(self._elements.clear, "outfeed_deleter")


__all__ = ["IPUOutfeedMode", "IPUOutfeedQueue", "OutfeedStore"]
