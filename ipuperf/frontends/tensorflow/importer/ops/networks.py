"""Normalisation, softmax and losses, activations, with the gradients that TensorFlow makes of them."""

from __future__ import annotations

import numpy as np

from ipuperf.functions import arithmetic, constant, make, make_all, networks, reductions, selection
from ipuperf.functions.arranging import broadcast
from ipuperf.ir import INT32, Tensor
from ipuperf.ops import (
    BatchNormalization,
    BatchNormalizationGrad,
    LeakyReluGrad,
    SigmoidGrad,
    SoftplusGrad,
    TanhGrad,
)

from ..layouts import ImageLayout
from ..node import Node
from ..table import Family
from ..values import Value

FAMILY = Family("Networks")
op = FAMILY.op

# -- batch norm --------------------------------------------------------------------------------------------------------


def _layout(node: Node, images: Value) -> ImageLayout:
    return ImageLayout(node.attr("data_format").startswith("NC"), len(images.shape) - 2)


def _used(node: Node, index: int) -> bool:
    return index < len(node.op.outputs) and bool(node.op.outputs[index].consumers())


@op("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", arranged=True)
def batch_norm(node: Node, value: Value, scale: Value, offset: Value, mean: Value, variance: Value) -> list[Value]:
    """Normalised images and their statistics; the reserved outputs are mean and inverse standard deviation in training,
    mean and variance otherwise."""
    layout = _layout(node, value)
    x = layout.inner(node, 0, value)
    weight, bias, epsilon = node.tensor(scale), node.tensor(offset), node.attr("epsilon")
    more = [node.op.outputs[i] for i in range(5, len(node.op.outputs))]
    rest: list[Value] = [np.zeros(0, t.dtype.as_numpy_dtype) for t in more]
    if not node.attr("is_training"):
        old = [node.tensor(mean), node.tensor(variance)]
        y = networks.batch_norm_inference(x, _like(weight, x), _like(bias, x), old[0], old[1], epsilon)
        return [layout.outer(y), *old, *old, *rest]
    factor = float(node.attr("exponential_avg_factor")) if "exponential_avg_factor" in node.op.node_def.attr else 1.0
    if factor == 1.0:
        zeros = np.zeros(x.shape[1], np.float32)
        old = [constant(zeros, weight.dtype)] * 2
    else:
        old = [node.tensor(mean), node.tensor(variance)]
    operands = [x, weight, bias, *old]
    names = [f"{node.op.name}{part}" for part in ("", "/mean", "/variance", "/saved_mean", "/saved_deviation")]
    found = make_all(BatchNormalization, operands, names, epsilon=epsilon, momentum=factor)
    return [layout.outer(found[0]), *found[1:], *rest]


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    return tensor if tensor.dtype == other.dtype else arithmetic.cast(tensor, other.dtype)


@op("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3", arranged=True)
def batch_norm_grad(
    node: Node, grad: Value, value: Value, scale: Value, mean: Value, spread: Value, *_rest: Value
) -> list[Value]:
    """Gradients of images, scale and offset."""
    layout, weight = _layout(node, value), node.tensor(scale)
    dy, x = layout.inner(node, 0, grad), layout.inner(node, 1, value)
    training = node.attr("is_training")
    inverse = node.tensor(spread)
    if not training:
        inverse = 1.0 / arithmetic.sqrt(inverse + node.attr("epsilon"))
    operands = [x, weight, node.tensor(mean), inverse, _like(dy, x)]
    names = [f"{node.op.name}{part}" for part in ("", "/scale", "/offset")]
    found = make_all(BatchNormalizationGrad, operands, names, frozen=not training)
    empty = [np.zeros(0, t.dtype.as_numpy_dtype) for t in node.op.outputs[3:]]
    return [layout.outer(found[0]), *found[1:], *empty]


# -- softmax and losses ------------------------------------------------------------------------------------------------


