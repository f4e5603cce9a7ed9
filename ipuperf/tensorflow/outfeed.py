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
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ipuperf.ir import Stream
from ipuperf.ir.attributes import ANYTHING, Attribute
from ipuperf.ops import Environment, HostStore, Kernel

from .array import convert, is_traced
from .dtypes import HostArray
from .effects import EFFECTS
from .state import state
from .tracing import Operation, current_frame, leaves, map_structure

if TYPE_CHECKING:
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

        def run() -> None:
            store()
            sink(tensor.copy())

        return run


class IPUOutfeedQueue:
    """A queue from a program to the host.

    Args:
        outfeed_mode: which elements :meth:`dequeue` gives.
        feed_name: stem of the names of the streams.
        device_ordinal, replication_factor, buffer_depth, optimise_latency: without effect.

    Raises:
        ValueError: the mode is no :class:`IPUOutfeedMode`.
    """

    def __init__(
        self,
        feed_name: str | None = None,
        outfeed_mode: IPUOutfeedMode | None = None,
        device_ordinal: int | None = None,
        replication_factor: int | None = None,
        buffer_depth: int = 3,
        optimise_latency: bool = False,
    ) -> None:
        if isinstance(feed_name, IPUOutfeedMode):
            feed_name, outfeed_mode = None, feed_name
        self._outfeed_mode = outfeed_mode or IPUOutfeedMode.ALL
        if not isinstance(self._outfeed_mode, IPUOutfeedMode):
            raise ValueError(
                "Expected `outfeed_mode` value to be of `ipu_outfeed_queue.IPUOutfeedMode` type, but is "
                f"{type(outfeed_mode)}."
            )
        if device_ordinal is not None and (not isinstance(device_ordinal, int) or device_ordinal < 0):
            raise ValueError(f"Device ordinal must be an integer of at least 0, it is {device_ordinal!r}")
        EFFECTS.given("ipu.ipu_outfeed_queue.IPUOutfeedQueue(device_ordinal)", device_ordinal)
        EFFECTS.given("ipu.ipu_outfeed_queue.IPUOutfeedQueue(replication_factor)", replication_factor)
        EFFECTS.given("ipu.ipu_outfeed_queue.IPUOutfeedQueue(buffer_depth)", buffer_depth)
        EFFECTS.given("ipu.ipu_outfeed_queue.IPUOutfeedQueue(optimise_latency)", optimise_latency)
        self._name = feed_name or "outfeed"
        self._structure: Any = None
        self._specs: list[tuple[tuple[int, ...], np.dtype]] = []
        self._programs: list[TracedProgram] = []
        self._partial: list[deque[np.ndarray]] = []
        self._elements: list[list[np.ndarray]] = []
        self._received = 0
        self._lock = threading.Condition()
        self._callbacks: list[Callable[[IPUOutfeedQueue], Any]] = []

    # -- in a program ------------------------------------------------------------------------------------------------

    def enqueue(self, tensors: Any) -> Operation:
        """Send an array, or a tuple, list or dictionary of arrays, where the call stands.

        Raises:
            ValueError: a second enqueue in the same program, or something other than arrays.
        """
        frame = current_frame()
        streams = self.declare(frame.program, tensors, frame.executions)
        for index, (leaf, stream) in enumerate(zip(leaves(tensors), streams)):
            frame.create(OutfeedStore, [convert(leaf).tensor], [], stream=stream, sink=self.sink(index))
        return Operation("outfeed_enqueue")

    def declare(self, program: TracedProgram, tensors: Any, executions: int) -> list[Stream]:
        """Streams for ``tensors`` (arrays, in their structure) in a program that sends them ``executions`` times."""
        if program in self._programs:
            raise ValueError("An outfeed can only be enqueued once.")
        if isinstance(tensors, dict) and not all(isinstance(key, str) for key in tensors):
            raise ValueError("Expected all keys in the outfeed dictionary to be strings.")
        found = leaves(tensors)
        for leaf in found:
            if not is_traced(leaf):
                raise ValueError(
                    "IPUOutfeedQueue Enqueue input needs to be an array, or a tuple, list or dictionary of arrays; it "
                    f"holds {leaf!r}"
                )
        arrays = [convert(leaf) for leaf in found]
        self._programs.append(program)
        self._structure = map_structure(lambda _: None, tensors)
        self._specs = [(a.shape, a.dtype.numpy) for a in arrays]
        self._partial = [deque() for _ in arrays]
        return [program.stream(f"{self._name}_{i}", a.shape, a.dtype, "d2h", executions) for i, a in enumerate(arrays)]

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
                self._received += 1
                self._lock.notify_all()
            for callback in self._callbacks:
                callback(self)

        return take

    # -- host --------------------------------------------------------------------------------------------------------

    @property
    def enqueued(self) -> bool:
        """Whether a program has an enqueue."""
        return bool(self._programs)

    def on_enqueue(self, callback: Callable[[IPUOutfeedQueue], Any]) -> None:
        """Call ``callback(queue)`` after each element that arrives, in the middle of a run (not upstream)."""
        self._callbacks.append(callback)

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """The elements that have arrived, stacked along a new first axis, in the structure that was enqueued.

        Shapes are ``(elements, *shape)``, with several replicas ``(elements, replicas, *shape)``; in mode ``LAST`` the
        first axis is missing. Without elements it is empty. In graph mode, or before any run, the result is a
        :class:`Dequeue` that a session runs. ``wait_for_completion`` has no effect: a run has ended when it returns.

        Raises:
            ValueError: no program has an enqueue, or nothing has arrived in mode LAST.
        """
        EFFECTS.given("ipu.ipu_outfeed_queue.IPUOutfeedQueue.dequeue(wait_for_completion)", wait_for_completion)
        if not self.enqueued:
            raise ValueError("Trying to dequeue an outfeed which has not been enqueued.")
        if not state().eager or not self._received:
            return Dequeue(self)
        return self.take()

    def take(self) -> Any:
        """:meth:`dequeue` now."""
        with self._lock:
            elements = list(self._elements)
            if self._outfeed_mode is IPUOutfeedMode.ALL:
                self._elements.clear()
        replicas = self._programs[-1].ir.replication_factor
        if self._outfeed_mode is IPUOutfeedMode.LAST:
            if not elements:
                raise ValueError("Trying to dequeue an outfeed in mode LAST before any element has arrived.")
            values = [part if replicas > 1 else part[0] for part in elements[-1]]
        else:
            values = [self._stacked(i, [e[i] for e in elements], replicas) for i in range(len(self._specs))]
        rest = iter(values)
        return map_structure(lambda _: next(rest).view(HostArray), self._structure)

    def _stacked(self, index: int, parts: list[np.ndarray], replicas: int) -> np.ndarray:
        shape, dtype = self._specs[index]
        if not parts:
            return np.empty((0, *((replicas,) if replicas > 1 else ()), *shape), dtype)
        stacked = np.stack(parts)
        return stacked if replicas > 1 else stacked[:, 0]

    def __iter__(self) -> Iterator[Any]:
        """The elements that have arrived, one by one."""
        result = self.take()
        for number in range(min((len(leaf) for leaf in leaves(result)), default=0)):
            yield map_structure(partial(_element, number), result)

    @property
    def deleter(self) -> Operation:
        """Forgets all elements."""
        return Operation("outfeed_deleter", self._elements.clear)


def _element(number: int, stacked: np.ndarray) -> Any:
    """Element ``number`` of a stack: an array, or a number."""
    return stacked[number].view(HostArray) if stacked.ndim > 1 else stacked[number]


class Dequeue(Operation):
    """A dequeue that a session (or :meth:`run`, or :meth:`numpy`) carries out."""

    def __init__(self, queue: IPUOutfeedQueue) -> None:
        super().__init__("outfeed_dequeue", queue.take)

    def numpy(self) -> Any:
        """The elements that have arrived."""
        return map_structure(np.asarray, self.run())
