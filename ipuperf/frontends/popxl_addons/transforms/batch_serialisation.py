"""Phased execution: a graph repeated over the micro-batches of a step, its tensors loaded before and stored after each.

A phase loads its weights once, then runs a loop over all micro-batches that loads activations from Streaming Memory or
the host, computes and stores. :func:`batch_serialise` writes that loop, :func:`batch_serialise_fwd_and_grad` those of
a graph and its gradient graph, with the activations that the second needs kept in between.

``io_mode`` says on which tiles the transfers run:

- ``compute``: on the compute tiles; load, compute and store follow each other.
- ``io``: on the I/O tiles (``num_io_tiles`` of the Ir), with a copy between the tile sets before and after computing;
  they still follow each other.
- ``io_overlapped``: on the I/O tiles, beside computing: ramp-up ``load 0``, ``load 1 | compute 0``; loop of
  ``steps - 2``: ``load i, store i - 2 | compute i - 1``; ramp-down ``store n - 2 | compute n - 1``, ``store n - 1``.

Source: popxl-addons: popxl_addons/transforms/batch_serialisation.py, docs/phased_execution.md. Handles are described in
:mod:`.batch_handles`. A gradient graph is not changed: its names are those of the result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping, ops
from ipuperf.frontends.popxl.arguments import checked_arguments, whole
from ipuperf.frontends.popxl.transforms import (
    ExpectedConnection,
    ExpectedConnectionType,
    io_tile_exchange,
    merge_exchange,
)
from ipuperf.ir import CONTEXT

from ..graph import GraphWithNamedArgs
from ..named_tensors import NamedTensors
from ..remote import create_remote_buffer
from ..utils import suffix_graph_name
from .batch_handles import Given, RemoteHandle, Stored, Transfers, load_handle, remote_handle

IoMode = Literal["compute", "io", "io_overlapped"]
_MODES = ("compute", "io", "io_overlapped")

Tensors = Sequence[popxl.Tensor]
Handles = Mapping[popxl.Tensor, Given]
Streams = Mapping[popxl.Tensor, popxl.DeviceToHostStream]


@dataclass
class BatchSerialResult:
    """What batch serialisation made.

    Attributes:
        graph: the graph with the loop. Its inputs: the row of the remote buffers, the random seed if there is one, and
            the inputs of the original graph that are not loaded, under their names.
        stored_buffers: for tensors of the original graph that are in Streaming Memory after a call, where.
    """

    graph: GraphWithNamedArgs
    stored_buffers: dict[popxl.Tensor, RemoteHandle]
    _remap_dict: dict[popxl.Tensor, popxl.Tensor] = field(default_factory=dict)

    def remap_tensors(self, ts: NamedTensors) -> NamedTensors:
        """Inputs of the original graph as inputs of the graph with the loop."""
        return ts.remap(self._remap_dict)


@checked_arguments
def batch_serial_buffer(
    t: popxl.Tensor | popxl.TensorSpec, steps: int = 1, rows: int = 1, shard_group: ReplicaGrouping | None = None
) -> popxl.RemoteBuffer:
    """A remote buffer for ``t`` with an entry for each step of each row.

    Args:
        shard_group: the replicas over which each entry is sharded (default: every replica holds the whole tensor).

    Raises:
        ValueError: steps or rows below 1; a group that cannot hold shards.
    """
    steps, rows = whole(steps, "batch_serial_buffer: steps", 1), whole(rows, "batch_serial_buffer: rows", 1)
    shards = 1 if shard_group is None else shard_group.group_size
    return create_remote_buffer(t.spec, steps * rows, shard_group, shards)


class _Phase:
    """Writes the graph with the loop.

    Args:
        transfers: what each step loads and stores.
        io_tiles: whether that happens on the I/O tiles.
    """

    def __init__(self, transfers: Transfers, io_tiles: bool) -> None:
        self.transfers = transfers
        self.io_tiles = io_tiles
        self.called = transfers.graph
        self.ir = self.called.graph.ir
        if io_tiles and not self.ir.num_io_tiles:
            raise ValueError(
                "IR must have IO tiles for io_mode 'io' and 'io_overlapped': set num_io_tiles of the Ir (numIOTiles of "
                "its session options), or use io_mode='compute'"
            )

    def tiles(self) -> AbstractContextManager[None]:
        """Ops here run where the transfers run."""
        return popxl.io_tiles() if self.io_tiles else nullcontext()

    def across(self, tensors: Tensors) -> list[popxl.Tensor]:
        """The tensors on the other tile set; the same ones when there is one."""
        return [ops.io_tile_copy(t) for t in tensors] if self.io_tiles else list(tensors)

    def passed(self, by_ref: bool) -> list[popxl.Tensor]:
        """Inputs of the current graph for those that the called graph's caller gives."""
        # What the called graph changes in place is a reference in every graph around it.
        known = self.called.graph._by_ref_inputs
        return [popxl.graph_input(**t.spec, name=t.name, by_ref=by_ref or t in known) for t in self.transfers.passed]

    def compute(self, loaded: Tensors, seed: popxl.Tensor, passed: Tensors) -> list[popxl.Tensor]:
        """One call of the graph; what is to be stored of it."""
        transfers = self.transfers
        operands = dict(zip([*transfers.loaded, *transfers.passed], [*loaded, *passed], strict=True))
        if transfers.seed_input is not None:
            operands[transfers.seed_input] = seed
        info = self.called.call_with_info(args=operands)
        return [info.graph_to_parent(t) for t in transfers.stored]

    def gathered(self, loaded: Tensors) -> list[popxl.Tensor]:
        """What was loaded, whole and where it is computed with."""
        with self.tiles():
            whole_tensors = self.transfers.gather(loaded)
        return self.across(whole_tensors)

    def cut(self, stored: Tensors) -> list[Stored]:
        """What a step left, where it is stored from."""
        stored = self.across(stored)
        with self.tiles():
            return self.transfers.cut(stored)

    def next(self, index: popxl.Tensor) -> popxl.Tensor:
        """The index of the step after."""
        with self.tiles():
            return index + 1

    def write(self) -> GraphWithNamedArgs:
        """The graph with the loop; its named inputs are those of the called graph that are not loaded."""
        graph = self.ir.create_empty_graph(suffix_graph_name(self.called.name, "_repeat_graph"))
        with graph, popxl.in_sequence(True):
            index = popxl.graph_input((), popxl.int32, "batch_serial_loop_index")
            # A buffer has its rows one after the other, each with an entry for every step.
            with self.tiles():
                start = (ops.io_tile_copy(index) if self.io_tiles else index) * self.transfers.steps
            if self.transfers.seed_input is not None:
                seed = popxl.graph_input((2,), popxl.uint32, "batch_serial_random_seed")
            else:
                # The loop carries a seed in any case; without a seed input nothing reads it.
                seed = popxl.constant((0, 0), popxl.uint32, "dummy_random_seed")
            passed = self.passed(by_ref=False)
            self.steps(start, seed, passed)
        self.inputs = dict(zip(self.transfers.passed, passed, strict=True))
        return GraphWithNamedArgs(graph, self.called.args.remap(self.inputs))

    def steps(self, index: popxl.Tensor, seed: popxl.Tensor, passed: Tensors) -> None:
        """All steps, each of load, compute and store."""
        body = self.ir.create_empty_graph(suffix_graph_name(self.called.name, "_micro_graph"))
        with body, popxl.in_sequence(True):
            step = popxl.graph_input((), popxl.int32, "index")
            step_seed, next_seed = ops.split_random_seed(popxl.graph_input((2,), popxl.uint32, "seed"))
            graph_inputs = self.passed(by_ref=True)
            with self.tiles():
                reads, writes = self.transfers.load_entries(step), self.transfers.store_entries(step)
            # All loads of a step are one exchange, and so are its stores.
            with self.tiles(), merge_exchange():
                loaded = self.transfers.load(reads)
            stored = self.cut(self.compute(self.gathered(loaded), step_seed, graph_inputs))
            with self.tiles(), merge_exchange():
                self.transfers.store(writes, stored)
            for t in (self.next(step), next_seed):
                popxl.graph_output(t)
        ops.repeat(body, self.transfers.steps, index, seed, *passed)


