"""Softmax, negative log-likelihood, and their gradients.

Labels out of ``[0, classes)`` are an error at run time (the device would silently ignore them). Losses raise
probabilities to at least the smallest positive normal number of their type (:func:`probability_floor`), so that a
probability of 0 gives a large finite loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from ipuperf.ir import INT32, DType, DTypeError, GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, Attribute, choice, optional

from .. import vertices
from ..axes import axis_of
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import Step, WorkingArrays, contiguous, result_buffer, scalar, sequence, working_dtype
from ..work import Reduction, Vertices, Work

REDUCTIONS = ("mean", "sum", "none")


def probability_floor(dtype: np.dtype) -> float:
    """Smallest positive normal number of a probability type: 6.1e-5 for float16, 1.18e-38 for float32."""
    return float(np.finfo(dtype).tiny)


class AlongAxis(Op, abstract=True):
    """Base of softmaxes and their gradients: the classes lie along ``axis`` (attribute, default last)."""

    axis = Attribute(INTEGER, -1, settle=axis_of)

    def lines(self) -> tuple[DType, int, int, int, int]:
        """Of the result: type, elements, lines of classes, classes, and how many classes are neighbours in memory."""
        spec = self.outputs[0].spec
        classes = spec.shape[self.axis]
        # Only along the last axis are the classes of a line neighbours.
        run = classes if self.axis == len(spec.shape) - 1 else 1
        return spec.dtype, spec.elements, spec.elements // max(classes, 1), classes, run

    def spread(self, name: str, *, in_place: bool = False) -> Vertices:
        """Combine one value per line with all its elements.

        Along the last axis, lines lie in groupings of 16 halves or 8 floats, as products leave them. Along another
        axis each element lies apart from the next one of its line.
        """
        dtype, count, _, classes, run = self.lines()
        # 32 bytes are a grouping: 16 halves or 8 floats.
        piece = min(run, 32 // dtype.size)
        return vertices.broadcast_outer(name, dtype, count, classes, in_place=in_place, reduced=True, piece=piece)

    def reduced(self, name: str, operand: int = 0) -> Reduction:
        """Reduce each line to one value; lines lie as in :meth:`spread`."""
        dtype, count, lines, _, run = self.lines()
        piece = min(run, 32 // dtype.size) if run > 1 else 0
        return vertices.reduction(name, dtype, count, lines, operand, run, piece)


class Softmax(AlongAxis):
    """``exp(x) / sum(exp(x))`` along ``axis``."""

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        tensor = self.inputs[0]
        self.floating(tensor)
        return [tensor.spec]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Subtract the maximum, exponentials, divide by their sum; in float32 for fp16."""
        axis, arrays = self.axis + 1, WorkingArrays(inputs, outputs, env)
        (x,), (out,) = arrays.operands, arrays.results
        line = env.scratch((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype, slot=2)
        return arrays.kernel(
            # Without the maximum, large operands would overflow in the exponential.
            partial(np.maximum.reduce, x, axis, None, line, True),
            partial(np.subtract, x, line, out),
            partial(np.exp, out, out),
            partial(np.add.reduce, out, axis, None, line, True),
            partial(np.divide, out, line, out),
        )

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """From the output: ``p (g - sum(g p))``."""
        inputs = [grad, builder.forward(self.outputs[0])]
        return [builder.op(SoftmaxGrad, inputs, axis=self.axis)]

    def work(self) -> list[Work]:
        """PopLibs lib/popnn/NonLinearity.cpp:71-147: maximum, subtract, exponential, sum, inverse, multiply."""
        dtype, count, rows, *_ = self.lines()
        return [
            self.reduced("MAX"),
            self.spread("SUBTRACT"),
            vertices.unary("EXPONENT", dtype, count, in_place=True),
            self.reduced("ADD"),
            vertices.unary("INVERSE", dtype, rows, in_place=True),
            self.spread("MULTIPLY", in_place=True),
        ]


class SoftmaxGrad(AlongAxis):
    """``(grad, probs) -> probs * (grad - sum(grad * probs))`` along ``axis`` (attribute)."""

    def infer(self) -> list[TensorSpec]:
        """The gradient's spec."""
        grad, probs = self.inputs
        self.same_dtype(grad, probs)
        self.require(
            grad.shape == probs.shape, f"gradient {grad.shape} and probabilities {probs.shape} differ in shape"
        )
        return [grad.spec]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Four passes and one sum."""
        axis, arrays = self.axis + 1, WorkingArrays(inputs, outputs, env)
        (grad, probs), (out,) = arrays.operands, arrays.results
        line = env.scratch((*grad.shape[:axis], 1, *grad.shape[axis + 1 :]), grad.dtype, slot=3)
        return arrays.kernel(
            partial(np.multiply, grad, probs, out),
            # `out` holds the products first, so the sum needs no further temporary.
            partial(np.add.reduce, out, axis, None, line, True),
            partial(np.subtract, grad, line, out),
            partial(np.multiply, out, probs, out),
        )

    def work(self) -> list[Work]:
        """PopLibs lib/popnn/NonLinearity.cpp:71-147, backward: multiply, sum, multiply by the sum, subtract."""
        dtype, count, *_ = self.lines()
        return [
            vertices.binary("MULTIPLY", dtype, count),
            self.reduced("ADD"),
            self.spread("MULTIPLY"),
            vertices.binary("SUBTRACT", dtype, count, in_place=True),
        ]


# -- losses ------------------------------------------------------------------------------------------------------------


class _Loss(Op):
    """Base of ops with operands ``probs [..., classes]`` and ``labels [...]``.

    Attributes: ``reduction`` (mean over labels that are not ignored, sum, none), ``ignore_index`` (label without loss
    and gradient, or None), ``log_prob`` (``probs`` holds logarithms of probabilities).
    """

    reduction = Attribute(choice(*REDUCTIONS), "mean")
    ignore_index = Attribute(optional(INTEGER), None)
    log_prob = Attribute(FLAG, False)

    def check(self) -> None:
        """Check shapes, dtypes and options."""
        probs, labels = self.inputs[:2]
        self.floating(probs)
        if not labels.dtype.is_integer or labels.dtype.size > 4:
            raise DTypeError(
                f"{self.where()}: labels {labels.id!r} are {labels.dtype.name}; "
                "an integer type of up to 32 bits is needed"
            )
        self.require(len(probs.shape) > 0, "probs needs an axis of classes")
        self.check_labels(probs, labels)

    def check_labels(self, probs: Tensor, labels: Tensor) -> None:
        """Check that there is a label for each row of ``probs``: labels have the axes of ``probs`` but for the
        last."""
        self.require(
            labels.shape == probs.shape[:-1],
            f"labels have shape {labels.shape}; {probs.shape[:-1]} is needed for probs {probs.shape}",
        )

    @property
    def classes(self) -> int:
        """Length of the last axis of ``probs``."""
        return self.inputs[0].shape[-1]

    @property
    def labels(self) -> int:
        """Number of labels on one replica."""
        return math.prod(self.inputs[1].shape)

    def loss_spec(self) -> TensorSpec:
        """Spec of the loss: a scalar, or one value per label."""
        probs, labels = self.inputs[:2]
        return TensorSpec(labels.shape if self.reduction == "none" else (), probs.dtype)

    def loss_work(self) -> list[Work]:
        """PopART popx/op/nllx.cpp: mask by one-hot, sum the row, logarithm of the clamped value, reduce and scale."""
        dtype, n, count = self.inputs[0].dtype, self.labels, self.labels * self.classes
        works: list[Work] = [
            vertices.binary("MULTIPLY", dtype, count, in_place=True),
            vertices.reduction("ADD", dtype, count, n, run=self.classes),
        ]
        # Logarithms of probabilities need neither the limit nor the logarithm.
        if not self.log_prob:
            works += [
                vertices.broadcast_scalar("MAXIMUM", dtype, n, in_place=True),
                vertices.unary("LOGARITHM", dtype, n, in_place=True),
            ]
        if self.ignore_index is not None:
            works += [*self.mask_work(), vertices.binary("MULTIPLY", dtype, n, in_place=True)]
        if self.reduction == "none":
            return [*works, vertices.unary("NEGATE", dtype, n, in_place=True)]
        if self.ignore_index is not None and self.reduction == "mean":
            works += [*self.count_work(), vertices.broadcast_scalar("MULTIPLY", dtype, n, in_place=True)]
        return [*works, vertices.reduction("ADD", dtype, n, 1, run=n)]

    def mask_work(self) -> list[Work]:
        """Compare the labels with the ignored one and cast the mask."""
        return [
            vertices.broadcast_scalar("EQUAL", INT32, self.labels),
            vertices.cast(INT32, self.inputs[0].dtype, self.labels),
        ]

    def count_work(self) -> list[Work]:
        """Count the labels that are not ignored and divide by the count."""
        dtype = self.inputs[0].dtype
        return [vertices.reduction("ADD", dtype, self.labels, 1, run=self.labels), vertices.binary("DIVIDE", dtype, 1)]

    def scale_work(self, elements: int) -> list[Work]:
        """Scale a gradient of ``elements`` elements by the loss gradient, the count and the mask."""
        dtype = self.inputs[0].dtype
        works: list[Work] = []
        if self.ignore_index is not None:
            works += [
                *self.mask_work(),
                vertices.broadcast_outer("MULTIPLY", dtype, elements, self.classes, in_place=True),
            ]
        if self.reduction == "mean":
            # Without an ignored label the count is known
            # beforehand, and only the division is left.
            works += self.count_work() if self.ignore_index is not None else [vertices.binary("DIVIDE", dtype, 1)]
        if self.reduction == "none":
            return [*works, vertices.broadcast_outer("MULTIPLY", dtype, elements, self.classes, in_place=True)]
        return [*works, vertices.broadcast_scalar("MULTIPLY", dtype, elements, in_place=True)]


class _Labels:
    """Bound labels: flat positions in ``probs``, which labels count, and how many.

    ``steps`` compute ``index``, the ``(R, N)`` positions in the flattened probabilities. With an ignored label they
    also compute ``keep`` (``(R, N)``, 1 or 0) and ``number`` (``(R, 1)``, the number of labels that count).
    """

    def __init__(self, op: _Loss, labels: np.ndarray, dtype: np.dtype, env: Environment, slot: int) -> None:
        replicas, n = labels.shape[0], op.labels
        self.steps: list[Step] = []
        raw = env.scratch((replicas, n), np.int64, slot=slot)
        self.index = env.scratch((replicas, n), np.int64, slot=slot + 1)
        self.keep: np.ndarray | None = None
        self.number: np.ndarray = np.full((replicas, 1), n, dtype=dtype)
        self.steps.append(partial(np.copyto, raw.reshape(labels.shape), labels, casting="same_kind"))
        if op.ignore_index is not None:
            mask = env.scratch((replicas, n), np.bool_, slot=slot + 2)
            self.keep = env.scratch((replicas, n), dtype, slot=slot + 3)
            self.number = env.scratch((replicas, 1), dtype, slot=slot + 4)
            self.steps += [
                partial(np.not_equal, raw, scalar(op.ignore_index, raw.dtype), mask),
                # The ignored label may lie outside of the
                # classes; as class 0 it passes the range check.
                partial(np.multiply, raw, mask, raw),
                partial(np.copyto, self.keep, mask),
                partial(np.add.reduce, self.keep, 1, None, self.number, True),
            ]
        # Row r of the flattened probabilities begins at r times the number of classes.
        rows = np.arange(replicas * n, dtype=np.int64).reshape(replicas, n) * op.classes
        # NumPy has no maximum of no labels.
        if n:
            self.steps.append(_range_check(op, raw))
        self.steps.append(partial(np.add, raw, rows, self.index))


def _range_check(op: _Loss, raw: np.ndarray) -> Callable[[], None]:
    """A step that raises ValueError when a label is out of range (negative ones are large when unsigned)."""
    unsigned = raw.reshape(-1).view(np.uint64)
    largest, classes = np.maximum.reduce, op.classes

    def check() -> None:
        if largest(unsigned) >= classes:
            bad = raw[(raw < 0) | (raw >= classes)]
            raise ValueError(f"{op.where()}: label {int(bad[0])} is out of range; allowed: 0 to {classes - 1}")

    return check


def _loss_steps(
    op: _Loss, probs: np.ndarray, labels: _Labels, out: np.ndarray, env: Environment, slot: int
) -> list[Step]:
    """Steps for the loss from contiguous probabilities; ``out`` is ``(R,)`` or ``(R, N)``."""
    dtype = probs.dtype
    values = env.scratch(labels.index.shape, dtype, slot=slot)
    floor = scalar(probability_floor(op.inputs[0].dtype.numpy), dtype)
    # The labels were checked, so `clip` never clips; it only spares NumPy's own check.
    steps: list[Step] = [partial(probs.reshape(-1).take, labels.index, None, values, "clip")]
    if not op.log_prob:
        steps += [partial(np.maximum, values, floor, out=values), partial(np.log, values, values)]
    steps.append(partial(np.negative, values, values))
    if labels.keep is not None:
        steps.append(partial(np.multiply, values, labels.keep, values))
    target, store_steps = result_buffer(out, env, slot=slot + 1)
    if op.reduction == "none":
        return [*steps, partial(np.copyto, target.reshape(values.shape), values), *store_steps]
    steps.append(partial(np.add.reduce, values, 1, None, target))
    if op.reduction == "mean":
        steps.append(partial(np.divide, target, labels.number.reshape(-1), target))
    return [*steps, *store_steps]


def _coefficients(
    op: _Loss, grad: np.ndarray, labels: _Labels, dtype: np.dtype, env: Environment, slot: int
) -> tuple[np.ndarray, list[Step]]:
    """The factor of each label's gradient, ``(R, N)``, and the steps that compute it.

    It is the loss gradient, divided by the count for a mean, and 0 for ignored labels. It is also 0 when all labels
    are ignored, where the loss is NaN: a count of 0 becomes 1, so the loss must be computed before.
    """
    n = labels.index.shape[1]
    factor = env.scratch((grad.shape[0], n), dtype, slot=slot)
    source = grad.reshape(grad.shape[0], -1)
    steps: list[Step] = [partial(np.copyto, factor, source, casting="same_kind")]
    if op.reduction == "mean":
        if labels.keep is not None:
            steps.append(partial(np.maximum, labels.number, scalar(1, dtype), out=labels.number))
        steps.append(partial(np.divide, factor, labels.number, factor))
    if labels.keep is not None:
        steps.append(partial(np.multiply, factor, labels.keep, factor))
    return factor, steps


def _check_loss_grad(op: _Loss, grad: Tensor) -> None:
    """Check that the loss gradient is one number, or one per label when the loss is not reduced."""
    op.floating(grad)
    allowed = grad.spec.elements == 1 or (op.reduction == "none" and grad.shape == op.inputs[1].shape)
    op.require(
        allowed,
        f"loss gradient has shape {grad.shape}; one element"
        + (f" or {op.inputs[1].shape}" if op.reduction == "none" else "")
        + " is needed",
    )


class Nll(_Loss):
    """Negative log-likelihood of the labels: ``-log(probs[label])`` (``-probs[label]`` with ``log_prob``), reduced."""

    def infer(self) -> list[TensorSpec]:
        """The loss in the type of ``probs``."""
        self.check()
        return [self.loss_spec()]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Pick, clamp, logarithm, reduce."""
        probs, fill_steps = contiguous(inputs[0], env, slot=0)
        labels = _Labels(self, inputs[1], probs.dtype, env, slot=1)
        return sequence(*fill_steps, *labels.steps, *_loss_steps(self, probs, labels, outputs[0], env, slot=6))

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The fused gradient with respect to ``probs``."""
        probs, labels = (builder.forward(t) for t in self.inputs)
        return [builder.op(NllGrad, [probs, labels, grad], **self.attributes), None]

    def work(self) -> list[Work]:
        """Encode one-hot, then the loss."""
        return [vertices.one_hot(self.inputs[0].dtype, self.labels, self.classes), *self.loss_work()]


class NllGrad(_Loss):
    """``(probs, labels, loss_grad) -> d probs``: ``-loss_grad / probs`` at the labels (``-loss_grad`` with
    ``log_prob``), divided by the count for a mean, 0 elsewhere. Probabilities are limited from below as in the
    loss."""

    def infer(self) -> list[TensorSpec]:
        """The spec of ``probs``."""
        self.check()
        _check_loss_grad(self, self.inputs[2])
        return [TensorSpec(self.inputs[0].shape, self.inputs[0].dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Clear, then write one value per label."""
        probs, fill_steps = contiguous(inputs[0], env, slot=0)
        labels = _Labels(self, inputs[1], probs.dtype, env, slot=1)
        factor, scale = _coefficients(self, inputs[2], labels, probs.dtype, env, slot=6)
        out, store_steps = result_buffer(outputs[0], env, slot=7)
        steps: list[Step] = [*fill_steps, *labels.steps, *scale, partial(np.negative, factor, factor)]
        if not self.log_prob:
            values = env.scratch(labels.index.shape, probs.dtype, slot=8)
            floor = scalar(probability_floor(self.inputs[0].dtype.numpy), probs.dtype)
            steps += [
                partial(probs.reshape(-1).take, labels.index, None, values, "clip"),
                partial(np.maximum, values, floor, out=values),
                partial(np.divide, factor, values, factor),
            ]
        # All elements but the labels' have no gradient.
        write = partial(out.reshape(-1).put, labels.index, factor)
        return sequence(*steps, partial(out.fill, 0), write, *store_steps)

    def work(self) -> list[Work]:
        """PopART popx/op/nllx.cpp: clamp, one-hot, negated quotient, scale."""
        dtype, count = self.inputs[0].dtype, self.labels * self.classes
        works: list[Work] = [vertices.one_hot(dtype, self.labels, self.classes)]
        if self.log_prob:
            works.append(vertices.unary("NEGATE", dtype, count, in_place=True))
        else:
            works = [
                vertices.broadcast_scalar("MAXIMUM", dtype, count),
                *works,
                vertices.unary("NEGATE", dtype, count, in_place=True),
                vertices.binary("DIVIDE", dtype, count, in_place=True),
            ]
        return [*works, *self.scale_work(count)]


class NlllWithSoftmaxGradDirect(_Loss):
    """``(probs, labels, loss_grad) -> (loss, dlogits)``: the loss of softmax probabilities together with the gradient
    of the logits.

    The gradient is ``loss_grad * (probs - one_hot(labels))``, divided by the count for a mean. Labels may have other
    axes than the rows of ``probs`` (``(8, classes)`` and ``(2, 4)``): both are flattened (PopART: op/softmax.cpp
    compares no shapes here, unlike op/nll.cpp).
    """

    def check_labels(self, probs: Tensor, labels: Tensor) -> None:
        """Check that there are as many labels as rows."""
        rows = math.prod(probs.shape[:-1])
        self.require(
            self.labels == rows,
            f"labels have shape {labels.shape}; {probs.shape[:-1]} is needed for probs {probs.shape}, or {rows} labels "
            "in other axes",
        )

    def infer(self) -> list[TensorSpec]:
        """The loss and a tensor like ``probs``."""
        self.check()
        if self.log_prob:
            raise IrError(f"{self.where()}: log_prob is not supported here; use Nll")
        _check_loss_grad(self, self.inputs[2])
        return [self.loss_spec(), TensorSpec(self.inputs[0].shape, self.inputs[0].dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """The loss, then the scaled difference."""
        probs, fill_steps = contiguous(inputs[0], env, slot=0)
        dtype = working_dtype(probs.dtype)
        labels = _Labels(self, inputs[1], dtype, env, slot=1)
        loss = _loss_steps(self, probs, labels, outputs[0], env, slot=6)
        factor, scale = _coefficients(self, inputs[2], labels, dtype, env, slot=8)
        out, store_steps = result_buffer(outputs[1], env, slot=9)
        picked = env.scratch(labels.index.shape, dtype, slot=10)
        rows = out.reshape(*labels.index.shape, self.classes)
        return sequence(
            *fill_steps,
            *labels.steps,
            # The loss comes before the scale, which turns a count of 0 labels into 1.
            *loss,
            *scale,
            partial(np.multiply, probs.reshape(rows.shape), factor[..., None], rows),
            partial(out.reshape(-1).take, labels.index, None, picked, "clip"),
            # Only the labels' elements differ from the scaled
            # probabilities, so no one-hot array is made.
            partial(np.subtract, picked, factor, picked),
            partial(out.reshape(-1).put, labels.index, picked),
            *store_steps,
        )

    def work(self) -> list[Work]:
        """Encode one-hot, subtract it from the probabilities and scale, then the loss."""
        dtype, count = self.inputs[0].dtype, self.labels * self.classes
        return [
            vertices.one_hot(dtype, self.labels, self.classes),
            vertices.binary("SUBTRACT", dtype, count),
            *self.scale_work(count),
            *self.loss_work(),
        ]
