"""Updates of variables: TensorFlow's fused optimizer ops, and scatters into variables.

Formulas: ``tensorflow: core/kernels/training_ops.cc``. UpdatedVariable is changed in place where the place allows it
(:func:`mixed`).
"""

from __future__ import annotations

import numpy as np
from tensorflow.python.framework import op_def_registry

from ipuperf.functions import arithmetic, constant, make
from ipuperf.functions.arranging import broadcast, reshaped
from ipuperf.ir import FLOAT32, Tensor
from ipuperf.ops import SparseAccumulate

from .node import Node
from .ops_elementwise import known_number
from .ops_selection import COMBINATIONS, scattered, scattered_nd, summed, without_repetition
from .ops_slices import cuts, replaced_part
from .table import Family
from .values import Value

FAMILY = Family("Updates of variables")
op = FAMILY.op

Number = float | Tensor


class UpdatedVariable:
    """A variable that an update changes.

    Attributes:
        rows: of an update for some rows, their numbers; the others keep their values.
    """

    def __init__(self, node: Node, handle: Value) -> None:
        self.node = node
        self.resource = node.resource(handle)
        self.value = node.place.read(self.resource)
        self.rows: Tensor | None = None
        if node.op.type.startswith("ResourceSparse"):
            self.rows = reshaped(node.tensor(self._indices(node)), (-1,))

    @staticmethod
    def _indices(node: Node) -> Value:
        """The operand that numbers the rows."""
        definition = op_def_registry.get(node.op.type)
        place = [argument.name for argument in definition.input_arg].index("indices")
        return node.importer.values[id(node.op.inputs[place])]

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


@op("ResourceApplyGradientDescent", effect=True)
def gradient_descent(node: Node, variable: Value, rate: Value, delta: Value) -> None:
    """``w -= rate g``."""
    weight = UpdatedVariable(node, variable)
    weight.mix(weight.gradient(delta), 1.0, _negated(weight.number(rate)))


@op("ResourceApplyMomentum", "ResourceSparseApplyMomentum", effect=True)
def momentum(node: Node, variable: Value, velocity: Value, rate: Value, grad: Value, *rest: Value) -> None:
    """``v = momentum v + g``, ``w -= rate v``."""
    weight, moving = UpdatedVariable(node, variable), UpdatedVariable(node, velocity)
    g, share, step = weight.gradient(grad), weight.number(rest[-1]), weight.number(rate)
    v = moving.mix(g, share, 1.0)
    weight.mix(g + v * share if node.attr("use_nesterov") else v, 1.0, _negated(step))


@op("ResourceApplyKerasMomentum", "ResourceSparseApplyKerasMomentum", effect=True)
def keras_momentum(node: Node, variable: Value, velocity: Value, rate: Value, grad: Value, *rest: Value) -> None:
    """``v = momentum v - rate g``, ``w += v``."""
    weight, moving = UpdatedVariable(node, variable), UpdatedVariable(node, velocity)
    g, share, step = weight.gradient(grad), weight.number(rest[-1]), weight.number(rate)
    v = moving.mix(g, share, _negated(step))
    weight.mix(v * share - g * step if node.attr("use_nesterov") else v)


def _moments(
    state: tuple[UpdatedVariable, UpdatedVariable], g: Tensor, beta1: Number, beta2: Number
) -> tuple[Tensor, Tensor]:
    """New averages of the gradient and of its square."""
    first, second = state
    once = first.node.importer.equal.once
    m = first.mix(g, beta1, once(_rest, beta1))
    return m, second.mix(g * g, beta2, once(_rest, beta2))


def _adam_step(rate: Number, power1: Number, power2: Number) -> Number:
    """``-rate sqrt(1 - b2^t) / (1 - b1^t)``."""
    return _negated(rate * _root(_rest(power2)) / _rest(power1))


@op("ResourceApplyAdam", effect=True)
def adam(
    node: Node, variable: Value, m: Value, v: Value, power1: Value, power2: Value, rate: Value, beta1: Value,
    beta2: Value, epsilon: Value, grad: Value,
) -> None:  # fmt: skip
    """``w -= rate sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + epsilon)``."""
    weight = UpdatedVariable(node, variable)
    g, b1, b2, rest = weight.gradient(grad), *(weight.number(n) for n in (beta1, beta2, epsilon))
    step = node.importer.equal.once(_adam_step, *(weight.number(n) for n in (rate, power1, power2)))
    first, second = _moments((UpdatedVariable(node, m), UpdatedVariable(node, v)), g, b1, b2)
    if node.attr("use_nesterov"):
        first = first * b1 + g * node.importer.equal.once(_rest, b1)
    weight.mix(first / (arithmetic.sqrt(second) + rest), 1.0, step)