class _OverlappedPhase(_Phase):
    """As :class:`_Phase`, with the transfers of other steps beside the computation of one; at least two steps."""

    def load(self, index: popxl.Tensor) -> list[popxl.Tensor]:
        """One exchange of loads."""
        with popxl.io_tiles():
            entries = self.transfers.load_entries(index)
        with io_tile_exchange():
            return self.transfers.load(entries)

    def store(self, index: popxl.Tensor, stored: Sequence[Stored]) -> None:
        """One exchange of stores."""
        with popxl.io_tiles():
            entries = self.transfers.store_entries(index)
        with io_tile_exchange():
            self.transfers.store(entries, stored)

    def steps(self, index: popxl.Tensor, seed: popxl.Tensor, passed: Tensors) -> None:
        """Ramp-up, loop and ramp-down."""
        loaded = self.gathered(self.load(index))
        index = self.next(index)
        step_seed, seed = ops.split_random_seed(seed)
        # This load stands before the computation, so that the I/O tiles run it meanwhile.
        raw = self.load(index)
        computed = self.compute(loaded, step_seed, passed)
        loaded, stored = self.gathered(raw), self.cut(computed)
        index = self.next(index)
        if self.transfers.steps > 2:
            index, seed, loaded, stored = self.steady(index, seed, loaded, stored, passed)
        # The index is two steps ahead of what is stored.
        with popxl.io_tiles():
            index = index - 2
        step_seed, seed = ops.split_random_seed(seed)
        self.store(index, stored)
        computed = self.compute(loaded, step_seed, passed)
        stored = self.cut(computed)
        self.store(self.next(index), stored)

    def steady(
        self,
        index: popxl.Tensor,
        seed: popxl.Tensor,
        loaded: Tensors,
        stored: Sequence[Stored],
        passed: Tensors,
    ) -> tuple[popxl.Tensor, popxl.Tensor, list[popxl.Tensor], list[Stored]]:
        """The loop: step ``index`` is loaded and ``index - 2`` stored while the one between is computed."""
        transfers = self.transfers
        # What is stored to two places is carried through the loop once.
        flat = list(dict.fromkeys(t for pair in stored for t in pair))
        body = self.ir.create_empty_graph(suffix_graph_name(self.called.name, "_micro_graph"))
        with body, popxl.in_sequence(True):
            step = popxl.graph_input((), popxl.int32, "index")
            step_seed, next_seed = ops.split_random_seed(popxl.graph_input((2,), popxl.uint32, "seed"))
            inner_loaded = [popxl.graph_input(**t.spec, name=f"loaded_{i}") for i, t in enumerate(loaded)]
            stored_inputs = {t: popxl.graph_input(**t.spec, name=f"stored_io_{i}") for i, t in enumerate(flat)}
            inner_stored = [Stored(stored_inputs[a], stored_inputs[b]) for a, b in stored]
            inner_passed = self.passed(by_ref=True)
            with popxl.io_tiles():
                reads, writes = transfers.load_entries(step), transfers.store_entries(step - 2)
            with io_tile_exchange():
                raw = transfers.load(reads)
                transfers.store(writes, inner_stored)
            computed = self.compute(inner_loaded, step_seed, inner_passed)
            next_loaded, next_stored = self.gathered(raw), self.cut(computed)
            next_flat = list(dict.fromkeys(t for pair in next_stored for t in pair))
            for t in (self.next(step), next_seed, *next_loaded, *next_flat):
                popxl.graph_output(t)
        index, seed, *results = ops.repeat(body, transfers.steps - 2, index, seed, *loaded, *flat, *passed)
        stored_values = dict(zip(flat, results[len(loaded) :], strict=True))
        return (
            index,
            seed,
            list(results[: len(loaded)]),
            [Stored(stored_values[a], stored_values[b]) for a, b in stored],
        )


