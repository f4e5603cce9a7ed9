"""``poptorch.DataLoader`` and ``AsynchronousDataAccessor``.

A loader gives the data of one call of the model at a time: ``batch_size`` times device iterations, replicas (divided by
the size of the input groups) and gradient accumulation. Upstream's asynchronous modes load in other processes. Here
they load ahead in one thread of this process: the data sets that a simulation can digest are small, and starting 16
processes costs more than loading them. ``num_workers`` and what belongs to it are therefore without effect (which is
said once): no worker is started, and ``worker_init_fn`` is never called. Order and content of every mode equal those of
``Sync`` with the same random state, except where the data set itself draws from PyTorch's global generator while it is
read ahead. An iterable data set may share its samples out among workers itself; PyTorch's own workers, processes,
load it.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, cast

import torch
from torch.utils.data import IterableDataset

from ipuperf.base.kinds import told

from .effects import EFFECTS
from .enums import DataLoaderMode, SharingStrategy
from .errors import Error, checked_kinds, require, require_int
from .export.structure import Structure, fixed_values, flatten, rebuild
from .log import logger
from .options import Options

_WORKER_ARGUMENTS = ("worker_init_fn", "prefetch_factor", "multiprocessing_context", "timeout", "in_order")
_PIN_ARGUMENTS = ("pin_memory", "pin_memory_device")


class DataLoader(torch.utils.data.DataLoader[Any]):
    """PyTorch's loader with the batch size of a whole call of the model.

    Args:
        options: options of the model; they are frozen, as upstream does.
        dataset: any PyTorch data set.
        batch_size: size of a micro-batch; None: the data set gives batches.
        shuffle: shuffle in every epoch.
        num_workers, persistent_workers: without effect, loading happens in this process; but iterable data sets are
            loaded by so many of PyTorch's workers.
        drop_last: leave out the samples at the end that do not fill a call. With False the last one is smaller (only
            in the modes ``Sync`` and ``AsyncRebatched``, as upstream).
        auto_distributed_partitioning: with ``Options.Distributed`` of several processes, take only the part of this
            one: as many whole calls as each can have. Shuffling needs ``Options.randomSeed``, from which all processes
            draw the same order.
        mode: ``Sync``: load when asked. ``Async``: load ahead. ``AsyncRebatched``: load pieces ahead and join them.
        async_options: arguments of :class:`AsynchronousDataAccessor`.
        rebatched_worker_size: size of the pieces in ``AsyncRebatched``; default the combined batch size.
        batch_sampler: gives lists of indices, each for one micro-batch; as many as a call has are collated one by one
            and joined. Excludes ``batch_size``, ``shuffle`` and ``sampler``.
        kwargs: other arguments of PyTorch's loader.
    """

    @checked_kinds("options", "batch_size", "num_workers", "mode")
    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._accessor: AsynchronousDataAccessor | None = None
        _check_arguments(options, batch_size, num_workers, mode)
        readable = isinstance(dataset, Iterable) or hasattr(dataset, "__getitem__")
        require(readable, f"DataLoader: dataset {told(dataset)} given, expected a torch.utils.data.Dataset")
        options._freeze()
        self._options = options
        self.requested_workers = num_workers
        self._combined_batch_size = _combined(options, batch_size, batch_sampler)
        self._joined = 1 if batch_sampler is None else options.samples_factor
        self._is_iterable = isinstance(dataset, IterableDataset)
        workers = {"num_workers": num_workers, "persistent_workers": persistent_workers}
        workers.update((name, kwargs.pop(name)) for name in _WORKER_ARGUMENTS if name in kwargs)
        self._warn(dataset, drop_last or batch_sampler is not None)
        rebatched = mode is DataLoaderMode.AsyncRebatched and batch_sampler is None
        self.rebatched_drop_last = drop_last
        size = self._piece_size(rebatched_worker_size) if rebatched else self._combined_batch_size
        for name, value in {**workers, **{n: kwargs.pop(n) for n in _PIN_ARGUMENTS if n in kwargs}}.items():
            if self._is_iterable and num_workers and name in workers:
                kwargs[name] = bool(value) if name == "persistent_workers" else value
            else:
                EFFECTS.given(f"DataLoader({name})", value)
        if auto_distributed_partitioning and options.Distributed.numProcesses > 1:
            require(batch_sampler is None, "DataLoader: a batch_sampler has to choose its process's samples itself")
            kwargs["sampler"] = self._part(dataset, shuffle, drop_last)
            # The sampler shuffles itself, and PyTorch takes only one of the two.
            shuffle = False
        if batch_sampler is not None:
            super().__init__(dataset, batch_size=batch_size, shuffle=shuffle, batch_sampler=batch_sampler, **kwargs)
        else:
            # Pieces are joined to calls first, and only what then remains is dropped.
            drop = drop_last and not rebatched and size is not None
            super().__init__(dataset, batch_size=size, shuffle=shuffle or None, drop_last=drop, **kwargs)
        if mode is not DataLoaderMode.Sync:
            async_arguments = async_options or {}
            require(
                "rebatched_size" not in async_arguments,
                "DataLoader: async_options has a rebatched_size, which the loader derives from the options itself",
            )
            target = self._combined_batch_size if rebatched else None
            self._accessor = AsynchronousDataAccessor(self, **async_arguments, rebatched_size=target)

    @property
    def combinedBatchSize(self) -> int | None:
        """Samples of one call of the model; None if the data set or the sampler makes the batches."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        """The options given."""
        return self._options

    @property
    def divides(self) -> bool:
        """Whether the samples of an epoch are whole calls."""
        known = self.sampler if isinstance(self.sampler, _PartSampler) else self.dataset
        return not self._is_iterable and len(cast(Sized, known)) % (self._combined_batch_size or 1) == 0

    def terminate(self) -> None:
        """Stop loading ahead."""
        if self._accessor is not None:
            self._accessor.terminate()

    def synchronous(self) -> Iterator[Any]:
        """An iterator of PyTorch's loader itself: batches of the loader's own size, loaded when asked; those of a
        ``batch_sampler`` joined to calls."""
        batches = super().__iter__()
        return batches if self._joined == 1 else _joined(batches, self._joined, self.rebatched_drop_last)

    def __len__(self) -> int:
        if self._accessor is None or self._accessor.rebatched_size is None:
            full, remainder = divmod(super().__len__(), self._joined)
            return full + (remainder > 0 and not self.rebatched_drop_last)
        known = self.sampler if isinstance(self.sampler, _PartSampler) else self.dataset
        full, remainder = divmod(len(cast(Sized, known)), self._accessor.rebatched_size)
        return full + (remainder > 0 and not self.rebatched_drop_last)

    def __iter__(self) -> Any:
        return self.synchronous() if self._accessor is None else iter(self._accessor)

    def _part(self, dataset: Any, shuffle: bool, drop_last: bool) -> _PartSampler:
        """The samples of this process."""
        options = self._options
        require(
            not self._is_iterable and hasattr(dataset, "__len__"),
            "DataLoader: an iterable data set cannot be shared out among processes; set "
            "auto_distributed_partitioning=False and let it give each process its part",
        )
        require(
            not shuffle or options.random_seed is not None,
            "DataLoader: poptorch.Options().randomSeed must be set when shuffle=True is used with several processes",
        )
        count = options.Distributed.numProcesses
        call = self._combined_batch_size or 1
        size = len(dataset) // (call * count) * call if drop_last else math.ceil(len(dataset) / count)
        seed = options.random_seed if shuffle else None
        return _PartSampler(len(dataset), options.Distributed.processId * size, size, seed)

    def _piece_size(self, worker_size: int | None) -> int | None:
        combined = self._combined_batch_size
        require(combined is not None, "DataLoader: DataLoaderMode.AsyncRebatched needs a batch_size")
        if worker_size is None:
            return combined
        require_int("rebatched_worker_size", worker_size, 1)
        require(
            combined is not None and worker_size <= combined,
            f"DataLoader: rebatched_worker_size is {worker_size}, more than the {combined} samples of a call",
        )
        return worker_size

    def _warn(self, dataset: Any, drop_last: bool) -> None:
        combined = self._combined_batch_size
        if not self._is_iterable and not drop_last and combined and len(dataset) % combined:
            logger.warning(
                "DataLoader: %d samples are no multiple of the %d of a call, so the last batch has %d; drop_last=True "
                "leaves it out",
                *(len(dataset), combined, len(dataset) % combined),
            )


class _PartSampler(torch.utils.data.Sampler[int]):
    """``size`` samples from ``first`` on, of the data set's order or, with a seed, of an order drawn in each epoch."""

    def __init__(self, length: int, first: int, size: int, seed: int | None) -> None:
        self.length, self.part = length, slice(first, first + size)
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(range(*self.part.indices(self.length)))

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            return iter(range(*self.part.indices(self.length)))
        # All processes draw the same order, and each takes its own part.
        return iter(torch.randperm(self.length, generator=self.generator).tolist()[self.part])


