"""Updates of variables: TensorFlow's fused optimizer ops, and scatters into variables.

Formulas: ``tensorflow: core/kernels/training_ops.cc``. UpdatedVariable is changed in place where the place allows it
(:func:`mixed`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tensorflow.python.framework import op_def_registry

from ipuperf.functions import arithmetic, constant, make
from ipuperf.functions.arranging import broadcast, reshaped
from ipuperf.ir import FLOAT32, Tensor
from ipuperf.ops import SparseAccumulate

from ..node import Node
from ..table import Family
from ..values import Value
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
        # In place all rows would change, so an update of some rows goes by a selection.
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
    """One op of an optimizer, with its operands by TensorFlow's names for them.

    Attributes:
        weight: the variable.
        once: as :meth:`.sharing.EqualOps.once`.
    """

    def __init__(self, node: Node, *operands: Value) -> None:
        self.node, self.once = node, node.importer.equal.once
        names = (argument.name for argument in op_def_registry.get(node.op.type).input_arg)
        self._operands = dict(zip(names, operands, strict=True))
        (self.weight,) = self.states("var")

    def __contains__(self, name: str) -> bool:
        return name in self._operands

    def states(self, *names: str) -> list[UpdatedVariable]:
        """Variables that change."""
        rows = self._operands.get("indices")
        return [UpdatedVariable(self.node, self._operands[name], rows) for name in names]

    def number(self, name: str) -> Number:
        """A hyper-parameter; see :meth:`UpdatedVariable.number`."""
        return self.weight.number(self._operands[name])

    def numbers(self, *names: str) -> list[Number]:
        """Several of them."""
        return [self.number(name) for name in names]

    def gradient(self, name: str = "grad") -> Tensor:
        """The gradient of the variable."""
        return self.weight.gradient(self._operands[name])


def update(*types: str) -> Callable[[Callable[[FusedUpdate], None]], Callable[[FusedUpdate], None]]:
    """Declare the rule by which ops of these types update."""

    def declare(rule: Callable[[FusedUpdate], None]) -> Callable[[FusedUpdate], None]:
        def handler(node: Node, *operands: Value) -> None:
            rule(FusedUpdate(node, *operands))

        handler.__doc__ = rule.__doc__
        op(*types, effect=True)(handler)
        return rule

    return declare


def _scaled(tensor: Tensor, factor: Number) -> Tensor:
    return tensor if isinstance(factor, float) and factor == 1.0 else tensor * factor


def _negated(number: Number) -> Number:
    return -number


def _rest(number: Number) -> Number:
    """1 minus a number."""
    return 1.0 - number


def _root(number: Number) -> Number:
    return float(np.sqrt(number)) if isinstance(number, float) else arithmetic.sqrt(number)


# -- dense updates -----------------------------------------------------------------------------------------------------


@update("ResourceApplyGradientDescent")
def gradient_descent(u: FusedUpdate) -> None:
    """``w -= rate g``."""
    u.weight.mix(u.gradient("delta"), 1.0, _negated(u.number("alpha")))


@update(*(f"Resource{way}Apply{kind}Momentum" for way in ("", "Sparse") for kind in ("", "Keras")))
def momentum(u: FusedUpdate) -> None:
    """``v = momentum v + g``, ``w -= rate v``; Keras': ``v = momentum v - rate g``, ``w += v``."""
    (moving,), g, (share, step) = u.states("accum"), u.gradient(), u.numbers("momentum", "lr")
    keras, nesterov = "Keras" in u.node.op.type, u.node.attr("use_nesterov")
    v = moving.mix(g, share, _negated(step) if keras else 1.0)
    if keras:
        u.weight.mix(v * share - g * step if nesterov else v)
    else:
        u.weight.mix(g + v * share if nesterov else v, 1.0, _negated(step))


def _adam_step(rate: Number, power1: Number, power2: Number) -> Number:
    """``-rate sqrt(1 - b2^t) / (1 - b1^t)``."""
    return _negated(rate * _root(_rest(power2)) / _rest(power1))


@update("ResourceApplyAdam", "ResourceApplyAdamWithAmsgrad")
def adam(u: FusedUpdate) -> None:
    """``w -= rate sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + epsilon)``; AMSGrad: ``v`` is the largest so far."""
    most = u.states("vhat") if "vhat" in u else []
    g, (b1, b2, rest) = u.gradient(), u.numbers("beta1", "beta2", "epsilon")
    step = u.once(_adam_step, *u.numbers("lr", "beta1_power", "beta2_power"))
    first, second = u.states("m", "v")
    m = first.mix(g, b1, u.once(_rest, b1))
    v = second.mix(g * g, b2, u.once(_rest, b2))
    for state in most:
        v = state.set(arithmetic.maximum(state.value, v))
    if not most and u.node.attr("use_nesterov"):
        m = m * b1 + g * u.once(_rest, b1)
    u.weight.mix(m / (arithmetic.sqrt(v) + rest), 1.0, step)


