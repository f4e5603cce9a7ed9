"""A random PopXL program twice: by ipuperf, and by NumPy with explicit storage (:mod:`.storage`)."""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import ipuperf.popxl as popxl
from ipuperf.numerics import EvaluationError
from ipuperf.popxl import ops

from ..invariants import trace_problems
from ..names import used_by
from ..outcome import Outcome
from . import kinds
from .generator import generate
from .kinds import KINDS
from .kinds.exchange import groups
from .program import Body, Head, Instruction, Program, shrink
from .scope import data
from .storage import Memory, Shadow, differences

RUNS = 2
REFUSALS = ("use the copying form",)
"""What ipuperf may say instead of running a program: limits that its documentation states."""


__all__ = ["Program", "check", "draw", "shrink"]


def draw(r: random.Random) -> Program:
    """A random program."""
    return generate(r)


def drawn_names() -> set[str]:
    """The names that a device and its instructions use."""
    modules = (kinds.elementwise, kinds.exchange, kinds.graph, kinds.shape, kinds.update)
    return used_by(sys.modules[__name__], *modules)


def check(program: Program, *, trace: bool = False) -> Outcome:
    """What differs between ipuperf and NumPy in two runs, and with ``trace`` what does not add up in the trace."""
    try:
        outcome, executable = _compared(program)
    except EvaluationError as error:
        if any(text in str(error) for text in REFUSALS):
            return Outcome(refused=str(error))
        raise
    if trace:
        outcome.problems += trace_problems(executable)
    return outcome


def _compared(program: Program) -> tuple[Outcome, Any]:
    """The differences of values, and the executable."""
    device, world, outcome = Device(program), World(program), Outcome()
    with np.errstate(all="ignore"), device.session:
        for number in range(RUNS):
            _compare_run(device, world, number, outcome)
            if number == 0:
                _write_a_variable(device, world)
        _compare_variables(device, world, outcome)
    return outcome, device.session.executable


def _compare_run(device: Device, world: World, number: int, outcome: Outcome) -> None:
    got = device.run(number)
    world.run_once(number)
    for position, (array, (tensor, dtype, rows)) in enumerate(zip(got, world.stored, strict=True)):
        found, compared = differences(f"run {number}, store {position} of %{tensor}", array, rows, dtype)
        outcome.problems += found
        outcome.compared += compared


def _write_a_variable(device: Device, world: World) -> None:
    """The host gives the first variable its initial value again."""
    for head, variable in device.variables[:1]:
        device.session.write_variable_data(variable, host_data(device.program, head))
        world.write(head)


def _compare_variables(device: Device, world: World, outcome: Outcome) -> None:
    """What the host reads of each variable: of each group its first replica, of shards all together."""
    for head, variable in device.variables:
        got = np.asarray(device.session.get_tensor_data(variable))
        rows = world.on_host(head)
        shape = rows.shape[1:]
        found, compared = differences(f"variable %{head.id}", got.reshape(1, *shape), rows, head.dtype)
        outcome.problems += found
        outcome.compared += compared


