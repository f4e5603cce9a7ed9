"""Updates of variables: TensorFlow's fused optimizer ops, and scatters into variables.

Formulas: ``tensorflow: core/kernels/training_ops.cc``. UpdatedVariable is changed in place where the place allows it
(:func:`mixed`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from tensorflow.python.framework import op_def_registry

from ipuperf.functions import arithmetic, constant, make
from ipuperf.functions.arranging import broadcast, reshaped
from ipuperf.ir import FLOAT32, Tensor
from ipuperf.ops import SparseAccumulate

from ..node import Node
from ..table import Family
from ..values import Resource, Value
from .elementwise import known_number
from .selection import COMBINATIONS, scattered, scattered_nd, summed, without_repetition
from .slices import cuts, replaced_part

FAMILY = Family("Updates of variables")
op = FAMILY.op

Number = float | Tensor


class UpdatedVariable:
    """A variable that an update changes.

    Attributes:
        rows: of an update for some rows, their numbers; the others keep their values.
    """

    def __init__(self, node: Node, handle: Value, rows: Value | None = None) -> None:
        self.node = node
        self.resource = node.resource(handle)
        self.value = node.place.read(self.resource)
        self.rows = None if rows is None else reshaped(node.tensor(rows), (-1,))

    def number(self, value: Value) -> Number:
        """A hyper-parameter: a number where it is known, else a scalar of the variable's type."""
        known = known_number(value)
        return known if known is not None else reshaped(self.node.tensor(value, self.value.dtype), ())

    def gradient(self, value: Value) -> Tensor:
        """An operand in the variable's type; of an update for some rows the sums of their gradients, else zeros."""
        given = self.node.tensor(value, self.value.dtype)
        if self.rows is None:
            return given
        return summed(reshaped(given, (-1, *self.value.shape[1:])), self.rows, self.value.shape[0])

    def mix(self, other: Tensor, a: Number = 1.0, b: Number = 1.0) -> Tensor:
        """``a state + b other`` becomes the state; its new value."""
        target = self.node.place.in_place(self.resource)
        if target is not None and self.rows is None:
            self.value = arithmetic.scaled_add_(target, other, a, b)
        else:
            self.set(_scaled(self.value, a) + _scaled(other, b))
        return self.value

    def set(self, value: Tensor) -> Tensor:
        """Another value becomes the state."""
        if self.rows is not None:
            value = arithmetic.where(self._touched(self.rows), value, self.value)
        self.node.place.assign(self.resource, value)
        self.value = value
        return value

    def _touched(self, rows: Tensor) -> Tensor:
        """Which rows an update changes, as a column."""
        hits = summed(broadcast(constant(1.0, FLOAT32), rows.shape), rows, self.value.shape[0])
        return reshaped(arithmetic.greater(hits, 0), (-1, *[1] * (len(self.value.shape) - 1)))


class FusedUpdate:
    """One op of an optimizer.

    Attributes:
        weight: the variable.
        once: as :meth:`.sharing.EqualOps.once`.
    """

    def __init__(self, node: Node, weight: UpdatedVariable) -> None:
        self.node, self.weight, self.once = node, weight, node.importer.equal.once


