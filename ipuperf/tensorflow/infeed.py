"""``IPUInfeedQueue``: feeds elements of a dataset to a program, one per iteration or micro-batch and replica."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ipuperf.ops import HostLoad, Init

from .array import Array
from .data import Dataset
from .effects import EFFECTS
from .errors import OutOfRangeError
from .program import Infeed
from .state import state
from .tracing import Frame, Operation, current_frame, is_tracing, leaves, map_structure


class IPUInfeedQueue:
    """A queue from a dataset to a program.

    All elements must have the shapes and types of the first one.

    Args:
        dataset: a :class:`~ipuperf.tensorflow.data.Dataset` or anything that can be iterated again and again.
        prefetch_depth: elements that the host prepares ahead of the device (1 to 255, default 1); the largest one of a
            program's queues counts for all of them.
        feed_name: stem of the names of the streams.
        device_ordinal, replication_factor, data_to_prefetch, optimise_latency: without effect.

    Raises:
        TypeError: no dataset; ValueError: an empty dataset, a prefetch depth out of range.
    """

    def __init__(
        self,
        dataset: Any,
        feed_name: str | None = None,
        device_ordinal: int | None = None,
        replication_factor: int | None = None,
        data_to_prefetch: int = 1,
        prefetch_depth: int | None = None,
        optimise_latency: bool = False,
    ) -> None:
        if prefetch_depth is not None and not 1 <= prefetch_depth <= 255:
            raise ValueError(f"prefetch_depth must be between 1 and 255 (both included), it is {prefetch_depth}")
        EFFECTS.given("ipu.ipu_infeed_queue.IPUInfeedQueue(device_ordinal)", device_ordinal)
        EFFECTS.given("ipu.ipu_infeed_queue.IPUInfeedQueue(replication_factor)", replication_factor)
        EFFECTS.given("ipu.ipu_infeed_queue.IPUInfeedQueue(data_to_prefetch)", data_to_prefetch)
        EFFECTS.given("ipu.ipu_infeed_queue.IPUInfeedQueue(optimise_latency)", optimise_latency)
        self._name = feed_name or "infeed"
        self._dataset = Dataset.of(dataset)
        self.prefetch_depth = 1 if prefetch_depth is None else prefetch_depth
        first = next(iter(self._dataset), None)
        if first is None:
            raise ValueError("IPUInfeedQueue: the dataset has no elements")
        self._structure = map_structure(lambda a: None, first)
        self._shapes = [(leaf.shape, leaf.dtype) for leaf in leaves(first)]
        self._iterator: Iterator[Any] | None = None
        self._taken = 0
        self._dequeued = False
        self.element = first

    # -- host --------------------------------------------------------------------------------------------------------

    @property
    def initializer(self) -> Operation:
        """Starts the dataset at its first element: now in eager mode, otherwise when a session runs it.

        It starts by itself at the first use, too.
        """

        def start() -> None:
            self._iterator, self._taken = iter(self._dataset), 0

        if state().eager:
            start()
        return Operation("infeed_initializer", start)

    @property
    def deleter(self) -> Operation:
        """Forgets the place in the dataset."""

        def forget() -> None:
            self._iterator = None

        return Operation("infeed_deleter", forget)

    @property
    def number_of_tuple_elements(self) -> int:
        """How many arguments an element becomes."""
        return len(self.element) if isinstance(self.element, (tuple, dict)) else 1

    @property
    def dequeued(self) -> bool:
        """Whether a program reads the queue."""
        return self._dequeued

    def next_element(self) -> Any:
        """The next element of the dataset.

        Raises:
            OutOfRangeError: there is none; ValueError: its shapes or types differ from the first element's.
        """
        if self._iterator is None:
            self._iterator, self._taken = iter(self._dataset), 0
        try:
            element = next(self._iterator)
        except StopIteration:
            raise OutOfRangeError(
                f"End of sequence: the infeed's dataset has {self._taken} elements and the program wants more; "
                "repeat() it, or run fewer iterations"
            ) from None
        self._check(element)
        self._taken += 1
        return element

    def _check(self, element: Any) -> None:
        found = [(leaf.shape, leaf.dtype) for leaf in leaves(element)]
        if len(found) != len(self._shapes):
            raise ValueError(
                f"IPUInfeedQueue: element {self._taken} has {len(found)} tensors, element 0 has {len(self._shapes)}"
            )
        for index, ((shape, dtype), (first, wanted)) in enumerate(zip(found, self._shapes)):
            if shape != first or dtype != wanted:
                raise ValueError(
                    f"IPUInfeedQueue: element {self._taken}, tensor {index}: shape {shape} {dtype}, but element 0 has "
                    f"{first} {wanted}; an IPU program has fixed shapes (batch with drop_remainder=True)"
                )

    # -- in a program ------------------------------------------------------------------------------------------------

    def streams(self, frame: Frame) -> Infeed:
        """Streams for the queue in the frame's program, read once per execution of the frame."""
        program = frame.program
        if any(feed.queue is self for feed in program.infeeds):
            raise ValueError("An IPUInfeedQueue can be dequeued only once in a program; make a queue for each use")
        streams = [
            program.stream(f"{self._name}_{i}", leaf.shape, leaf.dtype, "h2d", frame.executions)
            for i, leaf in enumerate(leaves(self.element))
        ]
        feed = Infeed(self, streams, frame.executions)
        program.infeeds.append(feed)
        self._dequeued = True
        return feed

    def load(self, frame: Frame) -> Any:
        """Load an element here, in the dataset's structure."""
        arrays = []
        for stream in self.streams(frame).streams:
            target = frame.create(
                Init, [], [f"{stream.name}_init"], shape=stream.shape, dtype=stream.dtype, init="undefined"
            )
            loaded = frame.create(HostLoad, target.outputs, [stream.name], stream=stream)
            arrays.append(Array(loaded.outputs[0]))
        return self.pack(arrays)

    def pack(self, arrays: list[Any]) -> Any:
        """``arrays``, one per tensor of an element, in the dataset's structure."""
        rest = iter(arrays)
        return map_structure(lambda _: next(rest), self._structure)


def as_arguments(element: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments that an element becomes: a dictionary with names as keys is named arguments."""
    if isinstance(element, dict) and all(isinstance(key, str) for key in element):
        return [], element
    return (list(element) if isinstance(element, tuple) else [element]), {}


class IPUIterator:
    """An iterator over a dataset for TensorFlow 2 programs: ``next(iterator)`` gives an element to a traced function.

    Inside a program the next element is loaded; on the host it is the next element itself.
    """

    def __init__(self, dataset: Any = None, **options: Any) -> None:
        self._infeed_queue = IPUInfeedQueue(dataset, **options)

    def __iter__(self) -> IPUIterator:
        return self

    def __next__(self) -> Any:
        if is_tracing():
            return self._infeed_queue.load(current_frame())
        try:
            return self._infeed_queue.next_element()
        except OutOfRangeError:
            raise StopIteration from None


IPUOwnedIterator = IPUIterator

__all__ = ["IPUInfeedQueue", "IPUIterator", "IPUOwnedIterator", "as_arguments"]
