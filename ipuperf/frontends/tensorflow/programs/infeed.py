"""``IPUInfeedQueue``: feeds elements of a ``tf.data`` dataset to a program, one per iteration (or micro-batch) and
replica."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.data.util import structure
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import script_ops

from ipuperf.ir import FLOAT32, DType, Tensor
from ipuperf.ops import HostLoad, Init

from ..effects import EFFECTS, checked_kinds
from ..importer import Importer, MadeBy, Value, marker
from ..importer.tracing import Frame, device_dtype, frame_of
from .devices import check_ordinal
from .elements import Infeed

NOTHING = structure.NoneTensorSpec
"""The specification of a None in a dataset's elements."""


def with_float32(dataset: Any) -> Any:
    """The dataset with float32 in place of float64, which IPUs do not have."""
    if all(isinstance(spec, NOTHING) or spec.dtype != tf.float64 for spec in tf.nest.flatten(dataset.element_spec)):
        return dataset

    def narrow(tensor: Any) -> Any:
        return tf.cast(tensor, tf.float32) if tensor is not None and tensor.dtype == tf.float64 else tensor

    def convert(*element: Any) -> Any:
        narrowed = tf.nest.map_structure(narrow, element)
        return narrowed if isinstance(dataset.element_spec, tuple) else narrowed[0]

    return dataset.map(convert)


def on_host(action: Callable[[], Any], name: str) -> tf.Operation | None:
    """Do something on the host: now in eager mode, otherwise as an operation for a session."""

    def act() -> np.int32:
        action()
        return np.int32(0)

    if tf.executing_eagerly():
        act()
        return None
    return tf.group(tf.numpy_function(act, [], tf.int32), name=name)


class Feed:
    """What feeds elements to programs: a queue, or an iterator of the host.

    Attributes:
        name: stem of the names of its streams.
        prefetch_depth: elements that the host prepares ahead of the device.
    """

    prefetch_depth = 1

    @checked_kinds()
    def __init__(self, name: str, specs: Sequence[tf.TensorSpec]) -> None:
        self.name = name
        self._specs = list(specs)
        self._dequeued = False

    def take(self, count: int) -> Iterator[list[np.ndarray]]:
        """The next ``count`` elements one by one, each when it is asked for: an array per tensor of an element."""
        raise NotImplementedError

    def _each(self, count: int, following: Callable[[], Sequence[tf.Tensor]]) -> Iterator[list[np.ndarray]]:
        """``count`` elements that ``following`` gives one by one."""
        for _ in range(count):
            with context.eager_mode(), tf.device("/CPU:0"):
                element = [tensor.numpy() for tensor in following()]
            yield [np.asarray(value, spec.dtype.as_numpy_dtype) for value, spec in zip(element, self._specs)]

    def streams(self, frame: Frame, owner: object) -> Infeed:
        """Streams for the queue in the frame's program, read once per execution of the frame.

        Raises:
            ValueError: something else reads it in this program, too.
        """
        program = frame.program
        for feed in program.infeeds:
            if feed.queue is self:
                if feed.owner is not owner:
                    raise ValueError(
                        "An IPUInfeedQueue can be dequeued only once in a program; make a queue for each use"
                    )
                # The same reader may stand in several frames; their counts add up.
                feed.count += frame.executions
                for stream in feed.streams:
                    stream.transfers = feed.count
                return feed
        streams = [
            program.stream(f"{self.name}_{i}", spec.shape, _stream_dtype(spec.dtype), "h2d", frame.executions)
            for i, spec in enumerate(self._specs)
        ]
        feed = Infeed(self, owner, streams, frame.executions)
        program.infeeds.append(feed)
        self._dequeued = True
        return feed

    def load(self, frame: Frame, owner: object) -> list[Tensor]:
        """Load an element here; its tensors."""
        tensors = []
        for stream in self.streams(frame, owner).streams:
            target = frame.create(
                Init, [], [f"{stream.name}_init"], shape=stream.shape, dtype=stream.dtype, init="undefined"
            )
            tensors.append(frame.create(HostLoad, target.outputs, [stream.name], stream=stream).outputs[0])
        return tensors


def _stream_dtype(dtype: tf.DType) -> DType:
    """The type in which elements come: float64 becomes float32."""
    return FLOAT32 if dtype == tf.float64 else device_dtype(dtype)


class IteratorFeed(Feed):
    """An iterator of a ``tf.data`` dataset that a function takes as an argument or captures.

    Attributes:
        handle: the iterator's, of the run that comes.
    """

    @checked_kinds()
    def __init__(self, specs: Sequence[tf.TensorSpec]) -> None:
        super().__init__("iterator", specs)
        self.handle: tf.Tensor | None = None

    def take(self, count: int) -> Iterator[list[np.ndarray]]:
        """The next elements, one by one.

        Raises:
            tf.errors.OutOfRangeError: there are too few.
        """
        types, shapes = [spec.dtype for spec in self._specs], [spec.shape for spec in self._specs]
        return self._each(
            count, lambda: tf.raw_ops.IteratorGetNext(iterator=self.handle, output_types=types, output_shapes=shapes)
        )