class AsynchronousDataAccessor:
    """Reads ahead of the program, in a thread, with at most ``buffer_size`` elements waiting.

    Args:
        dataset: any iterable of tensors, or of lists, tuples or dictionaries of tensors.
        buffer_size: elements that may wait.
        miss_sleep_time_in_ms: without effect; the thread waits without polling.
        load_indefinitely: without effect; reading begins anew with each iteration, never before it.
        early_preload: without effect; the first element is read at once, the others with the iteration.
        sharing_strategy: a member, or its name, as upstream's options files have it; without effect: a thread shares
            everything.
        rebatched_size: join and cut what the data set gives into batches of this size.

    Raises:
        Error: the first element cannot be read (upstream's worker fails to start), or the loader reads ahead already.
    """

    @checked_kinds("buffer_size", "rebatched_size")
    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy | str = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
    ) -> None:
        require_int("AsynchronousDataAccessor: buffer_size", buffer_size, 1)
        EFFECTS.given("AsynchronousDataAccessor(miss_sleep_time_in_ms)", miss_sleep_time_in_ms)
        EFFECTS.given("AsynchronousDataAccessor(load_indefinitely)", load_indefinitely)
        EFFECTS.given("AsynchronousDataAccessor(early_preload)", early_preload)
        EFFECTS.given("AsynchronousDataAccessor(sharing_strategy)", sharing_strategy)
        owns = isinstance(dataset, DataLoader)
        if owns and dataset._accessor is not None:
            raise Error(
                "AsynchronousDataAccessor: the DataLoader reads ahead by itself; give it DataLoaderMode.Sync, or use "
                "it without an accessor"
            )
        if owns and not dataset.rebatched_drop_last and rebatched_size is None and dataset.batch_size is not None:
            require(
                dataset.combinedBatchSize in (None, 1) or dataset.divides,
                "AsynchronousDataAccessor: the DataLoader has drop_last=False; give rebatched_size, or batches differ",
            )
        if rebatched_size is not None:
            require(
                isinstance(rebatched_size, int) and rebatched_size > 1,
                f"rebatched_size must be None or greater than 1, got {rebatched_size!r}",
            )
        self._dataset = dataset
        self._buffer_size = buffer_size
        self.rebatched_size = rebatched_size
        self._reader: _Reader | None = None
        self._begun: _Begun | None = _Begun(dataset, self._elements)

    def terminate(self) -> None:
        """Stop reading ahead; iterating again begins anew."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def __len__(self) -> int:
        dataset = self._dataset
        if self.rebatched_size is None or getattr(dataset, "_accessor", None) is self:
            return len(dataset)
        return len(dataset) * (getattr(dataset, "batch_size", 1) or 1) // self.rebatched_size

    def __iter__(self) -> AsynchronousDataAccessor:
        self.terminate()
        begun, self._begun = self._begun, None
        if begun is None:
            elements = self._elements()
            head = list(islice(elements, 1))
        else:
            head, elements = begun.take()
        self._reader = _Reader(head, elements, self._buffer_size)
        return self

    def __next__(self) -> Any:
        if self._reader is None:
            raise StopIteration
        return next(self._reader)

    def __del__(self) -> None:
        if getattr(self, "_reader", None) is not None:
            self.terminate()

    def _elements(self) -> Iterator[Any]:
        dataset = self._dataset
        elements = dataset.synchronous() if isinstance(dataset, DataLoader) else iter(dataset)
        if self.rebatched_size is None:
            return elements
        return rebatch(elements, self.rebatched_size, getattr(dataset, "rebatched_drop_last", True))


class _Begun:
    """A data set whose first element is read when the accessor is made, so that a data set that fails does so there, as
    upstream's worker does.

    Nothing is drawn from random generators by that: they get their state back, and where it is another one when the
    iteration begins, the first element is read again (unless the data set is an iterator, which gives it once). So
    samplers draw their seeds where a synchronous loader would.
    """

    def __init__(self, dataset: Any, make: Callable[[], Iterator[Any]]) -> None:
        self._generators = _generators_of(dataset)
        self._before = [generator.get_state() for generator in self._generators]
        self._make = make
        self._once = iter(dataset) is dataset if isinstance(dataset, Iterator) else False
        try:
            self._read()
        except Exception as error:
            raise Error(
                "AsynchronousDataAccessor worker thread failed to start: the first element of the data set cannot be "
                f"read: {type(error).__name__}: {error}"
            ) from error
        finally:
            self._after = [generator.get_state() for generator in self._generators]
            self._set(self._before)

    def _read(self) -> None:
        self.elements = self._make()
        self.first = list(islice(self.elements, 1))
        for element in self.first:
            _tensors(element, None)

    def take(self) -> tuple[list[Any], Iterator[Any]]:
        """The first element, none for an empty data set, and the iterator of the others."""
        same = all(torch.equal(g.get_state(), b) for g, b in zip(self._generators, self._before, strict=True))
        if same:
            self._set(self._after)
        elif not self._once:
            self._read()
        return self.first, self.elements

    def _set(self, states: Sequence[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


def _generators_of(dataset: Any) -> list[torch.Generator]:
    """PyTorch's global generator and those of a loader."""
    sampler = getattr(dataset, "sampler", None)
    candidates = [getattr(dataset, "generator", None), getattr(sampler, "generator", None)]
    generators = {id(g): g for g in (torch.default_generator, *candidates) if isinstance(g, torch.Generator)}
    return list(generators.values())