def _mode(io_mode: str, steps: int) -> str:
    """The mode that is used.

    Raises:
        ValueError: no mode.
    """
    if io_mode not in _MODES:
        raise ValueError(f"Unknown 'io_mode' {io_mode!r}. Supported: ({', '.join(_MODES)})")
    if io_mode == "io_overlapped" and steps < 2:
        logging.getLogger(__name__).warning("io_mode='io_overlapped' needs at least 2 steps, there is 1: io_mode='io'")
        return "io"
    return io_mode


def _result(transfers: Transfers, phase: _Phase) -> BatchSerialResult:
    """Write the graph; in reports its ops are for what the ops of the called graph are for."""
    with CONTEXT.phase(transfers.graph.graph._base.phase):
        graph = phase.write()
    return BatchSerialResult(graph, transfers.stored_buffers, phase.inputs)


def batch_serialise_non_overlapped(
    graph: GraphWithNamedArgs,
    steps: int,
    load_handles: Handles,
    store_streams: Streams,
    store_buffers: Handles,
    seed_input: popxl.Tensor | None = None,
    rows: int = 1,
    use_io_tiles: bool = False,
) -> BatchSerialResult:
    """As :func:`batch_serialise` with ``io_mode`` ``io`` or ``compute``, as ``use_io_tiles`` says."""
    transfers = Transfers(graph, steps, rows, load_handles, store_streams, store_buffers, seed_input)
    return _result(transfers, _Phase(transfers, use_io_tiles))