class IPUInfeedQueue(Feed):
    """A queue from a dataset to a program.

    Args:
        dataset: a ``tf.data.Dataset`` whose elements have fixed shapes; float64 becomes float32.
        prefetch_depth: elements that the host prepares ahead of the device (1 to 255, default 1); the largest one of a
            program's queues counts for all of them.
        feed_name: stem of the names of the streams.
        device_ordinal, replication_factor, data_to_prefetch, optimise_latency: without effect.

    Raises:
        TypeError: no dataset. ValueError: its shapes are not fixed, a prefetch depth out of range, no device's number.
    """

    @checked_kinds("device_ordinal")
    def __init__(
        self,
        dataset: Any,
        feed_name: str | None = None,
        device_ordinal: int | None = None,
        replication_factor: int | None = None,
        data_to_prefetch: int = 1,
        prefetch_depth: int | None = None,
        optimise_latency: bool = False,
        **kwargs: Any,
    ) -> None:
        if prefetch_depth is not None and not 1 <= prefetch_depth <= 255:
            raise ValueError(f"prefetch_depth must be between 1 and 255 (both included), it is {prefetch_depth}")
        if kwargs:
            raise TypeError(f"IPUInfeedQueue: unknown arguments {', '.join(kwargs)}")
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(f"IPUInfeedQueue: a tf.data.Dataset is needed, not {dataset!r}")
        check_ordinal(device_ordinal)
        EFFECTS.given("ipu.ipu_infeed_queue.IPUInfeedQueue(device_ordinal)", device_ordinal)
        EFFECTS.given("ipu.ipu_infeed_queue.IPUInfeedQueue(replication_factor)", replication_factor)
        EFFECTS.given("ipu.ipu_infeed_queue.IPUInfeedQueue(data_to_prefetch)", data_to_prefetch)
        EFFECTS.given("ipu.ipu_infeed_queue.IPUInfeedQueue(optimise_latency)", optimise_latency)
        self.prefetch_depth = 1 if prefetch_depth is None else prefetch_depth
        for number, spec in enumerate(tf.nest.flatten(dataset.element_spec)):
            if not isinstance(spec, tf.TensorSpec):
                raise TypeError(
                    f"IPUInfeedQueue: tensor {number} of the dataset's elements is {spec}; dense tensors only"
                )
            if not spec.shape.is_fully_defined():
                raise ValueError(
                    f"IPUInfeedQueue: tensor {number} of the dataset's elements has shape {spec.shape}, but an IPU "
                    "program has fixed shapes; batch with drop_remainder=True"
                )
        self._dataset = with_float32(dataset)
        self._structure = self._dataset.element_spec
        super().__init__(feed_name or "infeed", tf.nest.flatten(self._structure))
        self._iterator: Iterator[Any] | None = None
        self._taken = 0
        self._started = False
        self._lock = threading.RLock()

    # -- host --------------------------------------------------------------------------------------------------------

    @property
    def initializer(self) -> tf.Operation | None:
        """Starts the dataset at its first element: now in eager mode, otherwise an operation for a session.

        In eager mode it starts by itself at the first use, too.

        Raises:
            ValueError: a second operation is asked for.
        """
        if tf.executing_eagerly():
            self._start(self._dataset)
            return None

        if self._started:
            raise ValueError(
                f"infeed queue {self.name!r} has its initializer already: keep the operation, do not ask again"
            )
        self._started = True

        def start(variant: tf.Tensor) -> np.int32:
            self._start(dataset_ops._VariantDataset(variant, self._structure))
            return np.int32(0)

        started = script_ops.eager_py_func(start, [self._dataset._variant_tensor], Tout=tf.int32, name="infeed_start")
        return tf.group(started, name="infeed_initializer")

    def _start(self, dataset: tf.data.Dataset) -> None:
        with self._lock, context.eager_mode(), tf.device("/CPU:0"):
            self._iterator, self._taken = iter(dataset), 0

    def replace_dataset(self, dataset: tf.data.Dataset) -> None:
        """Feed another dataset, from its first element on, to the programs made with this queue (not upstream).

        Raises:
            ValueError: its elements have another structure, other shapes or types.
        """
        dataset = with_float32(dataset)
        if dataset.element_spec != self._structure:
            raise ValueError(
                f"IPUInfeedQueue: the new dataset's elements are {dataset.element_spec}, those of the queue are "
                f"{self._structure}"
            )
        self._dataset = dataset
        self._start(dataset)

    @property
    def deleter(self) -> tf.Operation | None:
        """Forgets the place in the dataset: now in eager mode, otherwise an operation for a session."""

        return on_host(self.stop, "infeed_deleter")

    def stop(self) -> None:
        """Forget the place in the dataset, and end TensorFlow's threads that read ahead (not upstream)."""
        self._iterator = None

    @property
    def number_of_tuple_elements(self) -> int:
        """How many arguments an element becomes."""
        return len(self._structure) if isinstance(self._structure, (tuple, dict)) else 1

    @property
    def dequeued(self) -> bool:
        """Whether a program reads the queue."""
        return self._dequeued

    @property
    def element_spec(self) -> Any:
        """Shapes and types of an element, in the dataset's structure."""
        return self._structure

    def take(self, count: int) -> Iterator[list[np.ndarray]]:
        """The next elements, one by one: an array per tensor of an element.

        Raises:
            tf.errors.OutOfRangeError: there are too few. tf.errors.FailedPreconditionError: the initializer of a queue
                of a graph has not been run.
        """
        with self._lock:
            if self._iterator is None:
                if isinstance(self._dataset._variant_tensor, ops.EagerTensor):
                    self._start(self._dataset)
                else:
                    raise tf.errors.FailedPreconditionError(
                        None, None, f"infeed queue {self.name!r} has not been initialized: run its `initializer` first"
                    )
            return self._each(count, lambda: tf.nest.flatten(self._next()))

    def _next(self) -> Any:
        try:
            with self._lock:
                assert self._iterator is not None
                element = next(self._iterator)
        except StopIteration:
            raise tf.errors.OutOfRangeError(
                None,
                None,
                f"End of sequence: the infeed's dataset has {self._taken} elements and the program wants more; "
                "repeat() it, or run fewer iterations",
            ) from None
        self._taken += 1
        return element

    def get_next(self) -> Any:
        """ValueError: upstream has taken it away."""
        raise ValueError(
            "IPUInfeedQueue.get_next: loops.repeat and pipeline read the queue, which they get as an argument"
        )

    # -- in a program ------------------------------------------------------------------------------------------------

    def element(self) -> Any:
        """The next element, in the default graph: tensors in the dataset's structure.

        Raises:
            RuntimeError: outside of a program.
        """
        if not isinstance(ops.get_default_graph(), FuncGraph):
            raise RuntimeError(
                "an infeed queue is read inside of a program: by loops.repeat, pipeline or a tf.function"
            )
        owner = object()

        def build(importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
            return self.load(frame_of(importer.place, "IPUInfeedQueue"), owner)

        tensors = marker("infeed_dequeue", MadeBy(build), [], self._specs)
        return tf.nest.pack_sequence_as(self._structure, tensors)


def as_arguments(element: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments that an element becomes: a dictionary with names as keys is named arguments."""
    if isinstance(element, dict) and all(isinstance(key, str) for key in element):
        return [], dict(element)
    return (list(element) if isinstance(element, tuple) else [element]), {}


class IPUIterator:
    """An iterator over a dataset for TensorFlow 2 programs: ``next(iterator)`` gives an element to a traced function.

    Raises:
        ValueError: no dataset, or a specification beside it. NotImplementedError: specifications alone.
    """

    def __init__(self, dataset: Any = None, infeed_spec: Any = None, element_spec: Any = None, **options: Any) -> None:
        specs = [spec for spec in (infeed_spec, element_spec) if spec is not None]
        if (dataset is None) != (len(specs) == 2) or (dataset is not None and specs):
            raise ValueError("IPUIterator takes a dataset, or `infeed_spec` and `element_spec` in its place")
        if dataset is None:
            raise NotImplementedError("IPUIterator: made of specifications; give the dataset")
        self._infeed_queue = IPUInfeedQueue(dataset, **options)
        self._infeed_queue.initializer  # noqa: B018

    def __iter__(self) -> IPUIterator:
        return self

    def __next__(self) -> Any:
        if not isinstance(ops.get_default_graph(), FuncGraph):
            raise RuntimeError(
                "IPUIterator is read on the host; its elements go to the IPU: read it in a tf.function with "
                "jit_compile=True that the strategy runs"
            )
        return self._infeed_queue.element()

    get_next = next = __next__

    def get_next_as_optional(self) -> Any:
        """NotImplementedError, as upstream."""
        raise NotImplementedError("IPUIterator.get_next_as_optional: a program always has its next element")

    @property
    def element_spec(self) -> Any:
        """Shapes and types of an element."""
        return self._infeed_queue.element_spec


IPUOwnedIterator = IPUIterator

__all__ = ["IPUInfeedQueue", "IPUIterator", "IPUOwnedIterator", "as_arguments"]
