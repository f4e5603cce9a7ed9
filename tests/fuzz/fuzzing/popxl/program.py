"""A random PopXL program as a plain value: it can be printed, saved as JSON, replayed and shrunk.

Every tensor has a number of its own in the whole program; an instruction names the numbers that it reads and makes.
What an instruction means to PopXL and to NumPy stands in :mod:`.kinds`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Instruction:
    """One op (or a few fixed ones). ``ipu``: where it runs; ``attributes`` are JSON values."""

    kind: str
    inputs: list[int]
    outputs: list[int]
    ipu: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Head:
    """A tensor that a graph starts with.

    ``source``: ``variable``, ``sharded`` (over replicas), ``remote`` (a remote variable, loaded), ``remote_sharded``,
    ``stream``, or ``input`` of a function. ``group``: stride and size of the groups of replicas that share a variable's
    value.
    """

    id: int
    shape: list[int]
    dtype: str
    source: str
    by_ref: bool = False
    group: list[int] | None = None
    io: bool = False


@dataclass
class Body:
    """A graph: what it starts with, its instructions, the numbers of its outputs."""

    heads: list[Head]
    instructions: list[Instruction]
    outputs: list[int]
    ipu: int = 0


@dataclass
class Buffer:
    """A remote buffer."""

    shape: list[int]
    dtype: str
    entries: int


@dataclass
class Program:
    """A whole program; ``seed`` gives the data of variables and streams."""

    seed: int
    replicas: int
    ipus: int
    io_tiles: int
    main: Body
    functions: list[Body] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)

    def bodies(self) -> Iterator[Body]:
        """The main graph and the functions."""
        yield self.main
        yield from self.functions

    def size(self) -> int:
        """Number of instructions, those that only store a value for the check left out."""
        return sum(i.kind != "store" for body in self.bodies() for i in body.instructions)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Program:
        """The program that :meth:`to_json` wrote."""
        data = json.loads(text)
        data["main"] = _body(data["main"])
        data["functions"] = [_body(b) for b in data["functions"]]
        data["buffers"] = [Buffer(**b) for b in data["buffers"]]
        return cls(**data)

    def __str__(self) -> str:
        lines = [f"replicas={self.replicas} ipus={self.ipus} io_tiles={self.io_tiles} seed={self.seed}"]
        for number, body in enumerate(self.bodies()):
            lines.append("main:" if number == 0 else f"function {number - 1} (IPU {body.ipu}) -> {body.outputs}:")
            lines += [f"  %{h.id} = {h.source} {h.shape} {h.dtype}{' by reference' * h.by_ref}" for h in body.heads]
            lines += [f"  {_line(i)}" for i in body.instructions]
        return "\n".join(lines)


def _line(ins: Instruction) -> str:
    made = ", ".join(f"%{o}" for o in ins.outputs)
    read = ", ".join(f"%{i}" for i in ins.inputs)
    return f"{made} = {ins.kind}({read}) {ins.attributes or ''} {f'on IPU {ins.ipu}' * bool(ins.ipu)}".rstrip()


def _body(data: dict[str, Any]) -> Body:
    heads = [Head(**h) for h in data["heads"]]
    return Body(heads, [Instruction(**i) for i in data["instructions"]], data["outputs"], data["ipu"])


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A smaller program for which ``fails`` still holds: instructions are dropped (with those that need them) one by
    one until none can be spared, then what nothing uses any more."""
    found = True
    while found:
        found = False
        for number, body in enumerate(program.bodies()):
            for position in range(len(body.instructions) - 1, -1, -1):
                smaller = _without(program, number, position)
                if smaller is not None and fails(smaller):
                    program, found = smaller, True
                    break
            if found:
                break
    return _pruned(program, fails)


def _without(program: Program, number: int, position: int) -> Program | None:
    """The program without an instruction and its dependents; None when an output of its graph goes with them."""
    smaller = copy.deepcopy(program)
    body = list(smaller.bodies())[number]
    if position >= len(body.instructions):
        return None
    gone = set(body.instructions.pop(position).outputs)
    kept = []
    for ins in body.instructions:
        if gone & set(ins.inputs):
            gone |= set(ins.outputs)
        else:
            kept.append(ins)
    body.instructions = kept
    return None if gone & set(body.outputs) else smaller


def _called(instructions: list[Instruction], functions: list[Body]) -> set[int]:
    """Numbers of the functions that are reached."""
    found = {i.attributes["function"] for i in instructions if i.kind == "call"}
    return found.union(*(_called(functions[number].instructions, functions) for number in found))


def _pruned(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Without what is in functions that nothing calls, and without heads of the main graph that nothing reads where the
    failure stays."""
    program = copy.deepcopy(program)
    for number in set(range(len(program.functions))) - _called(program.main.instructions, program.functions):
        program.functions[number] = Body([], [], [])
    for head in list(program.main.heads):
        smaller = copy.deepcopy(program)
        smaller.main.heads = [h for h in smaller.main.heads if h.id != head.id]
        used = any(head.id in i.inputs for i in smaller.main.instructions)
        if not used and fails(smaller):
            program = smaller
    return program
