"""Collectives between replicas.

Arrays hold all replicas along their first axis, so a collective is a reduction or a rearrangement along that axis,
group by group (:class:`ipuperf.ir.ReplicaGrouping`). Semantics: ``docs/reference/popxl.md`` 5.

Shards hold ``ceil(elements / group size)`` elements in plain contiguous order. Member ``k`` of a group (ascending
replica numbers) holds flat elements ``k * shard`` up to ``(k + 1) * shard`` of the tensor, with zeros beyond its end.
Upstream leaves the order of RTS shards undefined; gather and host round trips invert this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, IrError, ReplicaGrouping, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, INTEGERS, Attribute, choice, instance

from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import sequence, working_dtype
from ..shape import Reshape
from ..work import Copy, GroupCollective, Work

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "mean": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "square_add": np.add,
    "and": np.logical_and,
    "or": np.logical_or,
}


def by_group(array: np.ndarray, group: ReplicaGrouping) -> np.ndarray:
    """View ``(R, ...)`` as ``(outer, group_size, stride, ...)``: axis 1 runs over the members of a group."""
    # A group's members are `stride` apart; the blocks
    # of group_size * stride replicas follow each other.
    outer = group.replicas // (group.group_size * group.stride)
    return array.reshape(outer, group.group_size, group.stride, *array.shape[1:])


def shard_elements(elements: int, size: int) -> int:
    """Elements of one of ``size`` shards."""
    return -(-elements // size)


def _flat(array: np.ndarray, env: Environment, slot: int) -> tuple[np.ndarray, Callable[[], None]]:
    """``array`` as ``(R, elements)``, and a function to call before it is read: it brings the current values there."""
    if array.flags.c_contiguous:
        return array.reshape(array.shape[0], -1), lambda: None
    copy = env.scratch(array.shape, array.dtype, slot)
    return copy.reshape(array.shape[0], -1), lambda: np.copyto(copy, array)


def _reducer(source: np.ndarray, result: np.ndarray, op: str, size: int) -> Callable[[], None]:
    """A function that reduces axis 1 of ``source`` into ``result``, in the type of ``result``."""
    ufunc = _UFUNCS[op]
    dtype = result.dtype

    def run() -> None:
        # The squares are taken before the sum, so no ufunc alone can do it.
        if op == "square_add":
            np.sum(np.square(source, dtype=dtype), axis=1, dtype=dtype, out=result)
            return
        ufunc.reduce(source, axis=1, dtype=dtype, out=result)
        if op == "mean":
            np.multiply(result, np.float32(1.0 / size), out=result)

    return run


def check_group(op: Op, group: ReplicaGrouping) -> None:
    """Raise ``IrError`` unless ``group`` is over the replicas of the op's program."""
    replicas = op.graph.ir.replication_factor
    if group.replicas != replicas:
        raise IrError(f"{op.where()}: the group is over {group.replicas} replicas, the program has {replicas}")


def over_group(
    ufunc: np.ufunc, array: np.ndarray, group: ReplicaGrouping, env: Environment, slot: int
) -> Callable[[], None]:
    """A step that replaces each replica's values by their combination over its group. ``array`` is contiguous and
    of the type in which values are combined."""
    members = by_group(array, group)
    result = env.scratch((members.shape[0], *members.shape[2:]), array.dtype, slot)
    return sequence(partial(ufunc.reduce, members, 1, out=result), _copier(members, result[:, np.newaxis]))


