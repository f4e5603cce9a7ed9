"""Cross entropy of logits whose classes are split over replicas (custom op of popxl-addons:
``popxl_addons/ops/cross_entropy_sharded_loss``).

Each replica of a group has the logits of its own classes and the labels of all samples, less the number of its first
class. A label outside of ``[0, number of own classes)`` belongs to another member and contributes nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ipuperf.ir import DType, DTypeError, GradientBuilder, IrError, ReplicaGrouping, Tensor, TensorSpec
from ipuperf.ir.attributes import Attribute, instance

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import Step, WorkingArrays
from ..selection.gather import multi_slice, multi_update_add
from ..transfers.collectives import check_group, over_group
from ..work import GroupCollective, Work


class _Sharded(Op):
    """Base: the shape rule for logits and labels."""

    def check(self, logits: Tensor, labels: Tensor) -> None:
        """Raise unless logits are ``[samples, classes]`` and labels ``[samples]`` whole numbers."""
        self.floating(logits)
        if not labels.dtype.is_integer or labels.dtype.size > 4:
            raise DTypeError(f"{self.where()}: indices {labels.id!r} are {labels.dtype.name}; up to 32 bits are needed")
        self.require(len(logits.shape) == 2, f"logits {logits.shape} must be of rank 2 (n_samples, sharded_n_classes)")
        self.require(len(labels.shape) == 1, f"indices {labels.shape} must be of rank 1 (n_samples,)")
        self.require(
            logits.shape[0] == labels.shape[0],
            f"logits {logits.shape} and indices {labels.shape} must have the same number of samples",
        )


class CrossEntropySharded(_Sharded):
    """``(logits [N, C], labels [N]) -> (loss [N], -log_softmax [N, C])``, the softmax over the classes of all members.

    The loss is the same on all members of ``group``.
    """

    waited_for = True

    group = Attribute(instance(ReplicaGrouping))

    def infer(self) -> list[TensorSpec]:
        """One loss for each sample, and a tensor like the logits."""
        logits, labels = self.inputs
        self.check(logits, labels)
        check_group(self, self.group)
        self.require(logits.shape[1] > 0, f"logits {logits.shape} have no classes")
        return [TensorSpec(labels.shape, logits.dtype), TensorSpec(logits.shape, logits.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Maximum, sum of exponentials and the labels' values, each reduced over the members; fp16 is computed in
        float32."""
        arrays = WorkingArrays(inputs[:1], outputs, env)
        (logits,), (loss, out) = arrays.operands, arrays.results
        # The maxima and sums of a sample need one number
        # each; both use `line`, one after the other.
        line, exponentials = env.scratch(loss.shape, logits.dtype, 3), env.scratch(logits.shape, logits.dtype, 4)
        labels = _OwnLabels(inputs[1], logits.shape[-1], env, slot=5)
        over = partial(over_group, group=self.group, env=env, slot=9)
        return arrays.kernel(
            partial(np.maximum.reduce, logits, 2, None, line),
            over(np.maximum, line),
            partial(np.subtract, logits, line[..., np.newaxis], out),
            partial(np.exp, out, exponentials),
            partial(np.add.reduce, exponentials, 2, None, line),
            over(np.add, line),
            partial(np.log, line, line),
            partial(np.subtract, line[..., np.newaxis], out, out),
            *labels.steps,
            partial(out.reshape(-1).take, labels.index, None, loss, "clip"),
            # Exactly one member has the label's class,
            # so the sum over the members is its value.
            partial(np.copyto, loss, 0, where=labels.elsewhere),
            over(np.add, loss),
        )

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """The gradient from the saved logarithms; the second output cannot be differentiated."""
        loss_grad, logs_grad = grads
        if logs_grad is not None or loss_grad is None:
            raise IrError(f"{self.where()}: only the loss can be differentiated")
        inputs = [loss_grad, builder.forward(self.outputs[1]), builder.forward(self.inputs[1])]
        return [builder.op(CrossEntropyShardedGrad, inputs), None]

    def work(self) -> Sequence[Work]:
        """``crossentropyshardedx.cpp``: the stable softmax with two all-reduces, a multi-slice of one class for each
        sample, zeros for labels of others, an all-reduce of the losses."""
        spec, labels = self.outputs[1].spec, self.inputs[1].spec
        dtype, count, (rows, classes) = spec.dtype, spec.elements, spec.shape
        if not count:
            return []
        return [
            vertices.reduction("MAX", dtype, count, rows, run=classes),
            *self._reduced("max", dtype, rows),
            vertices.broadcast_outer("SUBTRACT", dtype, count, classes, reduced=True),
            vertices.unary("EXPONENT", dtype, count),
            vertices.reduction("ADD", dtype, count, rows, run=classes),
            *self._reduced("add", dtype, rows),
            vertices.unary("LOGARITHM", dtype, rows),
            vertices.broadcast_outer("SUBTRACT", dtype, count, classes, in_place=True, reduced=True),
            vertices.unary("NEGATE", dtype, count, in_place=True),
            *_index_work(labels.dtype, rows),
            multi_slice(dtype, rows, 1),
            vertices.broadcast_scalar("GREATER_THAN", labels.dtype, rows),
            vertices.select(dtype, rows),
            *self._reduced("add", dtype, rows),
        ]

    def _reduced(self, op: str, dtype: DType, rows: int) -> list[Work]:
        """The all-reduce of one value for each sample; none in groups of one."""
        # A group of one has nobody to exchange with.
        if self.group.group_size == 1:
            return []
        return [GroupCollective("all_reduce", op, rows * dtype.size, rows, dtype, self.group, None)]