def batch_serialise_overlapped(
    graph: GraphWithNamedArgs,
    steps: int,
    load_handles: Handles,
    store_streams: Streams,
    store_buffers: Handles,
    seed_input: popxl.Tensor | None = None,
    rows: int = 1,
) -> BatchSerialResult:
    """As :func:`batch_serialise` with ``io_mode="io_overlapped"``; ValueError below two steps."""
    whole(steps, "steps using overlapped IO", 2)
    transfers = Transfers(graph, steps, rows, load_handles, store_streams, store_buffers, seed_input)
    return _result(transfers, _OverlappedPhase(transfers, True))


@checked_arguments
def batch_serialise(
    graph: GraphWithNamedArgs,
    steps: int,
    load_handles: Handles,
    store_streams: Streams,
    store_buffers: Handles,
    seed_input: popxl.Tensor | None = None,
    rows: int = 1,
    io_mode: IoMode = "io",
) -> BatchSerialResult:
    """``graph``, called ``steps`` times in a loop that loads some of its inputs and stores some of its tensors.

    The first input of the new graph is the row of the remote buffers; inputs that are not loaded are inputs of it too,
    under their names. It has no outputs.

    Args:
        steps: micro-batches.
        load_handles: where inputs of the graph come from: a host stream, a :class:`RemoteHandle` or
            ``(buffer, row_offset)``.
        store_streams: the host streams to which tensors of the graph (outputs, or inputs) go.
        store_buffers: the remote buffers to which they go. What is loaded from a remote buffer is not stored again.
        seed_input: the input that gets another random seed in each step; the new graph then has a seed as second input.
        rows: for how many rows it can be called; the buffers are enlarged to hold them.
        io_mode: see the module. With one step ``io_overlapped`` is ``io``, which is logged.

    Raises:
        ValueError: a tensor that is no input (output) of the graph, a handle of another shape or type, steps or rows
            below 1, another mode, a mode that needs I/O tiles when the Ir has none. TypeError: no handle.
    """
    mode = _mode(io_mode, steps)
    transfers = Transfers(graph, steps, rows, load_handles, store_streams, store_buffers, seed_input)
    phase = _OverlappedPhase(transfers, True) if mode == "io_overlapped" else _Phase(transfers, mode == "io")
    return _result(transfers, phase)