class _Reader:
    """An iterator whose elements are made ahead by a thread, but for the first, which the caller's thread has made. The
    thread holds no reference to the reader."""

    def __init__(self, first: Sequence[Any], elements: Iterator[Any], depth: int) -> None:
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
        self._stopped = threading.Event()
        if not first:
            self._queue.put(("end", None))
            return
        self._queue.put(("element", first[0]))
        arguments = (elements, self._queue, self._stopped)
        threading.Thread(target=_read, args=arguments, name="poptorch-data", daemon=True).start()

    def __iter__(self) -> _Reader:
        return self

    def __next__(self) -> Any:
        if self._stopped.is_set():
            raise StopIteration
        kind, content = self._queue.get()
        if kind == "element":
            return content
        self._stopped.set()
        if kind == "error":
            raise content
        raise StopIteration

    def stop(self) -> None:
        """Let the thread end and forget what it has read."""
        self._stopped.set()
        while not self._queue.empty():
            try:
                self._queue.get_nowait()
            except queue.Empty:  # pragma: no cover - the thread cannot take, only put
                break


def _read(elements: Iterator[Any], waiting: queue.Queue[tuple[str, Any]], stopped: threading.Event) -> None:
    """Put every element, then the end or the error, into ``waiting`` until ``stopped``."""
    try:
        for element in elements:
            if not _put(waiting, ("element", element), stopped):
                return
        _put(waiting, ("end", None), stopped)
    except Exception as error:  # it belongs to the program that iterates
        _put(waiting, ("error", error), stopped)


