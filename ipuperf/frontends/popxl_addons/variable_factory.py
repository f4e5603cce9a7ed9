"""Variable factories: what a subgraph's named inputs need, to be made later in the main graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ipuperf.base.kinds import told
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments, whole
from ipuperf.frontends.popxl.remote_buffer import check_sharding, shard_length
from ipuperf.frontends.popxl.utils import host_values
from ipuperf.ir import CONTEXT
from ipuperf.runtime.settings import current_settings

from .dot_tree import DotTree
from .identity import upstream_repr
from .named_replica_grouping import NamedReplicaGrouping
from .named_tensors import NamedTensors

DataSource = Any
"""A function without arguments that returns host data, or an iterable of host data."""


class VariableFactory:
    """Makes variables, one per call of :meth:`create_tensor`, and the graph input that stands for them.

    Args:
        data_iter: a function that returns host data, or an iterable of it (of an array or a list each row is the data
            of one variable, as upstream). The first value is drawn at once, to know the shape, and is that of the first
            variable. Where no numbers are computed, a function is not called again.
        dtype: type of the variable (default: of the data, 64-bit types narrowed).
        name: name of input and variable.
        by_ref: the subgraph changes the variable.
        replica_grouping: replicas that hold the same value (default: all); with several groups one value is drawn per
            group.
        shard_over: over how many replicas of a group the variable is sharded (1: not).

    Raises:
        ValueError: data that a variable cannot have, a function that needs arguments, or more shards than replicas of a
            group.

    Source: popxl-addons: popxl_addons/variable_factory.py.
    """

    @checked_arguments
    def __init__(
        self,
        data_iter: DataSource,
        dtype: popxl.dtype | None = None,
        name: str = "t",
        by_ref: bool = False,
        replica_grouping: popxl.ReplicaGrouping | None = None,
        shard_over: int = 1,
    ) -> None:
        self.name = name
        self.by_ref = by_ref
        self.data_iter = data_iter
        self._grouping = replica_grouping
        self._ir = popxl.gir() if CONTEXT.builders else None
        self.shard_over = whole(shard_over, f"variable factory {name!r}: shard_over", 1)
        self._wanted = dtype
        self._repeats = callable(data_iter) and not current_settings().numbers
        self._source = self._values(data_iter)
        self._peeked: np.ndarray | None = self._draw()
        self.dtype = popxl.dtype.as_dtype(self._peeked.dtype)
        self._full_shape = tuple(self._peeked.shape)

    @staticmethod
    def _values(source: DataSource) -> Iterator[Any]:
        if callable(source):
            while True:
                yield _called(source)
        # An array without axes passes for an iterable, but cannot be iterated.
        elif isinstance(source, Iterable) and getattr(source, "shape", None) != ():
            yield from source
        else:
            raise ValueError(
                f"variable factory: {told(source)} is neither a function nor an iterable; for the same data each time "
                "give a function that returns it"
            )

    def _draw(self) -> np.ndarray:
        try:
            value = next(self._source)
        except StopIteration:
            raise ValueError(f"variable factory {self.name!r}: the data iterator is exhausted") from None
        return host_values(value, self._wanted, subject=f"variable factory {self.name!r}")

    def _next(self) -> np.ndarray:
        if self._peeked is not None:
            value = self._peeked
            self._peeked = value if self._repeats else None
            return value
        return self._draw()

    @checked_arguments
    def init_zero(self, name: str | None = None) -> popxl.Tensor:
        """An intermediate tensor of zeros like the graph input (no variable), in the current graph."""
        return self._blank("zero", name)

    @checked_arguments
    def init_undef(self, name: str | None = None) -> popxl.Tensor:
        """As :meth:`init_zero` with values that are not defined: to be overwritten."""
        return self._blank("undef", name)

    def _blank(self, kind: str, name: str | None) -> popxl.Tensor:
        return popxl.ops.init(self.shape, self.dtype, name or self.name, kind)

    @property
    def replica_grouping(self) -> popxl.ReplicaGrouping | None:
        """Replicas that hold the same value: the given ones, else all of the program in which the factory was made.

        None for a factory that was made outside of any graph.
        """
        return self._grouping or (self._ir.replica_grouping() if self._ir is not None else None)

    # -- shapes ----------------------------------------------------------------------------------------------------

    @property
    def replica_sharded(self) -> bool:
        """Whether the variable is sharded over replicas."""
        return self.shard_over > 1

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Shape of the whole value on one replica."""
        return self._full_shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the graph input: the shard's when sharded."""
        if not self.replica_sharded:
            return self._full_shape
        return (shard_length(math.prod(self._full_shape), self.shard_over),)

    @property
    def meta_shape(self) -> tuple[int, ...]:
        """The whole shape when sharded, else ``()``."""
        return self._full_shape if self.replica_sharded else ()

    @property
    def nelms(self) -> int:
        """Elements of the whole value."""
        return math.prod(self._full_shape)

    # -- making ----------------------------------------------------------------------------------------------------

    @checked_arguments
    def create_input(self, prefix: str | None = None) -> popxl.Tensor:
        """The input of the current graph that stands for the variable."""
        return popxl.graph_input(
            self.shape, self.dtype, _prefixed(prefix, self.name), by_ref=self.by_ref, meta_shape=self.meta_shape
        )

    @checked_arguments
    def create_tensor(
        self,
        name: str | None = None,
        empty: bool = False,
        memmap_dir: str | None = None,
        read_only_if_exists: bool = False,
    ) -> popxl.Variable:
        """A new variable on chip, in the main graph; also that of a sharded factory holds the whole value.

        Args:
            name: default: the factory's.
            empty: draw no data; the variable begins with zeros.
            memmap_dir: keep the host's data in the file ``<memmap_dir>/<name>.npy``; see :meth:`next_memmap`.
        """
        data = self._host_data(name or self.name, empty, memmap_dir, read_only_if_exists)
        return popxl.variable(data, self.dtype, name or self.name, replica_grouping=self._grouping)

    @checked_arguments
    def create_remote_tensor(
        self,
        buffer: popxl.RemoteBuffer,
        entry: int = 0,
        name: str | None = None,
        empty: bool = False,
        memmap_dir: str | None = None,
        read_only_if_exists: bool = False,
    ) -> popxl.Variable:
        """A new variable in entry ``entry`` of a remote buffer, sharded when the buffer is (:meth:`create_tensor`)."""
        data = self._host_data(name or self.name, empty, memmap_dir, read_only_if_exists)
        make = popxl.remote_replica_sharded_variable if buffer.meta_shape else popxl.remote_variable
        return make(data, buffer, entry, self.dtype, name or self.name, replica_grouping=self._grouping)

    def _host_data(self, name: str, empty: bool, memmap_dir: str | None, read_only: bool) -> np.ndarray:
        return self.next_memmap(memmap_dir, name, empty, read_only) if memmap_dir else self.next_data(empty)

    @checked_arguments
    def next_data(self, empty: bool = False) -> np.ndarray:
        """Data for one variable, ``(groups, ...)`` with several replica groups: drawn, or zeros."""
        if empty:
            return np.zeros(self._host_shape, self.dtype.as_numpy())
        if self._repeats:
            return np.broadcast_to(self._next(), self._host_shape)
        groups = self._groups
        return np.stack([self._next() for _ in range(groups)]) if groups > 1 else self._next()

    @checked_arguments
    def next_memmap(
        self, memmap_dir: str, name: str, empty: bool = False, read_only_if_exists: bool = False
    ) -> np.ndarray:
        """Data for one variable in the file ``<memmap_dir>/<name>.npy`` (bare elements, as upstream): that of the
        file if there is one, else of a new file with :meth:`next_data`. What a session writes back goes into it.

        Args:
            read_only_if_exists: changes stay in memory where the file was there.
        """
        path = Path(memmap_dir) / f"{name}.npy"
        there = path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        mode: Any = "w+" if not there else "c" if read_only_if_exists else "r+"
        data = np.memmap(path, dtype=self.dtype.as_numpy(), shape=self._host_shape, mode=mode)
        if not there and not empty:
            np.copyto(data, self.next_data())
        return data

    @property
    def _groups(self) -> int:
        return self._grouping.num_groups if self._grouping is not None else 1

    @property
    def _host_shape(self) -> tuple[int, ...]:
        return (self._groups, *self._full_shape) if self._groups > 1 else self._full_shape

    def __repr__(self) -> str:
        return upstream_repr(self)