class _Collective(Op):
    """Base: input 0 is the tensor; attributes ``op`` and ``group``."""

    waited_for = True

    group = Attribute(instance(ReplicaGrouping))
    op = Attribute(choice(*_UFUNCS), "add")

    def check(self) -> Tensor:
        """Raise unless group and operator fit the program and the tensor; returns the tensor."""
        tensor = self.inputs[0]
        check_group(self, self.group)
        # A mean of integers would have to be rounded.
        if self.op == "mean":
            self.floating(tensor)
        if self.op in ("and", "or") and tensor.dtype.name != "bool":
            raise IrError(f"{self.where()}: op {self.op!r} of {tensor.id!r} {tensor.dtype.name}; booleans are needed")
        return tensor

    def collective(self, kind: str, full: Tensor | TensorSpec) -> Sequence[Work]:
        """The transfer of a tensor whose whole shape is ``full``'s; only a copy in groups of one."""
        # A group of one has nobody to exchange with;
        # its values still have to reach the result.
        spec = full.spec if isinstance(full, Tensor) else full
        if self.group.group_size == 1:
            return [Copy(spec.bytes)]
        reduce = "" if kind == "all_gather" else self.op
        return [GroupCollective(kind, reduce, spec.bytes, spec.elements, spec.dtype, self.group)]


class ReplicatedAllReduce(_Collective):
    """Every member of a group gets the combination of all its members' values.

    ``op``: ``add`` (default), ``mean``, ``max``, ``min``, ``mul``, ``square_add`` (the sum of the squares), for
    booleans ``and`` and ``or``. Sums of float16 are made in float32. The gradient of a sum is the sum of the gradients
    over the group, that of a mean is their mean.
    """

    def infer(self) -> list[TensorSpec]:
        """The operand's shape and type; raises for a group or operator that does not fit the program."""
        return [self.like(self.check())]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Reduce over the members of each group (float16 in float32) and give every member the result."""
        value, out, group = inputs[0], outputs[0], self.group
        # A group of one keeps its values, except that squares still have to be taken.
        if group.group_size == 1 and self.op != "square_add":
            return (lambda: None) if out is value else (lambda: np.copyto(out, value))
        source, target = by_group(value, group), by_group(out, group)
        # Regrouping may have made copies, in which results would be lost.
        if not (np.may_share_memory(source, value) and np.may_share_memory(target, out)):
            return _through_copies(value, out, group, self.op, env)
        shape = (source.shape[0], *source.shape[2:])
        result = env.scratch(shape, working_dtype(value.dtype))
        combine, spread = _reducer(source, result, self.op, group.group_size), result[:, np.newaxis]
        return sequence(combine, _copier(target, spread))

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient reduced by the same operator (add or mean; ``IrError`` for others)."""
        if self.op not in ("add", "mean"):
            raise IrError(f"{self.where()}: an all-reduce with op {self.op!r} has no gradient; add and mean have")
        return [builder.op(ReplicatedAllReduce, [grad], f"{grad.name}_all_reduce", op=self.op, group=self.group)]

    def work(self) -> Sequence[Work]:
        """An all-reduce of the whole tensor; a copy in groups of one."""
        return self.collective("all_reduce", self.inputs[0])


def _through_copies(
    value: np.ndarray, out: np.ndarray, group: ReplicaGrouping, op: str, env: Environment
) -> Callable[[], None]:
    """All-reduce for arrays whose replica axis cannot be regrouped as a view: through contiguous copies."""
    copy = env.scratch(value.shape, value.dtype, 1)
    source = by_group(copy, group)
    result = env.scratch((source.shape[0], *source.shape[2:]), working_dtype(value.dtype))
    combine, spread = _reducer(source, result, op, group.group_size), result[:, np.newaxis]
    return sequence(_copier(copy, value), combine, _copier(source, spread), _copier(out, copy))


class ReplicatedAllReduceInplace(ReplicatedAllReduce):
    """As :class:`ReplicatedAllReduce`, changing its operand; the output is the operand."""

    in_place = True

    def work(self) -> Sequence[Work]:
        """An all-reduce of the whole tensor; nothing in groups of one."""
        return [] if self.group.group_size == 1 else super().work()