@op("ResourceApplyAdamWithAmsgrad", effect=True)
def amsgrad(
    node: Node, variable: Value, m: Value, v: Value, largest: Value, power1: Value, power2: Value, rate: Value,
    beta1: Value, beta2: Value, epsilon: Value, grad: Value,
) -> None:  # fmt: skip
    """Adam with the largest second moment so far."""
    weight, most = UpdatedVariable(node, variable), UpdatedVariable(node, largest)
    g, b1, b2, rest = weight.gradient(grad), *(weight.number(n) for n in (beta1, beta2, epsilon))
    step = node.importer.equal.once(_adam_step, *(weight.number(n) for n in (rate, power1, power2)))
    first, second = _moments((UpdatedVariable(node, m), UpdatedVariable(node, v)), g, b1, b2)
    high = most.set(arithmetic.maximum(most.value, second))
    weight.mix(first / (arithmetic.sqrt(high) + rest), 1.0, step)


@op("ResourceApplyAdaMax", effect=True)
def adamax(
    node: Node, variable: Value, m: Value, v: Value, power1: Value, rate: Value, beta1: Value, beta2: Value,
    epsilon: Value, grad: Value,
) -> None:  # fmt: skip
    """``v = max(b2 v, |g|)``, ``w -= rate / (1 - b1^t) m / (v + epsilon)``."""
    weight, first, norm = UpdatedVariable(node, variable), UpdatedVariable(node, m), UpdatedVariable(node, v)
    g, b1, b2, rest = weight.gradient(grad), *(weight.number(n) for n in (beta1, beta2, epsilon))
    average = first.mix(g, b1, _rest(b1))
    high = norm.set(arithmetic.maximum(norm.value * b2, abs(g)))
    step = weight.number(rate) / _rest(weight.number(power1))
    weight.mix(average / (high + rest), 1.0, _negated(step))


@op("ResourceSparseApplyAdagrad", "ResourceSparseApplyAdagradV2", effect=True)
def sparse_adagrad(node: Node, variable: Value, squares: Value, rate: Value, *rest: Value) -> None:
    """:func:`adagrad` of some rows."""
    adagrad(node, variable, squares, rate, *rest[:-1])


@op("ResourceApplyAdagrad", "ResourceApplyAdagradV2", effect=True)
def adagrad(node: Node, variable: Value, squares: Value, rate: Value, *rest: Value) -> None:
    """``s += g^2``, ``w -= rate g / (sqrt(s) + epsilon)``."""
    weight, total = UpdatedVariable(node, variable), UpdatedVariable(node, squares)
    g, step = weight.gradient(rest[-1]), weight.number(rate)
    s = total.mix(g * g) if node.attr("update_slots") else total.value
    root = arithmetic.sqrt(s)
    if len(rest) > 1:
        root = root + weight.number(rest[0])
    weight.mix(g / root, 1.0, _negated(step))


@op("ResourceApplyRMSProp", "ResourceSparseApplyRMSProp", effect=True)
def rms_prop(
    node: Node, variable: Value, squares: Value, velocity: Value, rate: Value, rho: Value, factor: Value,
    epsilon: Value, grad: Value, *_indices: Value,
) -> None:  # fmt: skip
    """``s = rho s + (1 - rho) g^2``, ``v = momentum v + rate g / sqrt(s + epsilon)``, ``w -= v``."""
    weight, mean, moving = (
        UpdatedVariable(node, variable),
        UpdatedVariable(node, squares),
        UpdatedVariable(node, velocity),
    )
    g, decay = weight.gradient(grad), weight.number(rho)
    s = mean.mix(g * g, decay, _rest(decay))
    step = g / arithmetic.sqrt(s + weight.number(epsilon))
    weight.mix(moving.mix(step, weight.number(factor), weight.number(rate)), 1.0, -1.0)


