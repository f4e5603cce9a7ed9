"""Reductions and exchanges over the replicas of a program, as markers in TensorFlow's graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf import ops as _k
from ipuperf.functions import make
from ipuperf.functions.arranging import reshaped
from ipuperf.ir import CONTEXT, Ir, Op, elide

from ..effects import checked_kinds
from . import Importer, Resource, Value, marker, tensor_of
from .markers import MadeBy, is_marker, meaning_of
from .needed import ancestors

if TYPE_CHECKING:
    from .tracing import Frame


class AllReduce:
    """The sum or the mean of a tensor over the replicas of a group.

    Args:
        kind: ``add`` or ``mean``.
        size: replicas of a group; None: all.
    """

    @checked_kinds()
    def __init__(self, kind: str, size: int | None = None) -> None:
        self.kind = kind
        self.size = size

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """The collective; the operand itself in a frame whose gradients have been reduced."""
        frame = cast("Frame", importer.place.unconditional)
        if frame.reduced:
            return [inputs[0]]
        tensor = tensor_of(inputs[0], importer.place)
        return [frame.program.collective(_k.ReplicatedAllReduce, tensor, "reduced", self.size, op=self.kind)]


@checked_kinds()
def all_reduce(x: Any, kind: str, name: str | None = None, size: int | None = None) -> tf.Tensor:
    """A tensor reduced over groups of replicas: ``kind`` is ``add`` or ``mean``. Outside of a program it is the
    tensor."""
    tensor = tf.convert_to_tensor(x)
    check_size(size)
    if not in_program():
        return tf.identity(tensor, name=name)

    # Each replica's operand reaches the results of all, so its gradient is reduced over them likewise.
    def gradient(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
        return all_reduce(grad, kind, None, size)

    meaning, spec = AllReduce(kind, size), tf.TensorSpec(tensor.shape, tensor.dtype)
    return marker(name or f"cross_replica_{kind}", meaning, [tensor], [spec], effect=False, gradient=gradient)[0]


def in_program() -> bool:
    """Whether a function for the IPU is being traced."""
    return isinstance(ops.get_default_graph(), FuncGraph) and not tf.executing_eagerly()


@checked_kinds()
def check_size(size: int | None) -> None:
    """Raise ValueError unless a group can have so many replicas."""
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ValueError(f"a group has {size!r} replicas; allowed: whole numbers of at least 1, or None for all")


def _exchange(
    name: str,
    op_class: type[Op],
    x: tf.Tensor,
    size: int,
    shape: Sequence[int],
    gradient: Callable[[tf.Tensor], tf.Tensor],
    **attributes: Any,
) -> tf.Tensor:
    """``x`` through a collective, as a tensor of ``shape``.

    Raises:
        RuntimeError: outside of a program. ValueError: the shape of ``x`` is not fixed.
    """
    check_size(size)
    if not in_program():
        raise RuntimeError(f"{name} exists only in programs of the IPU, whose replicas exchange tensors")

    def build(importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        frame, tensor = cast("Frame", importer.place.unconditional), tensor_of(inputs[0], importer.place)
        result = frame.program.collective(op_class, tensor, op_class.type.lower(), size, **attributes)
        return [reshaped(result, tuple(shape))]

    backward = lambda op, grad: gradient(grad)  # noqa: E731
    spec = tf.TensorSpec(shape, x.dtype)
    return marker(name, MadeBy(build), [x], [spec], effect=False, gradient=backward)[0]


def _fixed(x: Any, name: str) -> tf.Tensor:
    tensor = tf.convert_to_tensor(x)
    if not tensor.shape.is_fully_defined():
        raise ValueError(f"{name}: a tensor of shape {tensor.shape}; exchanges between replicas need a fixed shape")
    return tensor


@checked_kinds()
def all_gather(x: Any, size: int, name: str) -> tf.Tensor:
    """The tensors of a group's replicas along a new first axis."""
    tensor = _fixed(x, name)
    count = tensor.shape.num_elements()

    def gradient(grad: tf.Tensor) -> tf.Tensor:
        mine = reduce_scatter(tf.reshape(grad, [-1]), size, "add", f"{name}_grad")
        return tf.reshape(mine[:count], tensor.shape)

    return _exchange(name, _k.ReplicatedAllGather, tensor, size, [size, *tensor.shape], gradient, mode="flat")


