"""``popxl.Ir``: a program under construction."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ipuperf.frontends.options import POPXL as EFFECTS
from ipuperf.frontends.popdist import instances_stood_for, replicas_of_one_process
from ipuperf.ir import Ir as _BaseIr
from ipuperf.ir.printing import dot_text

from .arguments import checked_kinds, whole
from .graph import Graph
from .pb_ir import ConfiguredIr, PbIr
from .replica_grouping import ReplicaGrouping, grouping_from_assignment
from .streams import DeviceToHostStream, HostToDeviceStream
from .tracing import graph_stem, trace

_CHECKS = "POPART_DOT_CHECKS"


class Ir:
    """A program: a main graph, subgraphs, variables, streams.

    Args:
        replication: number of replicas that run the program; ``"popdist"``: the replicas of all instances, which this
            one process runs (:mod:`ipuperf.popdist`), and a warning that says so; in simulated time each instance has a
            host process of its own.
    """

    _ir_cache: ClassVar[weakref.WeakValueDictionary[int, Ir]] = weakref.WeakValueDictionary()
    _ir: ConfiguredIr

    def __init__(self, replication: int | str = 1) -> None:
        processes = 1
        if isinstance(replication, str) and replication == "popdist":
            replication, processes = replicas_of_one_process("popxl.Ir(replication='popdist')"), instances_stood_for()
        self._ir = ConfiguredIr(whole(replication, "replication factor", 1))
        self._ir.host_processes = processes
        self._ir.main_graph.module = "main"
        Ir._ir_cache[id(self._ir)] = self

    @property
    def _pb_ir(self) -> PbIr:
        """PopART's object below, as far as PopXL programs use it: ``_pb_ir.getSessionOptions()``."""
        return PbIr(self._ir)

    def _seal(self) -> None:
        """A session is made of the program, which changes no more; tile sets that nothing sets apart are said."""
        program = self._ir
        program.sealed = True
        if not program.num_io_tiles and any(op.tile_set == "io" for graph in program.all_graphs() for op in graph.ops):
            EFFECTS.given("io_tiles()", True)

    @classmethod
    def _from_ir(cls, program: _BaseIr) -> Ir:
        """The one handle of ``program``."""
        handle = cls._ir_cache.get(id(program))
        # An id may have belonged to a program that is gone, so the program itself is compared.
        if handle is None or handle._ir is not program:
            assert isinstance(program, ConfiguredIr)
            handle = cls.__new__(cls)
            handle._ir = program
            cls._ir_cache[id(program)] = handle
        return handle

    def _check_open(self, subject: str) -> None:
        """RuntimeError when a session was built: it owns the program."""
        if self._ir.sealed:
            raise RuntimeError(f"{subject} cannot be changed after a Session was built from the Ir")

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
        self._check_open("num_host_transfers")
        self._ir.num_host_transfers = whole(value, "num_host_transfers", 1)

    @property
    def num_io_tiles(self) -> int:
        """Tiles of each IPU on which ops inside ``popxl.io_tiles()`` run while the others compute; the two meet at
        ``ops.io_tile_copy``. 0 (default): there are no such tiles, and those ops run with all others. The same as the
        session option ``numIOTiles``, which is upstream's only name of it."""
        return self._ir.num_io_tiles

    @num_io_tiles.setter
    def num_io_tiles(self, value: int) -> None:
        tiles = whole(value, "num_io_tiles", 0)
        self._check_open("num_io_tiles")
        self._ir.options.numIOTiles = tiles

    @property
    def replication_factor(self) -> int:
        """Number of replicas; settable until a session is built."""
        return self._ir.replication_factor

    @replication_factor.setter
    def replication_factor(self, value: int) -> None:
        self._check_open("replication_factor")
        self._ir.replicate(whole(value, "replication factor", 1))

    @property
    def instance_replication_factor(self) -> int:
        """Replicas of this host process: all."""
        return self._ir.replication_factor

    def replica_grouping(self, stride: int = 1, group_size: int | None = None) -> ReplicaGrouping:
        """Groups of replicas ``stride`` apart (default: one group of all that the stride leaves)."""
        size = None if group_size is None else whole(group_size, "replica_grouping: group_size", 1)
        return ReplicaGrouping._from_ir(self._ir.grouping(whole(stride, "replica_grouping: stride", 1), size))

    def replica_grouping_from_assignments(self, assignment: Sequence[int]) -> ReplicaGrouping:
        """The grouping that puts replica ``i`` into group ``assignment[i]``: groups of one size, numbered 0, 1, ... in
        the order of their first members (ValueError otherwise)."""
        return grouping_from_assignment(self._ir.replication_factor, assignment)

    @checked_kinds()
    def create_graph(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Graph:
        """A subgraph built by ``fn`` (a function or module): see :mod:`.tracing`."""
        stem = graph_stem(fn)
        graph = Graph._from_ir(self._ir.create_graph(stem))
        graph._base.module = stem
        trace(graph, fn, args, kwargs)
        return graph

    @checked_kinds()
    def create_empty_graph(self, name: str | None = None) -> Graph:
        """An empty subgraph named ``<name>_subgraph(k)``."""
        graph = Graph._from_ir(self._ir.create_graph(name or "graph"))
        graph._base.module = name or "graph"
        return graph

    @checked_kinds()
    def dot_checkpoint(self, check: str, save_dir: Path | str | None = None) -> None:
        """Write the graphs as they are now in Graphviz's format, each to ``<save_dir>/<check>_<graph>.dot``.

        Where the environment variable ``POPART_DOT_CHECKS`` (names, ``:`` between them) or the session option
        ``dotChecks`` is set, only checks that they name write something (``ALL``: all; case does not matter). Otherwise
        this sets ``dotChecks`` to ``ALL``. A session makes one more checkpoint, ``Final``.

        Args:
            save_dir: default: the session option ``logDir``, else the current folder. Kept for later checks.
        """
        options = self._ir.options
        if save_dir is not None:
            options.keep("logDir", str(save_dir))
        if not options.dotChecks and _CHECKS not in os.environ:
            options.keep("dotChecks", {"ALL"})
        self._checkpoint(check)

    def _checkpoint(self, check: str) -> None:
        """:meth:`dot_checkpoint` for a check that is wanted."""
        options = self._ir.options
        selected = {name.upper() for name in (*options.dotChecks, *os.environ.get(_CHECKS, "").split(":"))}
        if not {check.upper(), "ALL"} & selected:
            return
        folder = Path(options.logDir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        for graph in self._ir.all_graphs():
            name = re.sub(r"[^\w.()-]+", "_", graph.name or "main")
            (folder / f"{check}_{name}.dot").write_text(dot_text(graph), encoding="utf-8")

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