@op("ResourceApplyCenteredRMSProp", "ResourceSparseApplyCenteredRMSProp", effect=True)
def centered_rms_prop(
    node: Node, variable: Value, gradients: Value, squares: Value, velocity: Value, rate: Value, rho: Value,
    factor: Value, epsilon: Value, grad: Value, *_indices: Value,
) -> None:  # fmt: skip
    """As RMSProp, with the variance of the gradient for its mean square."""
    weight, mean, square, moving = (UpdatedVariable(node, h) for h in (variable, gradients, squares, velocity))
    g, decay = weight.gradient(grad), weight.number(rho)
    s, m = square.mix(g * g, decay, _rest(decay)), mean.mix(g, decay, _rest(decay))
    step = g / arithmetic.sqrt(s - m * m + weight.number(epsilon))
    weight.mix(moving.mix(step, weight.number(factor), weight.number(rate)), 1.0, -1.0)


@op("ResourceApplyAdadelta", "ResourceSparseApplyAdadelta", effect=True)
def adadelta(
    node: Node, variable: Value, squares: Value, updates: Value, rate: Value, rho: Value, epsilon: Value, grad: Value,
    *_indices: Value,
) -> None:  # fmt: skip
    """``d = sqrt(u + epsilon) / sqrt(s + epsilon) g``, ``w -= rate d``, averages of ``g^2`` and ``d^2``."""
    weight, square, moved = (UpdatedVariable(node, h) for h in (variable, squares, updates))
    g, decay, rest = weight.gradient(grad), weight.number(rho), weight.number(epsilon)
    s = square.mix(g * g, decay, _rest(decay))
    d = arithmetic.sqrt(moved.value + rest) / arithmetic.sqrt(s + rest) * g
    moved.mix(d * d, decay, _rest(decay))
    weight.mix(d, 1.0, _negated(weight.number(rate)))


@op("ResourceSparseApplyFtrl", "ResourceSparseApplyFtrlV2", effect=True)
def sparse_ftrl(node: Node, variable: Value, squares: Value, linear: Value, grad: Value, *numbers: Value) -> None:
    """:func:`ftrl` of some rows."""
    ftrl(node, variable, squares, linear, grad, *numbers[1:])


@op("ResourceApplyFtrl", "ResourceApplyFtrlV2", effect=True)
def ftrl(node: Node, variable: Value, squares: Value, linear: Value, grad: Value, *numbers: Value) -> None:
    """Follow the regularised leader."""
    weight, total, line = (UpdatedVariable(node, h) for h in (variable, squares, linear))
    g = weight.gradient(grad)
    alpha, l1, l2, *shrinkage, power = (weight.number(n) for n in numbers)
    shrunk = g + weight.value * (2.0 * shrinkage[0]) if shrinkage else g
    old = total.value ** (-power)
    new = (total.value + g * g) ** (-power)
    z = line.mix(shrunk - (new - old) * weight.value * (1.0 / alpha))
    total.mix(g * g)
    quadratic = new * (1.0 / alpha) + 2.0 * l2
    reached = arithmetic.greater(abs(z), arithmetic.abs(z * 0.0 + l1))
    weight.set(arithmetic.where(reached, (arithmetic.sign(z) * l1 - z) / quadratic, 0.0))


@op("ResourceApplyAddSign", "ResourceApplyPowerSign", effect=True)
def signed(
    node: Node, variable: Value, m: Value, rate: Value, first: Value, decay: Value, beta: Value, grad: Value
) -> None:
    """Steps that are larger where gradient and its average agree."""
    weight, average = UpdatedVariable(node, variable), UpdatedVariable(node, m)
    g, b = weight.gradient(grad), weight.number(beta)
    agreement = arithmetic.sign(g) * arithmetic.sign(average.mix(g, b, _rest(b))) * weight.number(decay)
    base = weight.number(first)
    factor = agreement + base if node.op.type.endswith("AddSign") else arithmetic.exp(agreement * base)
    weight.mix(factor * g, 1.0, _negated(weight.number(rate)))


@op("ResourceApplyProximalGradientDescent", effect=True)
def proximal_descent(node: Node, variable: Value, rate: Value, l1: Value, l2: Value, delta: Value) -> None:
    """A step of gradient descent, then one towards small weights."""
    weight = UpdatedVariable(node, variable)
    step, lasso, ridge = (weight.number(n) for n in (rate, l1, l2))
    w = weight.value - weight.gradient(delta) * step
    shrunk = arithmetic.sign(w) * arithmetic.relu(abs(w) - step * lasso)
    weight.set(shrunk / (1.0 + step * ridge))


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