class CrossEntropyShardedGrad(_Sharded):
    """``(loss gradient [N], -log_softmax [N, C], labels [N]) -> g (softmax - one_hot(labels))``."""

    def infer(self) -> list[TensorSpec]:
        """As the logits."""
        grad, logs, labels = self.inputs
        self.check(logs, labels)
        self.same_dtype(grad, logs)
        self.require(
            grad.shape == labels.shape, f"loss gradient {grad.shape} and indices {labels.shape} differ in shape"
        )
        return [TensorSpec(logs.shape, logs.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """The exponentials times the gradient, minus the gradient at the replica's own labels."""
        arrays = WorkingArrays(inputs[:2], outputs, env)
        (grad, logs), (out,) = arrays.operands, arrays.results
        labels = _OwnLabels(inputs[2], logs.shape[-1], env, slot=3)
        picked, own_grad = (env.scratch(grad.shape, grad.dtype, slot) for slot in (7, 8))
        return arrays.kernel(
            # The saved values are negative logarithms of the softmax.
            partial(np.negative, logs, out),
            partial(np.exp, out, out),
            partial(np.multiply, out, grad[..., np.newaxis], out),
            *labels.steps,
            partial(out.reshape(-1).take, labels.index, None, picked, "clip"),
            partial(np.copyto, own_grad, grad),
            partial(np.copyto, own_grad, 0, where=labels.elsewhere),
            partial(np.subtract, picked, own_grad, picked),
            partial(out.reshape(-1).put, labels.index, picked),
        )

    def work(self) -> Sequence[Work]:
        """``crossentropyshardedx.cpp``: negate, exponential, product, then a multi-update of one class for each
        sample."""
        spec, labels = self.outputs[0].spec, self.inputs[2].spec
        dtype, count, (rows, classes) = spec.dtype, spec.elements, spec.shape
        if not count:
            return []
        return [
            vertices.unary("NEGATE", dtype, count),
            vertices.unary("EXPONENT", dtype, count, in_place=True),
            vertices.broadcast_outer("MULTIPLY", dtype, count, classes, in_place=True),
            *_index_work(labels.dtype, rows),
            # Single elements are updated, so the table has as many rows as elements.
            multi_update_add(dtype, rows, count, 1),
        ]


def _index_work(dtype: DType, count: int) -> list[Work]:
    """The cast of signed labels to the unsigned indices of slices."""
    return [vertices.cast(dtype, dtype, count)] if dtype.name.startswith("int") else []


class _OwnLabels:
    """Bound labels.

    ``steps`` compute ``index`` ``(R, N)``, the flat positions of the labels in ``(R, N, classes)``, and ``elsewhere``
    ``(R, N)``: the label is another member's class, and ``index`` is that of class 0.
    """

    def __init__(self, labels: np.ndarray, classes: int, env: Environment, slot: int) -> None:
        self.index = env.scratch(labels.shape, np.int64, slot)
        self.elsewhere = env.scratch(labels.shape, np.bool_, slot + 1)
        # Each sample's logits begin at its number times the classes.
        rows = np.arange(labels.size, dtype=np.int64).reshape(labels.shape) * classes
        self.steps: list[Step] = [
            partial(np.copyto, self.index, labels, casting="same_kind"),
            # Labels below 0 are large when unsigned, so one comparison finds both directions.
            partial(np.greater_equal, self.index.view(np.uint64), np.uint64(classes), self.elsewhere),
            partial(np.copyto, self.index, 0, where=self.elsewhere),
            partial(np.add, self.index, rows, self.index),
        ]