@checked_arguments
def batch_serialise_fwd_and_grad(
    forward_graph: GraphWithNamedArgs,
    gradient_graph: GraphWithNamedArgs,
    named_inputs_for_grad_graph: NamedTensors,
    steps: int,
    load_handles: Handles,
    store_streams: Streams,
    store_buffers: Handles,
    seed_input: popxl.Tensor | None = None,
    rows: int = 1,
    io_mode: IoMode = "io",
) -> tuple[BatchSerialResult, BatchSerialResult]:
    """:func:`batch_serialise` of a graph and of its gradient graph.

    Forward tensors that the gradient graph reads are loaded in its loop from where the forward loop stored or loaded
    them; what is in no buffer yet gets one. Those of ``named_inputs_for_grad_graph`` (usually the weights,
    ``forward_graph.args``) become inputs of the second graph, under their names.

    Args:
        load_handles, store_streams, store_buffers: of tensors of both graphs. A replica grouping as the value in
            ``store_buffers`` means: a buffer is made, sharded over it.

    Raises:
        ValueError: as :func:`batch_serialise`; a gradient that the gradient graph takes has no load handle.
    """
    info = gradient_graph.grad_graph_info
    for role, known in zip(
        ("load_handles", "store_streams", "store_buffers"), (load_handles, store_streams, store_buffers), strict=True
    ):
        _check_either(role, known, forward_graph, gradient_graph)
    names = {t: name for name, t in named_inputs_for_grad_graph.to_dict().items()}
    connections = list(zip(gradient_graph.graph.inputs, info.expected_inputs))
    activations = {p: c.fwd_tensor for p, c in connections if c.connection_type is ExpectedConnectionType.Fwd}
    # Named tensors become inputs; all else that the backward reads has to wait in a buffer.
    needed = [t for t in dict.fromkeys(activations.values()) if t not in names]
    buffers = _with_activations(needed, load_handles, store_buffers, steps, rows)

    def serialise(graph: GraphWithNamedArgs, loads: Handles, seed: popxl.Tensor | None) -> BatchSerialResult:
        handles = (_of(graph, loads), _of(graph, store_streams), _of(graph, buffers))
        return batch_serialise(graph, steps, *handles, seed, rows, io_mode)

    forward = serialise(forward_graph, load_handles, seed_input)
    loads: dict[popxl.Tensor, Given] = {}
    for p, c in connections:
        if p not in activations:
            loads[p] = _gradient_handle(p, c, load_handles)
        elif activations[p] not in names:
            loads[p] = forward.stored_buffers[activations[p]]
    named = gradient_graph.copy()
    given_names = {names[t]: p for p, t in activations.items() if t in names}
    named.args = NamedTensors.from_dict({**given_names, **gradient_graph.args.to_dict()})
    gradient = serialise(named, loads, None)
    gradient.graph._grad_graph_info = info
    return forward, gradient


def _ends(graph: GraphWithNamedArgs) -> tuple[popxl.Tensor, ...]:
    """Inputs and outputs."""
    return (*graph.graph.inputs, *graph.graph.outputs)


_T = TypeVar("_T")


def _of(graph: GraphWithNamedArgs, values: Mapping[popxl.Tensor, _T]) -> dict[popxl.Tensor, _T]:
    """What is given for tensors of ``graph``."""
    ends = set(_ends(graph))
    return {t: value for t, value in values.items() if t in ends}


def _check_either(role: str, tensors: Iterable[popxl.Tensor], *graphs: GraphWithNamedArgs) -> None:
    """ValueError for a tensor of another graph."""
    known = {t for graph in graphs for t in _ends(graph)}
    for t in tensors:
        if t not in known:
            raise ValueError(
                f"{role}: {t.id!r} is neither an input nor an output of {' or '.join(repr(g.name) for g in graphs)}"
            )


def _gradient_handle(parameter: popxl.Tensor, connection: ExpectedConnection, load_handles: Handles) -> Given:
    """Where a gradient that the gradient graph takes comes from."""
    if parameter not in load_handles:
        raise ValueError(
            f"FwdGrad input {parameter.id!r} of the gradient graph, the gradient of {connection.fwd_tensor.id!r}, must "
            "have a load_handle"
        )
    return load_handles[parameter]


def _with_activations(
    needed: Tensors, load_handles: Handles, store_buffers: Handles, steps: int, rows: int
) -> dict[popxl.Tensor, RemoteHandle]:
    """The buffers of ``store_buffers`` and of the forward tensors that the gradient graph reads."""
    groups = {t: h for t, h in store_buffers.items() if isinstance(h, ReplicaGrouping)}
    handles = {t: remote_handle(h, f"store_buffers of {t.id!r}") for t, h in store_buffers.items() if t not in groups}
    for t in needed:
        if t in handles:
            continue
        loaded = load_handle(load_handles[t], f"load_handles of {t.id!r}") if t in load_handles else None
        # What the forward loop loaded from a buffer is there already.
        if isinstance(loaded, RemoteHandle):
            handles[t] = loaded
        else:
            handles[t] = RemoteHandle(batch_serial_buffer(t, steps, rows, groups.get(t)), 0, groups.get(t))
    return handles
