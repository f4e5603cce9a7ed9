"""Element-wise ops of one, two and three operands, and the gradients that TensorFlow makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ipuperf.functions import activations, arithmetic, elementary, make
from ipuperf.ir import Tensor
from ipuperf.ops import ReluGrad

from .node import Node
from .table import Family
from .values import Value

FAMILY = Family("Element-wise")
op = FAMILY.op

#: Functions of one tensor by op type.
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": arithmetic.abs,
    "Acos": arithmetic.acos,
    "Acosh": arithmetic.acosh,
    "Asin": arithmetic.asin,
    "Asinh": arithmetic.asinh,
    "Atan": arithmetic.atan,
    "Atanh": arithmetic.atanh,
    "Ceil": arithmetic.ceil,
    "Cos": arithmetic.cos,
    "Cosh": arithmetic.cosh,
    "Erf": arithmetic.erf,
    "Erfc": elementary.erfc,
    "Exp": arithmetic.exp,
    "Expm1": arithmetic.expm1,
    "Floor": arithmetic.floor,
    "Inv": arithmetic.reciprocal,
    "Invert": arithmetic.bitwise_not,
    "IsFinite": arithmetic.isfinite,
    "IsInf": arithmetic.isinf,
    "IsNan": arithmetic.isnan,
    "Log": arithmetic.log,
    "Log1p": arithmetic.log1p,
    "LogicalNot": arithmetic.logical_not,
    "Neg": arithmetic.negate,
    "Reciprocal": arithmetic.reciprocal,
    "Relu": arithmetic.relu,
    "Relu6": activations.relu6,
    "Elu": activations.elu,
    "Selu": activations.selu,
    "Rint": arithmetic.round,
    "Round": arithmetic.round,
    "Rsqrt": arithmetic.rsqrt,
    "Sigmoid": arithmetic.sigmoid,
    "Sign": arithmetic.sign,
    "Sin": arithmetic.sin,
    "Sinh": arithmetic.sinh,
    "Softplus": arithmetic.softplus,
    "Softsign": activations.softsign,
    "Sqrt": arithmetic.sqrt,
    "Square": arithmetic.square,
    "Tan": elementary.tan,
    "Tanh": arithmetic.tanh,
}

#: Functions of two tensors by op type.
BINARY: dict[str, Callable[[Any, Any], Tensor]] = {
    "Add": arithmetic.add,
    "AddV2": arithmetic.add,
    "BitwiseAnd": arithmetic.bitwise_and,
    "BitwiseOr": arithmetic.bitwise_or,
    "BitwiseXor": arithmetic.bitwise_xor,
    "Div": arithmetic.div,
    "Equal": arithmetic.equal,
    "FloorDiv": arithmetic.floor_div,
    "FloorMod": arithmetic.mod,
    "Greater": arithmetic.greater,
    "GreaterEqual": arithmetic.greater_equal,
    "LeftShift": arithmetic.shift_left,
    "Less": arithmetic.less,
    "LessEqual": arithmetic.less_equal,
    "LogicalAnd": arithmetic.logical_and,
    "LogicalOr": arithmetic.logical_or,
    "Maximum": arithmetic.maximum,
    "Minimum": arithmetic.minimum,
    "Mod": arithmetic.fmod,
    "Mul": arithmetic.mul,
    "NotEqual": arithmetic.not_equal,
    "Pow": arithmetic.pow,
    "RealDiv": arithmetic.true_div,
    "RightShift": arithmetic.shift_right,
    "Sub": arithmetic.sub,
    "TruncateDiv": arithmetic.div,
    "TruncateMod": arithmetic.fmod,
}


def _declare() -> None:
    def unary(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda node, value: function(node.tensor(value))

    def binary(function: Callable[[Any, Any], Tensor]) -> Callable[..., Tensor]:
        return lambda node, left, right: function(node.tensor(left), node.tensor(right))

    for name, of_one in UNARY.items():
        op(name)(unary(of_one))
    for name, of_two in BINARY.items():
        op(name)(binary(of_two))


_declare()


@op("AddN")
def add_n(node: Node, *values: Value) -> Tensor:
    """The sum of all."""
    total = node.tensor(values[0])
    for value in values[1:]:
        total = arithmetic.add(total, node.tensor(value))
    return total


@op("Cast")
def cast(node: Node, value: Value) -> Value:
    """Another type."""
    tensor, dtype = node.tensor(value), node.dtype()
    return tensor if tensor.dtype == dtype else arithmetic.cast(tensor, dtype)


@op("ReluGrad")
def relu_grad(node: Node, grad: Value, features: Value) -> Tensor:
    """The gradient where the feature is above 0."""
    return make(ReluGrad, node.tensor(grad), node.tensor(features))


def known_number(value: Value) -> float | None:
    """The number that a static operand consists of, None for others."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "fiu":
        return float(value.reshape(()))
    return None
