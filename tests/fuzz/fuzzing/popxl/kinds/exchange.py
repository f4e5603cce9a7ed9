"""Remote buffers, collectives, shards, copies between IPUs."""

import dataclasses
import math
from typing import Any

import numpy as np

import ipuperf.popxl as popxl
from ipuperf.popxl import ops
from ipuperf.popxl.ops import collectives

from ..program import Buffer, Instruction
from ..scope import FLOATS, LARGEST, NUMBERS, Root, Scope, Spec
from ..storage import Shadow
from .base import Kind, memory


class Remotestore(Kind):
    """A tensor into an entry of a remote buffer, on the compute tiles or through the I/O tiles."""

    weight = 1.5

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: s.elements > 0)
        if x is None or scope.depth:
            return False
        number = self._buffer(scope, x)
        entry = scope.random.randrange(scope.shared.buffers[number].entries)
        scope.shared.filled.add((number, entry))
        scope.emit("remotestore", [x], buffer=number, entry=entry, tensor=scope.random.random() < 0.3)
        return True

    def _buffer(self, scope: Scope, x: Spec) -> int:
        """A buffer that holds such tensors, half of the time a new one."""
        buffers = scope.shared.buffers
        found = [i for i, b in enumerate(buffers) if (b.shape, b.dtype) == (list(x.shape), x.dtype)]
        if found and scope.random.random() < 0.6:
            return scope.random.choice(found)
        buffers.append(Buffer(list(x.shape), x.dtype, scope.random.randint(1, 3)))
        return len(buffers) - 1

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        ops.remote_store(builder.buffer(ins.attributes["buffer"]), _entry(ins), operands[0])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        world.remote[ins.attributes["buffer"], ins.attributes["entry"]] = operands[0].copy()


def _entry(ins: Instruction) -> Any:
    """The entry as a number, or as a tensor."""
    entry = ins.attributes["entry"]
    return popxl.constant(entry, popxl.uint32) if ins.attributes["tensor"] else entry


class Remoteload(Kind):
    """An entry of a remote buffer that was stored before, as a new tensor or into one that is there."""

    weight = 2

    def draw(self, scope: Scope) -> bool:
        filled = sorted(scope.shared.filled)
        if not filled or scope.depth:
            return False
        number, entry = scope.random.choice(filled)
        buffer = scope.shared.buffers[number]
        more = {"buffer": number, "entry": entry, "tensor": scope.random.random() < 0.3}
        target = scope.pick(lambda s: s.mutable and list(s.shape) == buffer.shape and s.dtype == buffer.dtype)
        if target is not None and scope.random.random() < 0.5:
            scope.change("remoteload", target, **more)
        else:
            scope.make("remoteload", [], buffer.shape, buffer.dtype, **more)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        buffer = builder.buffer(ins.attributes["buffer"])
        if operands:
            return ops.remote_load_(buffer, _entry(ins), operands[0])
        return ops.remote_load(buffer, _entry(ins))

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        found = world.remote[ins.attributes["buffer"], ins.attributes["entry"]]
        if not operands:
            return found.copy()
        operands[0].write(found.read())
        return operands[0].view(operands[0].addresses)


class Writeback(Kind):
    """A tensor into the remote buffer of a remote variable: the variable's value from then on."""

    weight = 1.5

    def draw(self, scope: Scope) -> bool:
        if not scope.shared.remote or scope.depth or scope.ipu:
            return False
        head = scope.random.choice(scope.shared.remote)
        x = scope.pick(lambda s: s.shape == head.shape and s.dtype == head.dtype)
        if x is None:
            return False
        scope.emit("writeback", [x], head=head.id)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        ops.remote_store(builder.remote[ins.attributes["head"]], 0, operands[0])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        world.variables[ins.attributes["head"]].write(operands[0].read())


def groups(replicas: int, stride: int, size: int) -> list[list[int]]:
    """Groups of ``size`` replicas ``stride`` apart, by their first members."""
    firsts = [block + i for block in range(0, replicas, stride * size) for i in range(stride)]
    return [[first + stride * k for k in range(size)] for first in firsts]