def _called(source: Callable[[], Any]) -> Any:
    try:
        return source()
    except Exception as error:
        raise ValueError(f"data_iter: calling {source!r} without arguments raised {error!r}") from error


def _prefixed(prefix: str | None, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


class NamedVariableFactories(DotTree[VariableFactory]):
    """A tree of factories."""

    @checked_arguments
    def init(
        self,
        prefix: str | None = None,
        empty: bool = False,
        memmap_dir: str | None = None,
        read_only_if_exists: bool = False,
    ) -> NamedTensors:
        """A variable of each factory, made in alphabetical order and named by its key; see
        :meth:`VariableFactory.create_tensor`."""
        options = (empty, memmap_dir, read_only_if_exists)
        return self._each(lambda factory, key: factory.create_tensor(_prefixed(prefix, key), *options))

    @checked_arguments
    def init_remote(
        self,
        buffers: DotTree[popxl.RemoteBuffer],
        entry: int = 0,
        prefix: str | None = None,
        empty: bool = False,
        memmap_dir: str | None = None,
        read_only_if_exists: bool = False,
    ) -> NamedTensors:
        """A remote variable of each factory, in the buffer of the same name; see
        :meth:`VariableFactory.create_remote_tensor`.

        Raises:
            KeyError: there is no buffer for a factory.
        """
        by_name = buffers.to_dict()
        missing = [key for key in self.to_dict() if key not in by_name]
        if missing:
            raise KeyError(f"init_remote: no buffers for {missing}; there are {list(by_name)}")
        options = (empty, memmap_dir, read_only_if_exists)
        return self._each(
            lambda factory, key: factory.create_remote_tensor(by_name[key], entry, _prefixed(prefix, key), *options)
        )

    @checked_arguments
    def init_zero(self, prefix: str | None = None) -> NamedTensors:
        """A tensor of zeros for each factory, in the current graph."""
        return self._each(lambda factory, key: factory.init_zero(_prefixed(prefix, key)))

    @checked_arguments
    def init_undef(self, prefix: str | None = None) -> NamedTensors:
        """A tensor of no defined values for each factory, in the current graph."""
        return self._each(lambda factory, key: factory.init_undef(_prefixed(prefix, key)))

    def _each(self, make: Callable[[VariableFactory, str], popxl.Tensor]) -> NamedTensors:
        factories = sorted(self.to_dict().items(), key=lambda pair: pair[0].split("."))
        return NamedTensors.from_dict({key: make(factory, key) for key, factory in factories})

    @property
    def replica_groupings(self) -> NamedReplicaGrouping:
        """The replica grouping of each factory."""
        all_replicas = popxl.gir().replica_grouping()
        return NamedReplicaGrouping.from_dict(
            {n: f.replica_grouping or all_replicas for n, f in self.to_dict().items()}
        )


@checked_arguments
def add_variable_input(
    name: str,
    data_iter: DataSource,
    dtype: popxl.dtype | None = None,
    by_ref: bool = False,
    replica_grouping: popxl.ReplicaGrouping | None = None,
) -> tuple[popxl.Tensor, VariableFactory]:
    """An input of the current graph and the factory of the variable for it."""
    factory = VariableFactory(data_iter, dtype, name, by_ref, replica_grouping)
    return factory.create_input(), factory


@checked_arguments
def add_replica_sharded_variable_input(
    name: str,
    data_iter: DataSource,
    dtype: popxl.dtype | None = None,
    by_ref: bool = False,
    replica_grouping: popxl.ReplicaGrouping | None = None,
    shard_over: int | popxl.ReplicaGrouping | None = None,
) -> tuple[popxl.Tensor, VariableFactory]:
    """As :func:`add_variable_input` for an RTS variable: ``data_iter`` gives the whole value, the input is the shard.

    Args:
        shard_over: over how many replicas of a group (default: all); with one the variable is whole.

    Raises:
        ValueError: ``shard_over`` does not divide the group size.
    """
    group = replica_grouping or popxl.gir().replica_grouping()
    over = shard_over.group_size if isinstance(shard_over, popxl.ReplicaGrouping) else shard_over
    shards = check_sharding(group, over) if group.group_size > 1 else 1
    factory = VariableFactory(data_iter, dtype, name, by_ref, replica_grouping, shards)
    return factory.create_input(), factory