class ReplicatedReduceScatter(_Collective):
    """Each member of a group gets its shard of the combination of all members' values.

    Attributes: ``op`` as for all-reduce, or ``local``: the member's shard of its own value, without a transfer.
    ``rts``: the output remembers the whole shape as its ``meta_shape``. Output: ``(ceil(elements / group size),)``,
    zero padded.
    """

    op = Attribute(choice(*_UFUNCS, "local"), "add")
    rts = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """One shard, ``(ceil(elements / group size),)``, with the whole shape as meta shape if ``rts``."""
        tensor = self.check()
        shard = shard_elements(tensor.spec.elements, self.group.group_size)
        return [TensorSpec((shard,), tensor.dtype, tensor.shape if self.rts else ())]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Write to each member its stretch of the reduced elements (float16 is reduced in float32), and zeros
        behind the end."""
        group, out = self.group, outputs[0]
        flat, refresh = _flat(inputs[0], env, 1)
        source, target = by_group(flat, group), by_group(out, group)
        # The last shards may reach beyond the end of the tensor, or lie behind it.
        shard, whole = out.shape[1], flat.shape[1]
        parts: list[Callable[[], None]] = [refresh]
        for member in range(group.group_size):
            start, stop = min(member * shard, whole), min((member + 1) * shard, whole)
            goal, pad = target[:, member, :, : stop - start], target[:, member, :, stop - start :]
            if self.op == "local":
                parts.append(_copier(goal, source[:, member, :, start:stop]))
            elif stop > start:
                result = env.scratch(goal.shape, working_dtype(out.dtype))
                parts.append(_reducer(source[..., start:stop], result, self.op, group.group_size))
                parts.append(_copier(goal, result))
            if pad.size:
                parts.append(partial(pad.fill, 0))
        return sequence(*parts)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """For ``local`` the members' gradients, gathered. A reduction has none, as upstream
        (``willow/src/op/collectives/replicatedreducescatter.cpp``)."""
        if self.op != "local":
            raise IrError(f"{self.where()}: a reduce-scatter with op {self.op!r} has no gradient; 'local' has one")
        name, shape = f"{grad.name}_all_gather", self.inputs[0].shape
        return [builder.op(ReplicatedAllGather, [grad], name, group=self.group, mode="shape", shape=shape)]

    def work(self) -> Sequence[Work]:
        """A reduce-scatter of the whole tensor; a copy of the shard for ``local``."""
        if self.op == "local":
            return [Copy(self.outputs[0].spec.bytes)]
        return self.collective("reduce_scatter", self.inputs[0])


def _copier(target: np.ndarray, source: np.ndarray) -> Callable[[], None]:
    # Sums of float16 are made in float32 and rounded here.
    return partial(np.copyto, target, source, casting="same_kind")


class ReplicatedAllGather(_Collective):
    """Every member of a group gets the shards of all its members, in order.

    ``mode``: ``meta_shape`` drops the padding and gives the operand's meta shape; ``flat`` gives all elements,
    ``(group size * elements,)``; ``shape`` is as ``meta_shape``, but attribute ``shape`` gives the whole shape.

    An operand with as many elements as the whole is taken from the first member. This is a sharded variable in a
    remote buffer whose entries have the size of the value, so that each replica has all of it.

    The gradient is the replica's own slice of its own gradient, without a sum over the group. The computation after a
    gather is assumed to be the same on every member (PopART ``willow/src/op/collectives/replicatedallgather.cpp``).
    """

    mode = Attribute(choice("flat", "meta_shape", "shape"), "flat")
    shape = Attribute(INTEGERS, ())

    def infer(self) -> list[TensorSpec]:
        """The gathered shape as ``mode`` says; raises for another mode and for a shard of the wrong size."""
        tensor = self.check()
        mode, size = self.mode, self.group.group_size
        if mode == "flat":
            return [TensorSpec((tensor.spec.elements * size,), tensor.dtype)]
        whole = self.shape if mode == "shape" else tensor.meta_shape
        if mode == "meta_shape" and not whole:
            raise IrError(f"{self.where()}: {tensor.id!r} has no meta_shape; use mode 'flat'")
        expected = shard_elements(math.prod(whole), size)
        self.require(
            tensor.spec.elements in (expected, math.prod(whole)),
            f"a shard of {whole} over groups of {size} has {expected} elements, not {tensor.spec.elements}",
        )
        return [TensorSpec(whole, tensor.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Copy the shards of a group's members, one behind the other and without the padding, to every member."""
        group, out = self.group, outputs[0]
        flat, refresh = _flat(inputs[0], env, 0)
        source, target = by_group(flat, group), by_group(out.reshape(out.shape[0], -1), group)
        shard, whole = flat.shape[1], target.shape[-1]
        parts: list[Callable[[], None]] = [refresh]
        for member in range(group.group_size):
            start, stop = min(member * shard, whole), min((member + 1) * shard, whole)
            if stop > start:
                parts.append(_copier(target[..., start:stop], source[:, member, np.newaxis, :, : stop - start]))
        return sequence(*parts)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The replica's shard of its gradient, in the operand's shape."""
        # A shard of an RTS tensor remembers the whole shape, so its gradient does too.
        sharded = bool(self.inputs[0].meta_shape)
        shard = builder.op(
            ReplicatedReduceScatter, [grad], f"{grad.name}_slice", op="local", group=self.group, rts=sharded
        )
        if shard.shape != self.inputs[0].shape:  # a shard that is not flat: the same elements in the operand's shape
            shard = builder.op(Reshape, [shard], f"{grad.name}_reshaped", shape=self.inputs[0].shape)
        return [shard]

    def work(self) -> Sequence[Work]:
        """An all-gather of the gathered tensor; a copy in groups of one."""
        return self.collective("all_gather", self.outputs[0])


class ReplicatedAllToAll(_Collective):
    """Each member of a group gets one part of every member's tensor.

    The tensor is split along ``split`` into as many parts as there are members. Member k gets part k of every member;
    they are joined along ``concat`` in the order of the members.

    Source: https://www.tensorflow.org/xla/operation_semantics#alltoall. The cost is that of an all-gather of the
    tensor, in which a member receives as many bytes. It leaves out that some parts travel further around a ring than
    others.
    """

    split = Attribute(INTEGER)
    concat = Attribute(INTEGER)

    def infer(self) -> list[TensorSpec]:
        """The shape with parts along ``split`` moved to ``concat``; raises unless the members divide that axis."""
        tensor, size = self.check(), self.group.group_size
        shape = list(tensor.shape)
        for axis in (self.split, self.concat):
            self.require(0 <= axis < len(shape), f"axis {axis} of a tensor of shape {tensor.shape}")
        self.require(
            shape[self.split] % size == 0,
            f"the {size} members of a group do not divide axis {self.split} of {tensor.shape}",
        )
        shape[self.split] //= size
        shape[self.concat] *= size
        return [TensorSpec(tuple(shape), tensor.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Copy each part to its member."""
        value, out, size = inputs[0], outputs[0], self.group.group_size
        groups = self.group.assignment
        members = [
            [r for r, group_number in enumerate(groups) if group_number == number] for number in range(max(groups) + 1)
        ]
        parts: list[Callable[[], None]] = []
        for group in members:
            for number, receiver in enumerate(group):
                for sender_number, sender in enumerate(group):
                    part = _piece(value[sender], self.split, number, size)
                    parts.append(_copier(_piece(out[receiver], self.concat, sender_number, size), part))
        return sequence(*parts)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Send the parts back."""
        # Exchanging the two axes reverses the rearrangement.
        name, axes = f"{grad.name}_all_to_all", {"split": self.concat, "concat": self.split}
        return [builder.op(ReplicatedAllToAll, [grad], name, group=self.group, **axes)]

    def work(self) -> Sequence[Work]:
        """See the class."""
        return self.collective("all_gather", self.inputs[0])


def _piece(array: np.ndarray, axis: int, number: int, count: int) -> np.ndarray:
    """Part ``number`` of ``count`` equal parts along an axis."""
    length = array.shape[axis] // count
    return array[(slice(None),) * axis + (slice(number * length, (number + 1) * length),)]