FAMILY.formula("Softmax", "Softmax of the last axis.", lambda x: networks.softmax(x, -1))
FAMILY.formula("LogSoftmax", "Logarithm of the softmax of the last axis.", lambda x: networks.log_softmax(x, -1))


@op("SparseSoftmaxCrossEntropyWithLogits")
def sparse_cross_entropy(node: Node, logits: Tensor, labels: Value) -> list[Value]:
    """The loss of each row, and its gradient for the logits."""
    # As XLA: the logarithm of a softmax never meets a probability of 0, so that nothing is clamped.
    logs, classes = networks.log_softmax(logits, -1), node.tensor(labels, INT32)
    loss = networks.nll_loss(logs, classes, reduction="none", log_prob=True)
    if not _used(node, 1):
        return [loss, None]
    hot = selection.onehot(classes, logits.shape[-1], constant([0, 1], logits.dtype))
    return [loss, arithmetic.exp(logs) - hot]


@op("SoftmaxCrossEntropyWithLogits")
def cross_entropy(node: Node, logits: Value, labels: Value) -> list[Value]:
    """The loss of each row for probabilities of the classes, and its gradient for the logits."""
    shape = node.shape(1)
    scores, wanted = (broadcast(node.tensor(v), shape) for v in (logits, labels))
    logs = networks.log_softmax(scores, -1)
    loss = -reductions.sum(wanted * logs, -1)
    return [loss, arithmetic.exp(logs) - wanted if _used(node, 1) else None]


# -- activations -------------------------------------------------------------------------------------------------------


@op("LeakyRelu")
def leaky_relu(node: Node, value: Tensor) -> Tensor:
    """``x`` above 0, ``alpha x`` below."""
    return arithmetic.leaky_relu(value, node.attr("alpha"))


@op("LeakyReluGrad")
def leaky_relu_grad(node: Node, grad: Tensor, value: Tensor) -> Tensor:
    """The gradient of :func:`leaky_relu`."""
    return make(LeakyReluGrad, grad, value, alpha=node.attr("alpha"))


@op("Relu6Grad")
def relu6_grad(_node: Node, dy: Tensor, x: Tensor) -> Tensor:
    """The gradient between 0 and 6."""
    inside = arithmetic.logical_and(arithmetic.greater(x, 0), arithmetic.less(x, 6))
    return arithmetic.where(inside, dy, 0)


@op("EluGrad")
def elu_grad(_node: Node, dy: Tensor, y: Tensor) -> Tensor:
    """From the result: the gradient, times the result plus 1 below 0."""
    return arithmetic.where(arithmetic.less(y, 0), dy * (y + 1.0), dy)


@op("SeluGrad")
def selu_grad(_node: Node, dy: Tensor, y: Tensor) -> Tensor:
    """From the result: the gradient of the scaled ELU."""
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    return arithmetic.where(arithmetic.less(y, 0), dy * (y + scale * alpha), dy * scale)


FAMILY.formula("SigmoidGrad", "``dy y (1 - y)`` from the result.", lambda y, dy: make(SigmoidGrad, dy, y))
FAMILY.formula("TanhGrad", "``dy (1 - y^2)`` from the result.", lambda y, dy: make(TanhGrad, dy, y))

FAMILY.formula("SoftplusGrad", "``dy sigmoid(x)``.", lambda dy, x: make(SoftplusGrad, dy, x))
FAMILY.formula("SoftsignGrad", "``dy / (1 + |x|)^2``.", lambda dy, x: dy / arithmetic.square(abs(x) + 1.0))

FAMILY.formula("InvGrad ReciprocalGrad", "``-dy y^2`` from the result.", lambda y, dy: -(dy * arithmetic.square(y)))
FAMILY.formula("SqrtGrad", "``dy / (2 y)`` from the result.", lambda y, dy: dy * 0.5 / y)

FAMILY.formula("RsqrtGrad", "``-dy y^3 / 2`` from the result.", lambda y, dy: dy * -0.5 * y * y * y)