def host_data(program: Program, head: Head) -> np.ndarray:
    """Initial data of a variable, with its groups in front when there are several."""
    lead = (program.replicas // head.group[1],) if head.group else ()
    return data((*(n for n in lead if n > 1), *head.shape), head.dtype, program.seed + 2 * head.id)


def stream_data(program: Program, head: Head, run: int) -> np.ndarray:
    """What a stream brings to each replica in a run."""
    return data((program.replicas, *head.shape), head.dtype, program.seed + 2 * head.id + 1000 * (run + 1))


class Device:
    """The program in PopXL, with a session."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.stored: list[Any] = []
        self.streams: list[tuple[Head, Any]] = []
        self.variables: list[tuple[Head, Any]] = []
        self.remote: dict[int, Any] = {}
        self._graphs: dict[int, Any] = {}
        self._buffers: dict[int, Any] = {}
        ir = popxl.Ir(program.replicas)
        ir.num_io_tiles = program.io_tiles
        with ir.main_graph, popxl.in_sequence(True):
            self._extend(program.main.instructions, {h.id: self._head(h) for h in program.main.heads})
        self.session = popxl.Session(ir, "ipu_hw")

    def run(self, number: int) -> list[np.ndarray]:
        """What each store sent, ``(replicas, *shape)``."""
        feeds = {s: stream_data(self.program, h, number) for h, s in self.streams}
        one = self.program.replicas == 1
        found = self.session.run({s: v[0] if one else v for s, v in feeds.items()})
        return [np.asarray(found[s]).reshape(self.program.replicas, *s.shape) for s in self.stored]

    def graph(self, number: int) -> tuple[Any, Body]:
        """A function's graph, built at its first call."""
        body = self.program.functions[number]
        if number not in self._graphs:
            graph = self._graphs[number] = popxl.gir().create_empty_graph(f"function{number}")
            with graph, popxl.in_sequence(True), self._on(body.ipu):
                values = {h.id: self._input(h) for h in body.heads}
                self._extend(body.instructions, values)
                for output in body.outputs:
                    popxl.graph_output(values[output])
        return self._graphs[number], body

    def buffer(self, number: int) -> Any:
        """A remote buffer, made when first used."""
        if number not in self._buffers:
            b = self.program.buffers[number]
            self._buffers[number] = popxl.remote_buffer(b.shape, getattr(popxl, b.dtype), b.entries)
        return self._buffers[number]

    def _input(self, head: Head) -> Any:
        return popxl.graph_input(head.shape, getattr(popxl, head.dtype), f"x{head.id}", by_ref=head.by_ref)

    def _on(self, ipu: int) -> Any:
        return popxl.ipu(ipu) if self.program.ipus > 1 else contextlib.nullcontext()

    def _extend(self, instructions: Sequence[Instruction], values: dict[int, Any]) -> None:
        for ins in instructions:
            with self._on(ins.ipu):
                made = KINDS[ins.kind].build(ins, [values[i] for i in ins.inputs], self)
            values.update(zip(ins.outputs, made if isinstance(made, list) else [made], strict=len(ins.outputs) > 0))

    def _head(self, head: Head) -> Any:
        """The tensor that the main graph starts with."""
        with self._on(0):
            if head.source == "stream":
                return self._stream(head)
            dtype = getattr(popxl, head.dtype)
            value, name = host_data(self.program, head), f"v{head.id}"
            grouping = popxl.gir().replica_grouping(*head.group) if head.group else None
            if head.source.startswith("remote"):
                sharded = head.source == "remote_sharded"
                make = popxl.remote_replica_sharded_variable if sharded else popxl.remote_variable
                new = popxl.replica_sharded_buffer if sharded else popxl.remote_buffer
                buffer = self.remote[head.id] = new(head.shape, dtype, entries=1)
                variable = make(value, buffer, 0, dtype, name, replica_grouping=grouping)
                tensor = ops.remote_load(buffer, 0)
            elif head.source == "sharded":
                variable, tensor = popxl.replica_sharded_variable(value, dtype, name)
            else:
                tensor = variable = popxl.variable(value, dtype, name, replica_grouping=grouping)
        self.variables.append((head, variable))
        return tensor

    def _stream(self, head: Head) -> Any:
        stream = popxl.h2d_stream(head.shape, getattr(popxl, head.dtype), f"in{head.id}")
        self.streams.append((head, stream))
        if not head.io:
            return ops.host_load(stream)
        with popxl.io_tiles():
            loaded = ops.host_load(stream)
        return ops.io_tile_copy(loaded)


class World:
    """The program in NumPy."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.memory = Memory(program.replicas, program.seed)
        self.remote: dict[tuple[int, int], Shadow] = {}
        self.stored: list[tuple[int, str, np.ndarray]] = []
        self.variables = {h.id: self._variable(h) for h in program.main.heads if h.source != "stream"}
        self._heads = {h.id: h for h in program.main.heads}

    def run_once(self, number: int) -> None:
        """One run of the main graph."""
        self.stored = []
        values = {i: v.copy() if self._heads[i].source.startswith("remote") else v for i, v in self.variables.items()}
        for head in self._heads.values():
            if head.source == "stream":
                rows = stream_data(self.program, head, number)
                values[head.id] = self.memory.new(np.concatenate([rows, rows]), head.dtype)
        self.run(self.program.main.instructions, values)

    def run(self, instructions: Sequence[Instruction], values: dict[int, Shadow]) -> None:
        """Execute instructions; ``values`` gets what they make."""
        for ins in instructions:
            made = KINDS[ins.kind].value(ins, [values[i] for i in ins.inputs], self)
            values.update(zip(ins.outputs, made if isinstance(made, list) else [made], strict=len(ins.outputs) > 0))

    def write(self, head: Head) -> None:
        """The host sets a variable: all others go to the host and come back, so that replicas of a group are alike and
        the padding of shards is zero."""
        for other in self._heads.values():
            if other.source != "stream":
                halves = [self._rows(other, value) for value in self.on_host(other)]
                self.variables[other.id].write(np.concatenate(halves))
        self.variables[head.id].write(self._initial(head))

    def on_host(self, head: Head) -> np.ndarray:
        """Two rows (the value and the disturbed one) of what the host reads of a variable."""
        rows = self.variables[head.id].read()
        halves = rows.reshape(2, self.program.replicas, *rows.shape[1:])
        if head.source.endswith("sharded"):
            return halves.reshape(2, -1)[:, : math.prod(head.shape)].reshape(2, *head.shape)
        if head.group and head.group[1] < self.program.replicas:
            return halves[:, [g[0] for g in groups(self.program.replicas, *head.group)]]
        return halves[:, 0]

    def _variable(self, head: Head) -> Shadow:
        return self.memory.new(self._initial(head), head.dtype)

    def _initial(self, head: Head) -> np.ndarray:
        """The value of each replica, in both halves."""
        rows = self._rows(head, host_data(self.program, head))
        return np.concatenate([rows, rows])

    def _rows(self, head: Head, value: np.ndarray) -> np.ndarray:
        """What each replica gets of a variable's value on the host."""
        replicas = self.program.replicas
        if head.source.endswith("sharded"):
            length = -(-value.size // replicas)
            padded = np.zeros(length * replicas, value.dtype)
            padded[: value.size] = value.reshape(-1)
            return padded.reshape(replicas, length)
        if not head.group or head.group[1] == replicas:
            return np.broadcast_to(value, (replicas, *value.shape))
        rows = np.empty((replicas, *head.shape), value.dtype)
        for members, own in zip(groups(replicas, *head.group), value):
            rows[members] = own
        return rows