def update(*types: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare the rule by which ops of these types update: ``rule(update, *operands)``.

    Its operands have TensorFlow's names: variables that change, gradients (``grad``, ``delta``), and hyper-parameters,
    None where an op has no such one.
    """

    def declare(rule: Callable[..., None]) -> Callable[..., None]:
        names = list(inspect.signature(rule).parameters)[1:]

        def handler(node: Node, *operands: Value) -> None:
            named = dict(zip((a.name for a in op_def_registry.get(node.op.type).input_arg), operands, strict=True))
            rows = named.get("indices")
            weight = UpdatedVariable(node, named["var"], rows)
            rule(FusedUpdate(node, weight), *(_operand(node, weight, name, named.get(name), rows) for name in names))

        handler.__doc__ = rule.__doc__
        op(*types, effect=True)(handler)
        return rule

    return declare


def _operand(node: Node, weight: UpdatedVariable, name: str, value: Value, rows: Value) -> Any:
    """An operand as a rule takes it."""
    if value is None:
        return None
    if isinstance(value, Resource):
        return UpdatedVariable(node, value, rows)
    return weight.gradient(value) if name in ("grad", "delta") else weight.number(value)


def _scaled(tensor: Tensor, factor: Number) -> Tensor:
    return tensor if isinstance(factor, float) and factor == 1.0 else tensor * factor


def _rest(number: Number) -> Number:
    """1 minus a number."""
    return 1.0 - number


def _root(number: Number) -> Number:
    return float(np.sqrt(number)) if isinstance(number, float) else arithmetic.sqrt(number)


# -- dense updates -----------------------------------------------------------------------------------------------------


@update("ResourceApplyGradientDescent")
def gradient_descent(u: FusedUpdate, delta: Tensor, alpha: Number) -> None:
    """``w -= rate g``."""
    u.weight.mix(delta, 1.0, -alpha)


@update("ResourceApplyMomentum", "ResourceSparseApplyMomentum")
def sgd_momentum(u: FusedUpdate, accum: UpdatedVariable, grad: Tensor, momentum: Number, lr: Number) -> None:
    """``v = momentum v + g``, ``w -= rate v``."""
    v = accum.mix(grad, momentum, 1.0)
    u.weight.mix(grad + v * momentum if u.node.attr("use_nesterov") else v, 1.0, -lr)


@update("ResourceApplyKerasMomentum", "ResourceSparseApplyKerasMomentum")
def keras_momentum(u: FusedUpdate, accum: UpdatedVariable, grad: Tensor, momentum: Number, lr: Number) -> None:
    """``v = momentum v - rate g``, ``w += v``."""
    v = accum.mix(grad, momentum, -lr)
    u.weight.mix(v * momentum - grad * lr if u.node.attr("use_nesterov") else v)


def _adam_step(rate: Number, power1: Number, power2: Number) -> Number:
    """``-rate sqrt(1 - b2^t) / (1 - b1^t)``."""
    return -(rate * _root(_rest(power2)) / _rest(power1))


@update("ResourceApplyAdam", "ResourceApplyAdamWithAmsgrad")
def adam(
    u: FusedUpdate, grad: Tensor, beta1: Number, beta2: Number, epsilon: Number, lr: Number, beta1_power: Number,
    beta2_power: Number, m: UpdatedVariable, v: UpdatedVariable, vhat: UpdatedVariable | None,
) -> None:  # fmt: skip
    """``w -= rate sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + epsilon)``; AMSGrad has the largest ``v`` so far."""
    step = u.once(_adam_step, lr, beta1_power, beta2_power)
    first = m.mix(grad, beta1, u.once(_rest, beta1))
    second = v.mix(grad * grad, beta2, u.once(_rest, beta2))
    if vhat is not None:
        second = vhat.set(arithmetic.maximum(vhat.value, second))
    elif u.node.attr("use_nesterov"):
        first = first * beta1 + grad * u.once(_rest, beta1)
    u.weight.mix(first / (arithmetic.sqrt(second) + epsilon), 1.0, step)


@update("ResourceApplyAdaMax")
def adamax(
    u: FusedUpdate, m: UpdatedVariable, v: UpdatedVariable, grad: Tensor, beta1: Number, beta2: Number, epsilon: Number,
    lr: Number, beta1_power: Number,
) -> None:  # fmt: skip
    """``v = max(b2 v, |g|)``, ``w -= rate / (1 - b1^t) m / (v + epsilon)``."""
    average = m.mix(grad, beta1, _rest(beta1))
    high = v.set(arithmetic.maximum(v.value * beta2, abs(grad)))
    step = lr / _rest(beta1_power)
    u.weight.mix(average / (high + epsilon), 1.0, -step)


@update("ResourceApplyAdagrad", "ResourceApplyAdagradV2", "ResourceSparseApplyAdagrad", "ResourceSparseApplyAdagradV2")
def adagrad(u: FusedUpdate, accum: UpdatedVariable, grad: Tensor, lr: Number, epsilon: Number | None) -> None:
    """``s += g^2``, ``w -= rate g / (sqrt(s) + epsilon)``."""
    root = arithmetic.sqrt(accum.mix(grad * grad) if u.node.attr("update_slots") else accum.value)
    u.weight.mix(grad / (root if epsilon is None else root + epsilon), 1.0, -lr)


@update(
    "ResourceApplyRMSProp", "ResourceSparseApplyRMSProp",
    "ResourceApplyCenteredRMSProp", "ResourceSparseApplyCenteredRMSProp",
)  # fmt: skip
def rms_prop(
    u: FusedUpdate, mg: UpdatedVariable | None, ms: UpdatedVariable, mom: UpdatedVariable, grad: Tensor, rho: Number,
    epsilon: Number, momentum: Number, lr: Number,
) -> None:  # fmt: skip
    """``s = rho s + (1 - rho) g^2``, ``v = momentum v + rate g / sqrt(s + epsilon)``, ``w -= v``; centered, with the
    variance of the gradient for its mean square."""
    s = ms.mix(grad * grad, rho, _rest(rho))
    if mg is not None:
        m = mg.mix(grad, rho, _rest(rho))
        s = s - m * m
    u.weight.mix(mom.mix(grad / arithmetic.sqrt(s + epsilon), momentum, lr), 1.0, -1.0)


@update("ResourceApplyAdadelta", "ResourceSparseApplyAdadelta")
def adadelta(
    u: FusedUpdate, accum: UpdatedVariable, accum_update: UpdatedVariable, grad: Tensor, rho: Number, epsilon: Number,
    lr: Number,
) -> None:  # fmt: skip
    """``d = sqrt(u + epsilon) / sqrt(s + epsilon) g``, ``w -= rate d``, averages of ``g^2`` and ``d^2``."""
    s = accum.mix(grad * grad, rho, _rest(rho))
    d = arithmetic.sqrt(accum_update.value + epsilon) / arithmetic.sqrt(s + epsilon) * grad
    accum_update.mix(d * d, rho, _rest(rho))
    u.weight.mix(d, 1.0, -lr)


@update("ResourceApplyFtrl", "ResourceApplyFtrlV2", "ResourceSparseApplyFtrl", "ResourceSparseApplyFtrlV2")
def ftrl(
    u: FusedUpdate, accum: UpdatedVariable, linear: UpdatedVariable, grad: Tensor, lr: Number, l1: Number, l2: Number,
    l2_shrinkage: Number | None, lr_power: Number,
) -> None:  # fmt: skip
    """Follow the regularised leader."""
    weight = u.weight
    shrunk = grad if l2_shrinkage is None else grad + weight.value * (2.0 * l2_shrinkage)
    old = accum.value ** (-lr_power)
    new = (accum.value + grad * grad) ** (-lr_power)
    z = linear.mix(shrunk - (new - old) * weight.value * (1.0 / lr))
    accum.mix(grad * grad)
    quadratic = new * (1.0 / lr) + 2.0 * l2
    reached = arithmetic.greater(abs(z), arithmetic.abs(z * 0.0 + l1))
    weight.set(arithmetic.where(reached, (arithmetic.sign(z) * l1 - z) / quadratic, 0.0))


@update("ResourceApplyAddSign", "ResourceApplyPowerSign")
def signed(
    u: FusedUpdate, m: UpdatedVariable, grad: Tensor, beta: Number, sign_decay: Number, alpha: Number | None,
    logbase: Number | None, lr: Number,
) -> None:  # fmt: skip
    """Steps that are larger where gradient and its average agree."""
    sign = arithmetic.sign(grad) * arithmetic.sign(m.mix(grad, beta, _rest(beta)))
    agreement = sign * sign_decay
    factor = agreement + alpha if logbase is None else arithmetic.exp(agreement * logbase)
    u.weight.mix(factor * grad, 1.0, -lr)


@update("ResourceApplyProximalGradientDescent")
def proximal_descent(u: FusedUpdate, alpha: Number, l1: Number, l2: Number, delta: Tensor) -> None:
    """A step of gradient descent, then one towards small weights."""
    w = u.weight.value - delta * alpha
    shrunk = arithmetic.sign(w) * arithmetic.relu(abs(w) - alpha * l1)
    u.weight.set(shrunk / (1.0 + alpha * l2))


# -- rows of variables -------------------------------------------------------------------------------------------------


@op(*(f"ResourceScatter{how}" for how in COMBINATIONS), "ResourceScatterDiv", effect=True)
def resource_scatter(node: Node, handle: Value, indices: Value, updates: Value) -> None:
    """Updates combined with rows of a variable."""
    how, state = node.op.type.removeprefix("ResourceScatter"), UpdatedVariable(node, handle)
    rest = state.value.shape[1:]
    positions = node.tensor(indices)
    places = reshaped(positions, (-1,))
    new = node.tensor(updates, state.value.dtype)
    wide = (places.shape[0], *rest)
    new = reshaped(new, wide) if new.shape else broadcast(new, wide)
    new = without_repetition(node, 1, new, how)
    target = node.place.in_place(state.resource)
    if how in ("Add", "Sub") and target is not None and new.dtype.is_floating_point:
        make(SparseAccumulate, target, new, places, axis=0, factor=1.0 if how == "Add" else -1.0)
        return
    if how == "Div":
        how, new = "Mul", arithmetic.reciprocal(new)
    state.set(scattered(state.value, places, new, how))


@op(*(f"ResourceScatterNd{how}" for how in ("Update", "Add", "Sub", "Min", "Max")), effect=True)
def resource_scatter_nd(node: Node, handle: Value, indices: Value, updates: Value) -> None:
    """Updates combined with elements or slices of a variable."""
    state = UpdatedVariable(node, handle)
    how = node.op.type.removeprefix("ResourceScatterNd")
    state.set(scattered_nd(state.value, node.tensor(indices), node.tensor(updates), how))


@op("ResourceStridedSliceAssign", effect=True)
def strided_slice_assign(node: Node, handle: Value, begins: Value, ends: Value, strides: Value, part: Value) -> None:
    """A part of a variable replaced."""
    state = UpdatedVariable(node, handle)
    found = cuts(node, state.value.shape, begins, ends, strides)
    state.set(replaced_part(state.value, found, node.tensor(part)))