@update("ResourceApplyAdaMax")
def adamax(u: FusedUpdate) -> None:
    """``v = max(b2 v, |g|)``, ``w -= rate / (1 - b1^t) m / (v + epsilon)``."""
    first, norm = u.states("m", "v")
    g, (b1, b2, rest) = u.gradient(), u.numbers("beta1", "beta2", "epsilon")
    average = first.mix(g, b1, _rest(b1))
    high = norm.set(arithmetic.maximum(norm.value * b2, abs(g)))
    step = u.number("lr") / _rest(u.number("beta1_power"))
    u.weight.mix(average / (high + rest), 1.0, _negated(step))


@update("ResourceApplyAdagrad", "ResourceApplyAdagradV2", "ResourceSparseApplyAdagrad", "ResourceSparseApplyAdagradV2")
def adagrad(u: FusedUpdate) -> None:
    """``s += g^2``, ``w -= rate g / (sqrt(s) + epsilon)``."""
    (total,), g, step = u.states("accum"), u.gradient(), u.number("lr")
    s = total.mix(g * g) if u.node.attr("update_slots") else total.value
    root = arithmetic.sqrt(s)
    if "epsilon" in u:
        root = root + u.number("epsilon")
    u.weight.mix(g / root, 1.0, _negated(step))


@update(*(f"Resource{way}Apply{kind}RMSProp" for way in ("", "Sparse") for kind in ("", "Centered")))
def rms_prop(u: FusedUpdate) -> None:
    """``s = rho s + (1 - rho) g^2`` (centred: its variance), ``v = momentum v + rate g / sqrt(s + epsilon)``,
    ``w -= v``."""
    means = u.states("mg") if "mg" in u else []
    (square, moving), g, decay = u.states("ms", "mom"), u.gradient(), u.number("rho")
    s = square.mix(g * g, decay, _rest(decay))
    for mean in means:
        m = mean.mix(g, decay, _rest(decay))
        s = s - m * m
    step = g / arithmetic.sqrt(s + u.number("epsilon"))
    u.weight.mix(moving.mix(step, *u.numbers("momentum", "lr")), 1.0, -1.0)


@update("ResourceApplyAdadelta", "ResourceSparseApplyAdadelta")
def adadelta(u: FusedUpdate) -> None:
    """``d = sqrt(u + epsilon) / sqrt(s + epsilon) g``, ``w -= rate d``, averages of ``g^2`` and ``d^2``."""
    (square, moved), g, (decay, rest) = u.states("accum", "accum_update"), u.gradient(), u.numbers("rho", "epsilon")
    s = square.mix(g * g, decay, _rest(decay))
    d = arithmetic.sqrt(moved.value + rest) / arithmetic.sqrt(s + rest) * g
    moved.mix(d * d, decay, _rest(decay))
    u.weight.mix(d, 1.0, _negated(u.number("lr")))


@update("ResourceApplyFtrl", "ResourceApplyFtrlV2", "ResourceSparseApplyFtrl", "ResourceSparseApplyFtrlV2")
def ftrl(u: FusedUpdate) -> None:
    """Follow the regularised leader."""
    (total, line), g, weight = u.states("accum", "linear"), u.gradient(), u.weight
    alpha, l1, l2 = u.numbers("lr", "l1", "l2")
    shrinkage = u.numbers("l2_shrinkage") if "l2_shrinkage" in u else []
    power = u.number("lr_power")
    shrunk = g + weight.value * (2.0 * shrinkage[0]) if shrinkage else g
    old = total.value ** (-power)
    new = (total.value + g * g) ** (-power)
    z = line.mix(shrunk - (new - old) * weight.value * (1.0 / alpha))
    total.mix(g * g)
    quadratic = new * (1.0 / alpha) + 2.0 * l2
    # This makes l1 a tensor of z's shape, whether it is a number or a tensor.
    reached = arithmetic.greater(abs(z), arithmetic.abs(z * 0.0 + l1))
    weight.set(arithmetic.where(reached, (arithmetic.sign(z) * l1 - z) / quadratic, 0.0))


@update("ResourceApplyAddSign", "ResourceApplyPowerSign")
def signed(u: FusedUpdate) -> None:
    """Steps that are larger where gradient and its average agree."""
    (average,), g, b = u.states("m"), u.gradient(), u.number("beta")
    sign = arithmetic.sign(g) * arithmetic.sign(average.mix(g, b, _rest(b)))
    agreement = sign * u.number("sign_decay")
    base = u.number("alpha" if "alpha" in u else "logbase")
    factor = agreement + base if "alpha" in u else arithmetic.exp(agreement * base)
    u.weight.mix(factor * g, 1.0, _negated(u.number("lr")))


@update("ResourceApplyProximalGradientDescent")
def proximal_descent(u: FusedUpdate) -> None:
    """A step of gradient descent, then one towards small weights."""
    step, lasso, ridge = u.numbers("alpha", "l1", "l2")
    w = u.weight.value - u.gradient("delta") * step
    shrunk = arithmetic.sign(w) * arithmetic.relu(abs(w) - step * lasso)
    u.weight.set(shrunk / (1.0 + step * ridge))


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