@checked_kinds()
def reduce_scatter(x: Any, size: int, kind: str, name: str) -> tf.Tensor:
    """The replica's part of a vector that is reduced over its group, zeros behind its end."""
    tensor = _fixed(x, name)
    count = tensor.shape.num_elements()

    def gradient(grad: tf.Tensor) -> tf.Tensor:
        if kind not in ("add", "mean"):
            raise NotImplementedError(f"{name}: a reduce-scatter with op {kind!r} has no gradient; sums and means have")
        # The vector was filled up to whole parts, and what fills it has no gradient.
        whole = tf.reshape(all_gather(grad, size, f"{name}_grad"), [-1])[:count]
        return whole / size if kind == "mean" else whole

    shape = [-(-count // size)]
    return _exchange(name, _k.ReplicatedReduceScatter, tensor, size, shape, gradient, op=kind)


@checked_kinds()
def all_to_all(x: Any, split: int, concat: int, size: int, name: str) -> tf.Tensor:
    """Of each replica of a group, in order, its part of ``x`` along axis ``split`` that has this replica's number,
    joined along axis ``concat``.

    Raises:
        ValueError: there is no such axis, or the replicas do not divide it.
    """
    tensor = _fixed(x, name)
    shape = tensor.shape.as_list()
    if not (0 <= split < len(shape) and 0 <= concat < len(shape)) or shape[split] % size:
        raise ValueError(
            f"{name}: a tensor of shape {tensor.shape} cannot be split along axis {split} into {size} equal parts that "
            f"are joined along axis {concat}"
        )
    shape[split] //= size
    shape[concat] *= size

    def gradient(grad: tf.Tensor) -> tf.Tensor:
        # The inverse exchange: the two axes change places.
        return all_to_all(grad, concat, split, size, f"{name}_grad")

    axes = {"split": split, "concat": concat}
    return _exchange(name, _k.ReplicatedAllToAll, tensor, size, shape, gradient, **axes)


@checked_kinds()
def leave_out_reductions(ir: Ir) -> None:
    """A reduction over groups of one replica is its operand: no op. That of squares computes something."""
    for graph in ir.all_graphs():
        reductions = [op for op in graph.ops if isinstance(op, _k.ReplicatedAllReduce) and op.group.group_size == 1]
        elide(graph, [op for op in reductions if op.op != "square_add" and not op.aliases()])


@checked_kinds()
def apart(variables: Sequence[Any]) -> None:
    """From run to run each replica keeps its own values of ``variables``, until the host gives them others."""

    def build(importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        frame = cast("Frame", importer.place.unconditional)
        frame.program.apart.update(value for value in inputs if isinstance(value, Resource))
        return []

    if variables:
        marker("apart", MadeBy(build, changes=[]), [variable.handle for variable in variables], [])


@checked_kinds()
def mean_at_end(variables: Sequence[Any]) -> None:
    """Give ``variables`` their means over the replicas after everything else that the program does."""

    def build(importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        frame = cast("Frame", importer.place.unconditional)
        resources = [value for value in inputs if isinstance(value, Resource)]
        # Deferred, because later ops may still change the variables.
        frame.program.deferred.append(lambda: _write_means(frame, resources))
        return []

    if variables:
        handles = [variable.handle for variable in variables]
        marker("mean_at_end", MadeBy(build, changes=range(len(handles))), handles, [])


def _write_means(frame: Frame, resources: Sequence[Resource]) -> None:
    """The means of variables over the replicas; on one replica nothing is to do."""
    from .tracing import use_frame

    if frame.program.ir.replication_factor == 1:
        return
    with use_frame(frame):
        for resource in resources:
            tensor, group = frame.read(resource), frame.program.ir.grouping()
            with CONTEXT.on_ipu(frame.program.variable(resource).ipu or 0):
                mean = make(_k.ReplicatedAllReduce, tensor, name="reduced", op="mean", group=group)
            frame.assign(resource, mean)


@checked_kinds()
def reduces(tensor: tf.Tensor) -> bool:
    """Whether a tensor is computed from one that has been reduced over the replicas, within its graph."""
    return any(is_marker(op) and isinstance(meaning_of(op), AllReduce) for op in ancestors([tensor.op]))


@checked_kinds()
def reductions_of(tensor: tf.Tensor, gradients: Collection[tf.Tensor] = ()) -> list[str]:
    """Kinds of the reductions that read a tensor at once, or after it was only cast, renamed or multiplied by a number
    that none of ``gradients`` has a part in (the scale of a loss): such a factor may as well come later."""
    kinds = []
    for op in tensor.consumers():
        meaning = meaning_of(op) if is_marker(op) else None
        if isinstance(meaning, AllReduce):
            kinds.append(meaning.kind)
        elif op.type in ("Identity", "Cast") or _scales(op, tensor, {id(g.op) for g in gradients}):
            kinds += reductions_of(op.outputs[0], gradients)
    return kinds


def _scales(op: tf.Operation, tensor: tf.Tensor, gradients: Collection[int]) -> bool:
    """Whether an op multiplies ``tensor`` by a number that depends on no gradient."""
    if op.type != "Mul" or not gradients:
        return False
    # A square has the tensor on both sides.
    (factor,) = [t for t in op.inputs if t is not tensor] or [tensor]
    return factor.shape.rank == 0 and all(id(before) not in gradients for before in ancestors([factor.op]))
