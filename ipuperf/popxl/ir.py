"""``popxl.Ir``: a program under construction."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ipuperf import ir as _ir
from ipuperf.ir import Ir as _BaseIr

from .effects import EFFECTS
from .graph import Graph
from .replica_grouping import ReplicaGrouping, grouping_from_assignment
from .streams import DeviceToHostStream, HostToDeviceStream
from .tracing import graph_stem, trace

_SEALED: weakref.WeakSet[_ir.Ir] = weakref.WeakSet()


def seal(program: _BaseIr) -> None:
    """Remember that a session was built: the replication factor and the I/O tiles are now fixed."""
    _SEALED.add(program)
    if not program.num_io_tiles and any(op.tile_set == "io" for graph in program.all_graphs() for op in graph.ops):
        EFFECTS.given("io_tiles()", True)


class Ir:
    """A program: a main graph, subgraphs, variables, streams.

    Args:
        replication: number of replicas that run the program; ``"popdist"`` means one instance here, thus 1.
    """

    _ir_cache: ClassVar[weakref.WeakValueDictionary[int, Ir]] = weakref.WeakValueDictionary()
    _ir: _BaseIr

    def __init__(self, replication: int | str = 1) -> None:
        self._ir = _ir.Ir(_replicas(1 if replication == "popdist" else replication))
        Ir._ir_cache[id(self._ir)] = self

    @classmethod
    def _from_ir(cls, program: _BaseIr) -> Ir:
        """The one handle of ``program``."""
        found = cls._ir_cache.get(id(program))
        if found is None or found._ir is not program:
            found = cls.__new__(cls)
            found._ir = program
            cls._ir_cache[id(program)] = found
        return found

    @property
    def id(self) -> int:
        """A number that identifies the program in this process."""
        return id(self._ir)

    @property
    def main_graph(self) -> Graph:
        """What one ``session.run`` executes."""
        return Graph._from_ir(self._ir.main_graph)

    @property
    def num_host_transfers(self) -> int:
        """How many slices of each stream a run moves."""
        return self._ir.num_host_transfers

    @num_host_transfers.setter
    def num_host_transfers(self, value: int) -> None:
        if int(value) < 1:
            raise ValueError(f"num_host_transfers is {value}; at least 1 is needed")
        self._ir.num_host_transfers = int(value)

    @property
    def num_io_tiles(self) -> int:
        """Tiles of each IPU on which ops inside ``popxl.io_tiles()`` run while the others compute; the two meet at
        ``ops.io_tile_copy``. 0 (default): there are no such tiles, and those ops run with all others. Upstream this is
        the session option ``numIOTiles``."""
        return self._ir.num_io_tiles

    @num_io_tiles.setter
    def num_io_tiles(self, value: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"num_io_tiles is {value!r}; a whole number of at least 0 is needed")
        if self._ir in _SEALED:
            raise RuntimeError("num_io_tiles cannot be changed after a Session was built from the Ir")
        self._ir.num_io_tiles = value

    @property
    def replication_factor(self) -> int:
        """Number of replicas; settable until a session is built."""
        return self._ir.replication_factor

    @replication_factor.setter
    def replication_factor(self, value: int) -> None:
        if self._ir in _SEALED:
            raise RuntimeError("replication_factor cannot be changed after a Session was built from the Ir")
        self._ir.replication_factor = _replicas(value)

    @property
    def instance_replication_factor(self) -> int:
        """Replicas of this host process: all."""
        return self._ir.replication_factor

    def replica_grouping(self, stride: int = 1, group_size: int | None = None) -> ReplicaGrouping:
        """Groups of replicas ``stride`` apart (default: one group of all that the stride leaves)."""
        return ReplicaGrouping(self._ir.grouping(stride, group_size))

    def replica_grouping_from_assignments(self, assignments: Sequence[int]) -> ReplicaGrouping:
        """The grouping that puts replica ``i`` into group ``assignments[i]``; it must be regular."""
        return grouping_from_assignment(self._ir.replication_factor, assignments)

    def create_graph(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
        """A subgraph built by ``fn`` (a function or module): see :mod:`.tracing`."""
        graph = Graph._from_ir(self._ir.create_graph(graph_stem(fn)))
        trace(graph, fn, args, kwargs)
        return graph

    def create_empty_graph(self, name: str | None = None) -> Graph:
        """An empty subgraph named ``<name>_subgraph(k)``."""
        return Graph._from_ir(self._ir.create_graph(name or "graph"))

    def get_all_h2d_streams(self) -> set[HostToDeviceStream]:
        """All streams from the host."""
        return {HostToDeviceStream(s) for s in self._ir.streams("h2d")}

    def get_all_d2h_streams(self) -> set[DeviceToHostStream]:
        """All streams to the host."""
        return {DeviceToHostStream(s) for s in self._ir.streams("d2h")}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ir) and other._ir is self._ir

    def __hash__(self) -> int:
        return id(self._ir)

    def __repr__(self) -> str:
        return f"Ir[id={self.id}]"


def _replicas(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"replication factor {value!r}; a whole number of at least 1 is needed")
    return value