def _put(waiting: queue.Queue[tuple[str, Any]], message: tuple[str, Any], stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            waiting.put(message, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False


def rebatch(elements: Iterable[Any], size: int, drop_last: bool) -> Iterator[Any]:
    """Join successive batches along dimension 0 and cut them into batches of ``size``.

    Elements are tensors, or containers of tensors (also of a class with a custom parser). With ``drop_last`` a last
    batch that is not full is left out.
    """
    pieces: list[list[torch.Tensor]] = []
    samples = 0
    structure: Structure | None = None
    for element in elements:
        structure, tensors = _tensors(element, structure)
        pieces.append(tensors)
        samples += len(pieces[-1][0])
        while samples >= size:
            whole = _whole(pieces)
            yield rebuild(structure, [tensor[:size] for tensor in whole].__getitem__)
            samples -= size
            pieces = [[tensor[size:] for tensor in whole]] if samples else []
    if samples and not drop_last:
        assert structure is not None
        yield rebuild(structure, _whole(pieces).__getitem__)


def _joined(batches: Iterable[Any], count: int, drop_last: bool) -> Iterator[Any]:
    """Each ``count`` successive batches as one; with ``drop_last`` only whole calls."""
    waiting = iter(batches)
    while group := list(islice(waiting, count)):
        if len(group) < count and drop_last:
            return
        structure, tensors = _tensors(group[0], None)
        yield rebuild(structure, _whole([tensors, *(_tensors(b, structure)[1] for b in group[1:])]).__getitem__)


def _whole(pieces: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*pieces, strict=True)]


def _tensors(element: Any, like: Structure | None) -> tuple[Structure, list[torch.Tensor]]:
    structure, tensors, _ = flatten(element, like=like)
    for number, value in enumerate(fixed_values(structure)):
        raise AssertionError(
            f"AsynchronousDataAccessor: element {number} of a batch is a {type(value).__name__}, expected a tensor"
        )
    return structure, tensors


def _combined(options: Options, batch_size: int | None, batch_sampler: Any) -> int | None:
    if batch_sampler is not None:
        size = getattr(batch_sampler, "batch_size", None)
        return None if size is None else size * options.samples_factor
    return None if batch_size is None else batch_size * options.samples_factor


def _check_arguments(options: object, batch_size: object, num_workers: object, mode: object) -> None:
    require(
        isinstance(options, Options), f"DataLoader: options of type {type(options).__name__}, expected poptorch.Options"
    )
    if batch_size is not None:
        require_int("DataLoader: batch_size", batch_size, 1)
    require_int("DataLoader: num_workers", num_workers, 0)
    require(
        isinstance(mode, DataLoaderMode), f"DataLoader: mode {mode!r}, expected a member of poptorch.DataLoaderMode"
    )
