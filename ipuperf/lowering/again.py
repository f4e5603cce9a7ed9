"""A program that differs from an earlier one in counts alone is not lowered again.

Nothing that lowering finds out depends on how often a loop runs, beyond once, several times or never (conditionals
apart, whose branches are compared with all their trips), on how many slices a stream moves, on the values of
floating-point constants or on those of factors other than 0 and 1. Of the machine it looks at the chip and at the
packets of Streaming Memory (:func:`read_of`), not at links, host or the size of the Pod. So two programs that are the
same but for these (another gradient accumulation, other device iterations, a faster link) become the same steps with
other trips. What a program is compared by is :func:`description`, everything else that a program says; one with
something that it does not know is never taken for another. A :class:`KeptPrograms` keeps programs for other processes
too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ipuperf.ir import Constant, DType, Graph, Ir, Op, RemoteBuffer, Stream, Tensor, Variable
from ipuperf.ir.collector import collector_paused
from ipuperf.ops.control import If, Loop
from ipuperf.ops.optimiser import UpdateOp
from ipuperf.ops.sparse_accumulate import SparseAccumulate

from .program import DeviceProgram
from .steps import Repeat, Sequence, Step

if TYPE_CHECKING:
    from ipuperf.machine import Machine

_PROGRAMS = 2
"""How many programs are kept, the ones that were lowered last, unless :meth:`Again.keep` says otherwise."""
_NUMBERS = 16
"""Constants of so many whole numbers count by their values: they may be entries of remote buffers."""
_OP_STATE = frozenset(
    ["graph", "id", "inputs", "outputs", "attributes", "ipu", "tile_set", "scope", "location", "phase"]
)
_FACTORS = frozenset(["a", "b", "factor"])
"""Attributes of update ops (gradient accumulation divides by its count)."""
_PLAIN = frozenset([int, str, bytes, type(None)])


class Unlike(Exception):
    """A program holds something of which nobody knows whether lowering looks at it."""


@dataclass(frozen=True)
class _Lowered:
    """A program that was lowered, what it was, and what was read of the machine."""

    said: tuple[Any, ...]
    read: tuple[Any, ...]
    program: DeviceProgram


class KeptPrograms(Protocol):
    """Where lowered programs are kept for other processes, by plain values whose ``repr`` says all."""

    def read(self, said: Any) -> DeviceProgram | None:
        """The program of this content, None where there is none."""

    def write(self, said: Any, program: DeviceProgram) -> None:
        """Keep a program."""


class Again:
    """The programs that were lowered last."""

    def __init__(self) -> None:
        self._kept: list[_Lowered] = []
        self._most = _PROGRAMS

    def keep(self, programs: int) -> None:
        """From now on so many programs are kept."""
        self._most = programs

    @collector_paused()
    def lowered(
        self,
        ir: Ir,
        machine: Machine,
        name: str,
        how: tuple[Any, ...],
        lower: Callable[[], DeviceProgram],
        store: KeptPrograms | None = None,
    ) -> DeviceProgram:
        """``lower()``, or an earlier program of the same content with the trips of this one.

        Args:
            ir, machine, name: of the program.
            how: all else that its lowering depends on.
            store: asked for what this process does not know, and given what it lowers.
        """
        try:
            said = (_value(how), *description(ir))
            trips, read = _trips(ir), read_of(machine)
        except Unlike:
            return lower()
        for known in self._kept:
            if known.read == read and known.said == said:
                return _placed(_with_trips(known.program, name, trips), machine)
        if store is None:
            program = lower()
        else:
            program = _placed(_with_trips(_through(store, read, said, lower), name, trips), machine)
        self._kept = [_Lowered(said, read, program), *self._kept][: self._most]
        return program


def read_of(machine: Machine) -> tuple[Any, ...]:
    """What lowering looks at in a machine."""
    memory = machine.ipu_machine.streaming_memory
    return (machine.chip, None if memory is None else memory.remote_packet_bytes)


def _placed(program: DeviceProgram, machine: Machine) -> DeviceProgram:
    """The program on this machine.

    Raises:
        MachineError: its replicas do not fit it.
    """
    placement = machine.place(program.replicas, len(program.ipus))
    return replace(program, machine=machine.name, placement=placement)


def _through(
    store: KeptPrograms, read: tuple[Any, ...], said: tuple[Any, ...], lower: Callable[[], DeviceProgram]
) -> DeviceProgram:
    """``lower()``, or what the store has."""
    try:
        key = _value(read), said
    except Unlike:
        return lower()
    program = store.read(key)
    if program is None:
        program = lower()
        store.write(key, program)
    return program


def description(ir: Ir) -> tuple[Any, ...]:
    """All that a program says but counts and values; equal for programs that become the same steps.

    Raises:
        Unlike: it holds something unknown.
    """
    graphs = list(ir.all_graphs())
    whole = (ir.replication_factor, ir.num_host_transfers, ir.num_io_tiles, ir.checks_ambiguity)
    buffers = [(b.id, b.shape, b.dtype.name, b.entries, b.meta_shape) for b in ir.remote_buffers]
    exact = any(isinstance(op, If) for graph in graphs for op in graph.ops)
    return (*whole, tuple(buffers), *[_graph(graph, exact) for graph in graphs])


def _graph(graph: Graph, exact: bool) -> tuple[Any, ...]:
    """A graph; trips as they are where ``exact``."""
    constraints = [(op.id, *sorted(before.id for before in earlier)) for op, earlier in graph.constraints.items()]
    return (
        graph.name,
        graph.phase,
        tuple([tensor.id for tensor in graph.inputs]),
        tuple([tensor.id for tensor in graph.outputs]),
        tuple([_tensor(tensor) for tensor in graph.tensors.values()]),
        tuple([_op(op, exact) for op in graph.ops]),
        tuple(constraints),
    )


def _tensor(tensor: Tensor) -> tuple[Any, ...]:
    spec, kind = tensor.spec, type(tensor)
    seen = (tensor.id, spec.shape, spec.dtype.name, spec.meta_shape, tensor.by_ref, tensor.ipu)
    if tensor.producer is not None:
        return seen
    if isinstance(tensor, Stream):
        return (*seen, kind, tensor.direction)
    if isinstance(tensor, Variable):
        remote = None if tensor.remote is None else (tensor.remote[0].id, tensor.remote[1])
        return (*seen, kind, _value(tensor.grouping), tensor.retrieval, remote, tensor.shard_over)
    if isinstance(tensor, Constant) and spec.dtype.is_integer and spec.elements <= _NUMBERS:
        return (*seen, kind, np.asarray(tensor.data).tobytes())
    return (*seen, kind)


def _op(op: Op, exact: bool) -> tuple[Any, ...]:
    kind, attributes = type(op), op.attributes
    if not _ours(kind) or vars(op).keys() != _OP_STATE:
        raise Unlike
    if isinstance(op, Loop) and not exact:
        attributes = {**attributes, "trip_count": min(op.trip_count, 2)}
    elif isinstance(op, (UpdateOp, SparseAccumulate)):
        attributes = {name: _factor(value) if name in _FACTORS else value for name, value in attributes.items()}
    return (
        kind,
        op.id,
        tuple([tensor.id for tensor in op.inputs]),
        tuple([tensor.id for tensor in op.outputs]),
        tuple([(name, value if type(value) in _PLAIN else _value(value)) for name, value in attributes.items()])
        if attributes
        else (),
        op.ipu,
        op.tile_set,
        op.scope,
        op.location,
        op.phase,
    )


@lru_cache(maxsize=1024)
def _ours(kind: type[Op]) -> bool:
    """Whether a class of ops is one of ipuperf's."""
    return kind.__module__.startswith("ipuperf.")


