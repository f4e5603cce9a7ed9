"""A program that differs from an earlier one in counts alone is not lowered again.

Some properties of a program have no influence on lowering: how many slices a stream moves, the values of floating-point
constants, and those of factors other than 0 and 1. Trips of a loop matter only as never, once or several times, except
in programs with conditionals, whose branches are compared with all their trips. Of the machine, lowering reads the chip
and the packets of Streaming Memory (:func:`read_of`), not links, host or the size of the Pod. Two programs that differ
only in these (another gradient accumulation, other device iterations, a faster link) become the same steps with other
trips.

Programs are compared by :func:`description`, which contains everything else. A program with an unknown value in it is
never taken for another. A :class:`KeptPrograms` keeps programs for other processes too.
"""

from __future__ import annotations

import enum
import hashlib
import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

import numpy as np

from ipuperf.base.collector import collector_paused
from ipuperf.ir import Constant, DType, Graph, Ir, Op, RemoteBuffer, Stream, Tensor, Variable
from ipuperf.machine import Machine
from ipuperf.ops.control import If, Loop
from ipuperf.ops.updates.optimiser import UpdateOp
from ipuperf.ops.updates.sparse_accumulate import SparseAccumulate

from .program import DeviceProgram
from .supersteps import is_extended

_PROGRAMS = 2
"""How many of the programs that were lowered last are kept, unless :meth:`Again.keep` says otherwise."""
_NUMBERS = 16
"""Constants of up to so many whole numbers are compared by value, as they may be entries of remote buffers."""
_OP_STATE = frozenset(
    ["graph", "id", "inputs", "outputs", "attributes", "ipu", "tile_set", "scope", "module", "location", "phase"]
)
_FACTORS = frozenset(["a", "b", "factor"])
"""Attributes of update ops (gradient accumulation divides by its count)."""
_PLAIN = frozenset([int, str, bytes, type(None)])


class Unlike(Exception):
    """A program contains something of which it is unknown whether lowering depends on it."""


@dataclass(frozen=True)
class _Lowered:
    """A lowered program with its description and the properties that lowering read of the machine."""

    description: tuple[Any, ...]
    read: tuple[Any, ...]
    program: DeviceProgram


class KeptPrograms(Protocol):
    """A store of lowered programs for other processes; its keys are digests (SHA-256) as hexadecimal text."""

    def read(self, key: str) -> DeviceProgram | None:
        """The program with this key, None where there is none."""

    def write(self, key: str, program: DeviceProgram) -> None:
        """Keep a program."""


class Again:
    """The programs that were lowered last."""

    def __init__(self) -> None:
        self._programs: list[_Lowered] = []
        self._most = _PROGRAMS

    def keep(self, programs: int) -> None:
        """Keep so many programs from now on."""
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
            ir, machine, name: the program's.
            how: everything else that its lowering depends on.
            store: is asked for programs that this process does not know, and gets those that it lowers.
        """
        try:
            program_description = (_value(how), *description(ir))
            # Content that cannot be compared is lowered anew.
            trips, read = _trips(ir), read_of(machine)
        except Unlike:
            return lower()
        for known in self._programs:
            if known.read == read and known.description == program_description:
                return _placed(_with_trips(known.program, name, trips), machine)
        if store is None:
            program = lower()
        else:
            # The store knows neither the name nor the trips nor the machine of this program.
            program = _placed(_with_trips(_through(store, read, program_description, lower), name, trips), machine)
        # The latest comes first, and the oldest is dropped.
        self._programs = [_Lowered(program_description, read, program), *self._programs][: self._most]
        return program


def read_of(machine: Machine) -> tuple[Any, ...]:
    """The properties of a machine on which lowering depends."""
    memory = machine.ipu_machine.streaming_memory
    return (machine.chip, None if memory is None else memory.remote_packet_bytes)


def _placed(program: DeviceProgram, machine: Machine) -> DeviceProgram:
    """The program placed on this machine.

    Raises:
        MachineError: its replicas do not fit the machine.
    """
    placement = machine.place(program.replicas, len(program.ipus))
    return replace(program, machine=machine.name, placement=placement)


def _through(
    store: KeptPrograms, read: tuple[Any, ...], program_description: tuple[Any, ...], lower: Callable[[], DeviceProgram]
) -> DeviceProgram:
    """The store's program; otherwise ``lower()``, which the store then gets."""
    if is_extended():
        return lower()
    try:
        # Everything in it is plain. The second version of the format writes equal values as equal bytes. The graphs go
        # in one by one, as the bytes of all are many.
        digest = hashlib.sha256()
        for part in (_value(read), *program_description):
            digest.update(marshal.dumps(part, 2))
        key = digest.hexdigest()
    except (Unlike, ValueError):
        return lower()
    program = store.read(key)
    if program is None:
        program = lower()
        store.write(key, program)
    return program


