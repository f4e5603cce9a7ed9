"""``tf.data.Dataset``: re-iterable pipelines of host data, in plain Python.

An element is an array or a (nested) tuple or dictionary of arrays; lists count as tuples. Every dataset starts anew
each time it is iterated. Simplifications: ``prefetch``, ``cache`` and parallel calls change nothing (the cost of
producing data on the host is not simulated; ``ipu.dataset_benchmark`` measures it on the real host).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .dtypes import HostArray, as_dtype, host_array
from .effects import EFFECTS
from .tracing import leaves, map_structure

AUTOTUNE = -1


def as_element(value: Any) -> Any:
    """``value`` with arrays of device types as leaves and tuples for lists (a list of numbers is one array)."""
    if isinstance(value, dict):
        return {k: as_element(v) for k, v in value.items()}
    if isinstance(value, tuple) or (isinstance(value, list) and any(np.ndim(v) or isinstance(v, dict) for v in value)):
        return tuple(as_element(v) for v in value)
    return host_array(value)


def _typed(element: Any, types: Sequence[np.dtype]) -> Any:
    """``element`` with its leaves in ``types`` (none: as they are); ValueError for another number of leaves."""
    if not types:
        return element
    found = leaves(element)
    if len(found) != len(types):
        raise ValueError(f"from_generator: an element has {len(found)} tensors, {len(types)} types are given")
    rest = iter(leaf.astype(dtype).view(HostArray) for leaf, dtype in zip(found, types))
    return map_structure(lambda _: next(rest), element)


class ElementSpec:
    """Shape and type of one leaf of an element; ``None`` stands for a length that changes."""

    def __init__(self, shape: tuple[int | None, ...], dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ElementSpec) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, str(self.dtype)))

    def __repr__(self) -> str:
        return f"ElementSpec(shape={self.shape}, dtype={self.dtype})"


class Dataset:
    """A sequence of elements, made by a function that starts an iteration."""

    def __init__(self, start: Callable[[], Iterator[Any]], length: int | None = None) -> None:
        self._start = start
        self._length = length  # None: not known; -1: endless

    def __iter__(self) -> Iterator[Any]:
        return self._start()

    # -- sources ---------------------------------------------------------------------------------------------------

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        """One element."""
        element = as_element(tensors)
        return Dataset(lambda: iter([element]), 1)

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """One element per index of the first axis.

        Raises:
            ValueError: scalars, or first axes of different lengths.
        """
        element = map_structure(host_array, tensors)
        lengths = {leaf.shape[0] if leaf.ndim else None for leaf in leaves(element)}
        if None in lengths or len(lengths) != 1:
            shapes = ", ".join(str(leaf.shape) for leaf in leaves(element))
            raise ValueError(f"from_tensor_slices: shapes {shapes} need a first axis of one common length")
        length = lengths.pop()
        assert length is not None
        if isinstance(element, list) and not isinstance(element, HostArray):
            element = tuple(element)
        return Dataset(lambda: (_entry(element, i) for i in range(length)), length)

    @staticmethod
    def from_generator(
        generator: Callable[..., Iterable[Any]],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Sequence[Any] | None = None,
        output_signature: Any = None,
    ) -> Dataset:
        """The elements of an iterable made by ``generator(*args)``, in the types asked for; shapes are the elements'.

        Args:
            output_types: a type, or one for each tensor in the structure of an element (default: the elements').
            output_signature: the same by specs, things with a ``dtype``; excludes ``output_types``.

        Raises:
            ValueError: both are given, or (when iterated) an element of another structure.
        """
        EFFECTS.given("data.Dataset.from_generator(output_shapes)", output_shapes)
        if output_types is not None and output_signature is not None:
            raise ValueError("from_generator: give output_types or output_signature, not both")
        if output_signature is not None:
            output_types = map_structure(lambda spec: spec.dtype, output_signature)
        wanted = [] if output_types is None else [as_dtype(t).numpy for t in leaves(output_types)]
        arguments = tuple(args or ())
        return Dataset(lambda: (_typed(as_element(v), wanted) for v in generator(*arguments)))

    @staticmethod
    def range(*args: int) -> Dataset:
        """Whole numbers, int32 (upstream int64)."""
        numbers = range(*args)
        return Dataset(lambda: (host_array(np.int32(i)) for i in numbers), len(numbers))

    @staticmethod
    def zip(datasets: Any) -> Dataset:
        """Tuples (in the structure given) of one element of each dataset."""
        parts = leaves(datasets)

        def start() -> Iterator[Any]:
            for values in zip(*parts):
                yield _packed(datasets, values)

        return Dataset(start)

    @staticmethod
    def of(source: Any) -> Dataset:
        """A dataset of anything that can be iterated, again and again.

        Raises:
            TypeError: it cannot be iterated, or only once.
        """
        if isinstance(source, Dataset):
            return source
        if not isinstance(source, Iterable):
            raise TypeError(f"{source!r} is no dataset: a Dataset or something that can be iterated is needed")
        if isinstance(source, Iterator):
            raise TypeError(
                f"{source!r} can be iterated only once; give something that starts anew, such as a list, or "
                "data.Dataset.from_generator(function)"
            )
        return Dataset(lambda: (as_element(v) for v in source))

    # -- transformations -------------------------------------------------------------------------------------------

    def map(self, map_func: Callable[..., Any], num_parallel_calls: Any = None, deterministic: Any = None) -> Dataset:
        """``map_func`` of each element; tuples are given as separate arguments."""
        EFFECTS.given("data.Dataset.map(num_parallel_calls)", num_parallel_calls)
        EFFECTS.given("data.Dataset.map(deterministic)", deterministic)

        def apply(element: Any) -> Any:
            return as_element(map_func(*element) if isinstance(element, tuple) else map_func(element))

        return Dataset(lambda: (apply(e) for e in self), self._length)

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements for which ``predicate`` holds."""

        def keep(element: Any) -> bool:
            return bool(predicate(*element) if isinstance(element, tuple) else predicate(element))

        return Dataset(lambda: (e for e in self if keep(e)))

    def repeat(self, count: int | None = None) -> Dataset:
        """``count`` times over, without end when it is None or -1."""
        if count is None or count == -1:
            return Dataset(self._endless, -1)
        length = None if self._length is None else self._length * count if self._length >= 0 else -1
        return Dataset(lambda: (e for _ in range(count) for e in self), length)

    def _endless(self) -> Iterator[Any]:
        while True:
            empty = True
            for element in self:
                empty = False
                yield element
            if empty:
                return

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """``batch_size`` elements stacked along a new first axis; a short last batch is dropped on request.

        Raises:
            ValueError: elements of a batch differ in shape (when iterated).
        """
        if batch_size < 1:
            raise ValueError(f"batch({batch_size}): at least 1 element per batch is needed")

        def start() -> Iterator[Any]:
            source = iter(self)
            while chunk := list(itertools.islice(source, batch_size)):
                if len(chunk) == batch_size or not drop_remainder:
                    yield _stack(chunk)

        length = self._length
        if length is not None and length > 0:
            length = length // batch_size if drop_remainder else -(-length // batch_size)
        return Dataset(start, length)

    def shuffle(self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True) -> Dataset:
        """In random order: each next element is drawn from a buffer of ``buffer_size``. Without ``seed`` it is 0;
        each iteration has another order unless ``reshuffle_each_iteration`` is False."""
        rounds = itertools.count()

        def start() -> Iterator[Any]:
            turn = next(rounds) if reshuffle_each_iteration else 0
            draw = random.Random(f"{seed or 0}/{turn}")
            buffer: list[Any] = []
            for element in self:
                buffer.append(element)
                if len(buffer) >= buffer_size:
                    yield buffer.pop(draw.randrange(len(buffer)))
            draw.shuffle(buffer)
            yield from buffer

        return Dataset(start, self._length)

    def take(self, count: int) -> Dataset:
        """The first ``count`` elements."""
        return Dataset(lambda: itertools.islice(iter(self), count if count >= 0 else None))

    def skip(self, count: int) -> Dataset:
        """Without the first ``count`` elements."""
        return Dataset(lambda: itertools.islice(iter(self), count, None))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Every ``num_shards``-th element, from ``index`` on."""
        return Dataset(lambda: itertools.islice(iter(self), index, None, num_shards))

    def prefetch(self, buffer_size: int = AUTOTUNE) -> Dataset:
        """The same elements; see the simplifications above."""
        EFFECTS.given("data.Dataset.prefetch(buffer_size)", buffer_size)
        return Dataset(self._start, self._length)

    def cache(self, filename: str = "") -> Dataset:
        """The same elements, made once."""
        EFFECTS.given("data.Dataset.cache(filename)", filename)
        kept: list[Any] = []

        def start() -> Iterator[Any]:
            if not kept:
                kept.extend(self)
            return iter(kept)

        return Dataset(start, self._length)

    # -- description -----------------------------------------------------------------------------------------------

    @property
    def element_spec(self) -> Any:
        """Shapes and types of the first element.

        Raises:
            ValueError: the dataset is empty.
        """
        for element in self:
            return map_structure(lambda a: ElementSpec(a.shape, a.dtype), element)
        raise ValueError("the dataset has no elements")

    def cardinality(self) -> int:
        """Number of elements; -1 endless, -2 not known (as upstream)."""
        return -2 if self._length is None else self._length

    def __len__(self) -> int:
        if self._length is None or self._length < 0:
            raise TypeError("The dataset is infinite or its length is unknown.")
        return self._length


def _entry(element: Any, index: int) -> Any:
    """Entry ``index`` of the first axis of each tensor."""
    return map_structure(lambda a: host_array(a[index]), element)


def _packed(structure: Any, values: Iterable[Any]) -> Any:
    """``values`` in the structure of ``structure``."""
    rest = iter(values)
    return map_structure(lambda _: next(rest), structure)


def _stack(elements: list[Any]) -> Any:
    """The elements of a batch stacked, in their structure."""
    first = [leaves(e) for e in elements]
    columns = iter(list(zip(*first)))

    def column(_: Any) -> HostArray:
        arrays = next(columns)
        shapes = {a.shape for a in arrays}
        if len(shapes) > 1:
            listed = ", ".join(str(s) for s in sorted(shapes))
            raise ValueError(f"batch: elements of one batch have different shapes: {listed}")
        return np.stack(arrays).view(HostArray)

    return map_structure(column, elements[0])
