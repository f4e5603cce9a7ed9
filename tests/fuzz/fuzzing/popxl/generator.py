"""Random PopXL programs: heads, 5 to 40 instructions, stores of what they made."""

import math
import random

from .kinds import KINDS
from .program import Body, Head, Program
from .scope import DTYPES, FLOATS, Root, Scope, Shared

SHARDED = ["sharded", "remote_sharded"]
NAMES = [name for name in KINDS if name != "store"]


def draw_body(scope: Scope, count: int) -> None:
    """Append at least ``count`` instructions (some kinds need others first)."""
    r = scope.random
    wanted = len(scope.instructions) + count
    for _ in range(8 * count):
        if len(scope.instructions) >= wanted:
            return
        if scope.depth == 0 and scope.shared.ipus > 1:
            scope.ipu = r.randrange(scope.shared.ipus)
        (name,) = r.choices(NAMES, [KINDS[n].weight for n in NAMES])
        if KINDS[name].draw(scope) and scope.depth == 0 and r.random() < 0.15:
            KINDS["store"].draw(scope)


def generate(r: random.Random) -> Program:
    """A random program."""
    replicas, ipus, io_tiles = r.choice([1, 1, 1, 2, 4, 4, 8]), r.choice([1, 1, 1, 2]), r.choice([0, 0, 0, 32])
    shared = Shared(r, replicas, 1 if replicas == 8 else ipus, io_tiles)
    scope = Scope(shared)
    heads = [_head(scope) for _ in range(r.randint(2, 6))]
    draw_body(scope, r.randint(5, 40))
    _store(scope)
    main = Body(heads, scope.instructions, [])
    return Program(r.randrange(1 << 20), replicas, shared.ipus, io_tiles, main, shared.functions, shared.buffers)


def _head(scope: Scope) -> Head:
    """A variable, on the chip, sharded or remote, or a stream."""
    r, replicas = scope.random, scope.shared.replicas
    source = r.choice(["variable", "variable", "stream", "stream", "remote"] + SHARDED * (replicas > 1))
    shape, dtype = scope.shape(), r.choice(DTYPES)
    if source in SHARDED and not shape:
        shape = (r.randint(1, 9),)
    exact = source == "stream" or dtype not in FLOATS
    if source in SHARDED:
        number = scope.add((-(-math.prod(shape) // replicas),), dtype, root=Root(exact), meta=shape)
    else:
        number = scope.add(shape, dtype, root=Root(exact))
    group = r.choice([None, [1, 1], *([[2, replicas // 2]] if replicas > 2 else [])])
    if source not in ("variable", "remote") or replicas == 1:
        group = None
    if source.startswith("remote"):
        scope.shared.remote.append(scope.specs[number])
    io = source == "stream" and bool(scope.shared.io_tiles) and r.random() < 0.5
    return Head(number, list(shape), dtype, source, group=group, io=io)


def _store(scope: Scope) -> None:
    """Store what was made, so that late changes of early tensors show too."""
    for spec in list(scope.specs.values()):
        if spec.elements and scope.random.random() < 0.5:
            scope.ipu = spec.ipu
            scope.emit("store", [spec], io=bool(scope.shared.io_tiles) and scope.random.random() < 0.3)