def description(ir: Ir) -> tuple[Any, ...]:
    """Everything about a program but counts and values; equal for programs that become the same steps.

    Raises:
        Unlike: the program contains something unknown.
    """
    graphs = list(ir.all_graphs())
    whole = (ir.replication_factor, ir.num_host_transfers, ir.num_io_tiles, ir.checks_ambiguity)
    buffers = [(b.id, b.shape, b.dtype.name, b.entries, b.meta_shape) for b in ir.remote_buffers]
    # Branches are compared with all their trips, so trips count where there is a conditional.
    exact = any(isinstance(op, If) for graph in graphs for op in graph.ops)
    return (*whole, tuple(buffers), *[_graph(graph, exact) for graph in graphs])


def _graph(graph: Graph, exact: bool) -> tuple[Any, ...]:
    """The description of a graph; it contains exact trips where ``exact``."""
    # Predecessors are a set without a fixed order, so their numbers are sorted.
    constraints = [
        (op.id, *sorted(predecessor.id for predecessor in earlier)) for op, earlier in graph.constraints.items()
    ]
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
    common = (tensor.id, spec.shape, spec.dtype.name, spec.meta_shape, tensor.by_ref, tensor.ipu)
    # Everything else about a result follows from its op.
    if tensor.producer is not None:
        return common
    if isinstance(tensor, Stream):
        return (*common, _name(kind), tensor.direction)
    if isinstance(tensor, Variable):
        remote = None if tensor.remote is None else (tensor.remote[0].id, tensor.remote[1])
        return (*common, _name(kind), _value(tensor.grouping), tensor.retrieval, remote, tensor.shard_over)
    # Few whole numbers may select entries of remote buffers, so their values count.
    if isinstance(tensor, Constant) and spec.dtype.is_integer and spec.elements <= _NUMBERS:
        return (*common, _name(kind), np.asarray(tensor.data).tobytes())
    return (*common, _name(kind))


def _op(op: Op, exact: bool) -> tuple[Any, ...]:
    kind, attributes = type(op), op.attributes
    # Ops of other packages, or with further state, may lower in ways that this module does not describe.
    if not kind.__module__.startswith("ipuperf.") or vars(op).keys() != _OP_STATE:
        raise Unlike
    if isinstance(op, Loop) and not exact:
        # Once and several times lower differently; the exact number is put in afterwards.
        attributes = {**attributes, "trip_count": min(op.trip_count, 2)}
    # Factors such as one over the count of gradient accumulation do not change the steps.
    elif isinstance(op, (UpdateOp, SparseAccumulate)):
        attributes = {name: _factor(value) if name in _FACTORS else value for name, value in attributes.items()}
    return (
        _name(kind),
        op.id,
        tuple([tensor.id for tensor in op.inputs]),
        tuple([tensor.id for tensor in op.outputs]),
        tuple([(name, value if type(value) in _PLAIN else _value(value)) for name, value in attributes.items()])
        if attributes
        else (),
        op.ipu,
        op.tile_set,
        op.scope,
        op.module,
        op.location,
        op.phase,
    )


def _name(kind: type) -> str:
    """The name of a class: a class itself has no bytes for a digest."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _factor(value: float | None) -> float | str | None:
    """A factor for comparison; the vertices of ops depend only on whether it is 0 or 1."""
    return value if value in (None, 0.0, 1.0) else "any"


def _value(value: Any) -> Any:
    """An attribute for comparison. Raises :class:`Unlike` for an object of an unknown kind."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    # With the type, because 1, 1.0 and True are equal.
    if kind is float or kind is bool:
        return _name(kind), value
    if kind is tuple or kind is list:
        return tuple([_value(member) for member in value])
    if kind is DType:
        return "DType", value.name
    if isinstance(value, (Tensor, RemoteBuffer)):
        return _name(kind), value.id
    if isinstance(value, Graph):
        return "Graph", value.name
    if isinstance(value, enum.Enum):
        return _name(kind), value.name
    if isinstance(value, Mapping):
        return _name(kind), tuple([(_value(key), _value(member)) for key, member in value.items()])
    if is_dataclass(value) and kind.__module__.startswith("ipuperf."):
        return _name(kind), tuple([_value(getattr(value, member.name)) for member in fields(value)])
    raise Unlike


def _trips(ir: Ir) -> dict[str, int]:
    """Trips of each graph that a loop repeats. Raises :class:`Unlike` where two loops repeat one graph unequally."""
    trips: dict[str, int] = {}
    for graph in ir.all_graphs():
        for op in graph.ops:
            if isinstance(op, Loop) and trips.setdefault(op.callee.name, op.trip_count) != op.trip_count:
                raise Unlike
    return trips


def _with_trips(program: DeviceProgram, name: str, trips: Mapping[str, int]) -> DeviceProgram:
    """The program with other trips."""
    return replace(
        program,
        name=name,
        ipus=tuple([step.with_trips(trips) for step in program.ipus]),
        functions={key: step.with_trips(trips) for key, step in program.functions.items()},
    )
