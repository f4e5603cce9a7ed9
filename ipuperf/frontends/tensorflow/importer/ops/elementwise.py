"""Element-wise ops of one, two and three operands, and the gradients that TensorFlow makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ipuperf.frontends.catalogue import ROWS
from ipuperf.functions import activations, arithmetic, elementary, gamma, make
from ipuperf.functions.arranging import broadcast
from ipuperf.ir import Tensor
from ipuperf.ops import ReluGrad

from ..arranged import Arranged, together
from ..node import Node
from ..table import Family
from ..values import Value

FAMILY = Family("Element-wise")
op = FAMILY.op


def _selu(t: Tensor) -> Tensor:
    """The scaled ELU, with the gradient at 0 of what is above."""
    return arithmetic.where(arithmetic.greater_equal(t, 0), t * 1.0507009873554805, activations.selu(t))


def _relu(t: Tensor) -> Tensor:
    """``max(t, 0)``."""
    return arithmetic.relu(t) if t.dtype.is_floating_point else arithmetic.maximum(t, 0)


def _relu_grad(grad: Tensor, features: Tensor) -> Tensor:
    """The gradient where the feature is above 0."""
    return make(ReluGrad, grad, features)


def _elementwise(function: Callable[..., Tensor]) -> Callable[..., Value]:
    """What imports an op whose operands are those of a function of the library."""

    def handler(node: Node, *values: Value) -> Value:
        found = together(node, values)
        if found is not None:
            return Arranged(function(*found[0]), found[1])
        return function(*node.tensors(values))

    handler.__doc__ = function.__doc__
    return handler


for row in ROWS:
    for name in row.tensorflow:
        op(name, arranged=True)(_elementwise(row.implementation))
for name, function in (("Relu", _relu), ("ReluGrad", _relu_grad), ("Selu", _selu)):
    op(name, arranged=True)(_elementwise(function))


@op("Polygamma")
def polygamma(node: Node, order: Value, x: Tensor) -> Tensor:
    """The derivative of the digamma function: the gradient of ``Digamma`` (order 1)."""
    known = node.static(order, "the order")
    if (known != 1).any():
        raise node.error(f"orders {np.unique(known).tolist()}; allowed: 1, the derivative of tf.math.digamma")
    return broadcast(gamma.trigamma(x), node.shape())


@op("Cast")
def cast(node: Node, tensor: Tensor) -> Value:
    """Another type."""
    dtype = node.dtype()
    return tensor if tensor.dtype == dtype else arithmetic.cast(tensor, dtype)


FAMILY.formula("SquaredDifference", "``(x - y)^2``.", lambda x, y: arithmetic.square(arithmetic.sub(x, y)))


@op("DivNoNan")
def div_no_nan(_node: Node, x: Tensor, y: Tensor) -> Tensor:
    """``x / y``, 0 where y is 0."""
    none = arithmetic.equal(y, 0)
    return arithmetic.where(none, 0.0, x / arithmetic.where(none, 1.0, y))


@op("MulNoNan")
def mul_no_nan(_node: Node, x: Tensor, y: Tensor) -> Tensor:
    """``x y``, 0 where y is 0."""
    return arithmetic.where(arithmetic.equal(y, 0), 0.0, x * y)


@op("Xlogy", "Xlog1py", "Xdivy")
def by_logarithm(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """``x log y``, ``x log(1 + y)`` or ``x / y``, 0 where x is 0."""
    none = arithmetic.equal(x, 0)
    safe = arithmetic.where(none, 1.0, y)
    if node.op.type == "Xdivy":
        return arithmetic.where(none, 0.0, x / safe)
    return arithmetic.where(none, 0.0, x * (arithmetic.log1p if node.op.type == "Xlog1py" else arithmetic.log)(safe))


@op("Pow")
def power(node: Node, x: Tensor, exponent: Value) -> Tensor:
    """``x ** y``; small known exponents are products and roots."""
    known = known_number(exponent)
    if known is not None and x.dtype.is_floating_point and np.ndim(exponent) <= len(x.shape):
        return elementary.number_power(x, known)
    return arithmetic.pow(x, node.tensor(exponent))


@op("Atan2")
def atan2(_node: Node, y: Tensor, x: Tensor) -> Tensor:
    """The angle of the point (x, y), from -pi to pi; where both are infinite, that of their signs."""
    far = arithmetic.logical_and(arithmetic.isinf(x), arithmetic.isinf(y))
    x, y = (arithmetic.where(far, arithmetic.sign(side), side) for side in (x, y))
    flat = arithmetic.equal(x, 0)
    angle = arithmetic.atan(y / arithmetic.where(flat, 1.0, x))
    turned = arithmetic.where(arithmetic.greater_equal(y, 0), angle + math.pi, angle - math.pi)
    upright = arithmetic.sign(y) * (math.pi / 2)
    return arithmetic.where(flat, upright, arithmetic.where(arithmetic.less(x, 0), turned, angle))


@op("ApproximateEqual")
def approximately_equal(node: Node, left: Tensor, right: Tensor) -> Tensor:
    """Whether two tensors differ by less than the tolerance."""
    return arithmetic.less(abs(left - right), node.attr("tolerance"))


#: Giles, "Approximating the erfinv function" (2010), table 5: single precision, |x| below and above 0.9966.
_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def erf_inverse(x: Tensor) -> Tensor:
    """The inverse of the error function between -1 and 1."""

    def polynomial(w: Tensor, coefficients: tuple[float, ...]) -> Tensor:
        total = w * coefficients[0] + coefficients[1]
        for c in coefficients[2:]:
            total = total * w + c
        return total

    w = -arithmetic.log((1.0 - x) * (x + 1.0))
    near = polynomial(w - 2.5, _CENTRE)
    far = polynomial(arithmetic.sqrt(w) - 3.0, _TAIL)
    inside = arithmetic.where(arithmetic.less(w, 5.0), near, far)
    return arithmetic.where(arithmetic.isinf(w), math.inf, inside) * x


FAMILY.formula("Erfinv", "The inverse of the error function.", erf_inverse)
FAMILY.formula("Ndtri", "The inverse of the normal distribution.", lambda x: erf_inverse(x * 2.0 - 1.0) * math.sqrt(2))


def known_number(value: Value) -> float | None:
    """The number that a static operand consists of, None for others."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "fiu":
        return float(value.reshape(()))
    return None