def _factor(value: float | None) -> float | str | None:
    """A factor; the vertices of ops ask no more than whether it is 0 or 1."""
    return value if value in (None, 0.0, 1.0) else "any"


def _value(value: Any) -> Any:
    """An attribute. Raises :class:`Unlike` for an object of an unknown kind."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float or kind is bool:
        return kind, value
    if kind is tuple or kind is list:
        return tuple([_value(item) for item in value])
    if kind is DType:
        return DType, value.name
    if isinstance(value, (Tensor, RemoteBuffer)):
        return kind, value.id
    if isinstance(value, Graph):
        return Graph, value.name
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, Mapping):
        return kind, tuple([(_value(key), _value(item)) for key, item in value.items()])
    if is_dataclass(value) and kind.__module__.startswith("ipuperf."):
        return kind, tuple([_value(getattr(value, item.name)) for item in fields(value)])
    raise Unlike


def _trips(ir: Ir) -> dict[str, int]:
    """How often each graph that a loop repeats runs in it; Unlike where two loops repeat one graph unequally."""
    found: dict[str, int] = {}
    for graph in ir.all_graphs():
        for op in graph.ops:
            if isinstance(op, Loop) and found.setdefault(op.callee.name, op.trip_count) != op.trip_count:
                raise Unlike
    return found


def _with_trips(program: DeviceProgram, name: str, trips: Mapping[str, int]) -> DeviceProgram:
    """The program with other trips."""
    return replace(
        program,
        name=name,
        ipus=tuple([_repeated(step, trips) for step in program.ipus]),
        functions={key: _repeated(step, trips) for key, step in program.functions.items()},
    )


def _repeated(step: Any, trips: Mapping[str, int]) -> Any:
    if isinstance(step, Repeat):
        return replace(step, count=trips[step.name], body=_repeated(step.body, trips))
    if isinstance(step, Sequence):
        return replace(step, steps=_all_repeated(step.steps, trips))
    return step


def _all_repeated(steps: tuple[Step, ...], trips: Mapping[str, int]) -> tuple[Step, ...]:
    return tuple([_repeated(step, trips) for step in steps])