def draw_group(scope: Scope) -> list[int]:
    """Stride and size of a grouping with more than one member."""
    replicas = scope.shared.replicas
    allowed = [
        [stride, size]
        for size in range(2, replicas + 1)
        for stride in range(1, replicas // size + 1)
        if replicas % (stride * size) == 0
    ]
    return scope.random.choice([[1, replicas], *allowed])


def _group(ins: Instruction) -> Any:
    stride, size = ins.attributes["group"]
    return popxl.gir().replica_grouping(stride=stride, group_size=size)


def by_group(ins: Instruction, x: np.ndarray, replicas: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of each group, and their values, in both halves."""
    stride, size = ins.attributes["group"]
    found = [np.array(g) + half for half in (0, replicas) for g in groups(replicas, stride, size)]
    return [(rows, x[rows]) for rows in found]


OPERATORS = {"add": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "mul": np.prod}


class Allreduce(Kind):
    """A reduction over the replicas of each group, also in place."""

    weight = 2

    def draw(self, scope: Scope) -> bool:
        if scope.shared.replicas == 1:
            return False
        place = scope.random.random() < 0.4
        op = scope.random.choice(list(OPERATORS))
        x = scope.pick_of(FLOATS[:2] if op == "mean" else NUMBERS, mutable=place)
        if x is None:
            return False
        exact = op in ("max", "min")
        more = {"op": op, "place": place, "group": draw_group(scope)}
        if place:
            scope.change("allreduce", x, [], exact, **more)
        else:
            scope.make("allreduce", [x], x.shape, x.dtype, exact, **more)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        a = ins.attributes
        function = collectives.replicated_all_reduce_ if a["place"] else collectives.replicated_all_reduce
        return function(operands[0], a["op"], _group(ins))

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        target, a = operands[0], ins.attributes
        x = target.read()
        found = np.empty_like(x)
        for rows, values in by_group(ins, x, world.program.replicas):
            found[rows] = OPERATORS[a["op"]](values, axis=0)
        inexact = a["op"] not in ("max", "min")
        if not a["place"]:
            return memory(operands).new(found, target.dtype, inexact=inexact)
        target.write(found, inexact=inexact)
        return target.view(target.addresses)


class Gather(Kind):
    """The tensors of a group's replicas behind each other, or on a new axis."""

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: s.elements > 0)
        if scope.shared.replicas == 1 or x is None or x.elements * scope.shared.replicas > LARGEST:
            return False
        group = draw_group(scope)
        new = scope.random.random() < 0.4 or not x.shape
        axis = 0 if new else scope.random.randint(0, len(x.shape) - 1)
        parts = [np.empty(x.shape, np.int8)] * group[1]
        shape = (np.stack(parts, axis) if new else np.concatenate(parts, axis)).shape
        scope.make("gather", [x], shape, x.dtype, True, group=group, axis=axis, new=new)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        shape = "new_axis" if ins.attributes["new"] else "concat"
        return collectives.replicated_all_gather(operands[0], ins.attributes["axis"], _group(ins), shape)

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        x, join = operands[0].read(), np.stack if ins.attributes["new"] else np.concatenate
        rows = [np.empty(0)] * len(x)
        for members, values in by_group(ins, x, world.program.replicas):
            joined = join(list(values), axis=ins.attributes["axis"])
            for row in members:
                rows[row] = joined
        return memory(operands).new(np.stack(rows), operands[0].dtype)


class Scatter(Kind):
    """A replica's shard of a tensor (``local``) or of the sum over the group; or the whole again (``whole``)."""

    weight = 1.5

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: s.elements > 0 and bool(s.shape) and s.dtype in NUMBERS)
        if scope.shared.replicas == 1 or x is None:
            return False
        group, op = draw_group(scope), scope.random.choice(["add", "local", "mean"] if x.dtype in FLOATS else ["add"])
        whole = scope.random.random() < 0.4
        shape = x.shape if whole else (math.ceil(x.elements / group[1]),)
        scope.make("scatter", [x], shape, x.dtype, op == "local", group=group, op=op, whole=whole)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        a, group = ins.attributes, _group(ins)
        shard = collectives.replicated_reduce_scatter(operands[0], a["op"], group, a["whole"])
        return collectives.replicated_all_gather(shard, group=group) if a["whole"] else shard

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        a, x = ins.attributes, operands[0].read()
        flat = x.reshape(len(x), -1)
        length = math.ceil(flat.shape[1] / a["group"][1])
        padded = np.zeros((len(x), length * a["group"][1]), x.dtype)
        padded[:, : flat.shape[1]] = flat
        shards = np.empty((len(x), length), x.dtype)
        for rows, values in by_group(ins, padded, world.program.replicas):
            total = values if a["op"] == "local" else [OPERATORS[a["op"]](values, axis=0)] * len(rows)
            for place, row in enumerate(rows):
                shards[row] = total[place][place * length : (place + 1) * length]
        if a["whole"]:
            shards = self._whole(ins, shards, x, world.program.replicas)
        return memory(operands).new(shards, operands[0].dtype, inexact=a["op"] != "local")

    def _whole(self, ins: Instruction, shards: np.ndarray, x: np.ndarray, replicas: int) -> np.ndarray:
        """The shards of each group behind each other, in the shape of ``x``."""
        found = np.empty_like(x)
        for rows, values in by_group(ins, shards, replicas):
            found[rows] = values.reshape(-1)[: x[0].size].reshape(x.shape[1:])
        return found


class Unshard(Kind):
    """The whole of a sharded variable."""

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: bool(s.meta) and s.meta != (-1,))
        if x is None:
            return False
        scope.make("unshard", [x], x.meta, x.dtype, True, shape=x.meta, group=[1, scope.shared.replicas])
        made = scope.instructions[-1].outputs[0]
        scope.specs[made] = dataclasses.replace(scope.specs[made], meta=())
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return collectives.replicated_all_gather(operands[0])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        x, shape = operands[0].read(), ins.attributes["shape"]
        found = np.empty((len(x), *shape), x.dtype)
        for rows, values in by_group(ins, x, world.program.replicas):
            found[rows] = values.reshape(-1)[: math.prod(shape)].reshape(shape)
        return memory(operands).new(found, operands[0].dtype)


class Ipucopy(Kind):
    """A tensor on the other IPU."""

    weight = 2.5

    def draw(self, scope: Scope) -> bool:
        if scope.shared.ipus == 1 or scope.depth:
            return False
        x = scope.pick()
        if x is None:
            return False
        made = scope.add(x.shape, x.dtype, root=Root(x.exact), ipu=1 - scope.ipu, meta=x.meta)
        scope.emit("ipucopy", [x], [made], to=1 - scope.ipu)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return ops.ipu_copy(operands[0], ins.attributes["to"], 1 - ins.attributes["to"])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        return operands[0].copy()


class Throughio(Kind):
    """To the I/O tiles and back."""

    def draw(self, scope: Scope) -> bool:
        x = scope.pick()
        if not scope.shared.io_tiles or x is None:
            return False
        scope.make("throughio", [x], x.shape, x.dtype, True)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        with popxl.io_tiles():  # where the input of a graph that nobody has read goes
            there = ops.io_tile_copy(operands[0])
        return ops.io_tile_copy(there)

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        return operands[0].copy()
