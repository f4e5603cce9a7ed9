"""Weight updates: one class per optimiser.

An update describes which terms it has; :meth:`Update.build` makes the ops of one step on one weight. A number of an
optimiser is a scalar tensor, which the host may rewrite between runs, or a float, which is compiled in. ``rate`` is the
negated learning rate everywhere, ``step_size`` the learning rate itself.

Formulas are those of ``torch.optim``. LAMB and the TensorFlow variant of RMSprop follow ``popart:
willow/include/popart/adam.hpp`` and ``adaptive.hpp``, and LARS follows its paper (You, Gitman, Ginsburg, arXiv
1708.03888, algorithm 1). The first step of a momentum with dampening is ``(1 - dampening) g``, because velocities start
from zero, as upstream's do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ipuperf import ops as _k
from ipuperf.ir import CONTEXT, FLOAT32, DType, ReplicaGrouping, Tensor

from .arithmetic import clip, greater, scaled_add_, sqrt, where
from .elementary import scaled
from .making import constant, make
from .reductions import lamb_square

#: A number of an optimiser: a scalar that may change between runs, or one that is compiled in.
Number = float | Tensor
State = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Step:
    """The operands of one step.

    Attributes:
        weight: changed in place.
        gradient: of the weight's shape; may be changed in place.
        state: by name, changed in place.
        numbers: by name, those that :attr:`Update.numbers` lists.
        shards: groups of replicas that hold one shard of the parameter each, where the tensors are a replica's shard.
    """

    weight: Tensor
    gradient: Tensor
    state: Mapping[str, Tensor]
    numbers: Mapping[str, Number]
    shards: ReplicaGrouping | None = None


class Update(Protocol):
    """How one optimiser changes a weight."""

    @property
    def numbers(self) -> frozenset[str]:
        """Names of the numbers that the ops read."""
        ...

    def state(self, shape: Sequence[int], first_dtype: DType, second_dtype: DType) -> State:
        """Initial state of a weight by name.

        First moments and velocities have the type ``first_dtype``, second moments ``second_dtype``.
        """
        ...

    def build(self, step: Step) -> None:
        """Make the ops of one step."""
        ...


def repeated(value: float, shape: Sequence[int], dtype: DType) -> np.ndarray:
    """An array of one repeated value, which takes the memory of one element and cannot be written to."""
    # A view with stride 0: states of large models are made without their memory.
    return np.broadcast_to(np.array(value, dtype.numpy), tuple(shape))


def _present(**parts: bool) -> frozenset[str]:
    return frozenset(name for name, is_present in parts.items() if is_present)


# -- momentum ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sgd:
    """``v = momentum v + undamped (g + weight_decay w)``, ``w += rate v``; without momentum ``v`` is the gradient.

    Attributes:
        nesterov: whether the gradient plus ``momentum v`` takes the place of ``v``.
        damped: whether there is a number ``undamped``, 1 minus the dampening; otherwise it is 1.
    """

    decay: bool = False
    momentum: bool = False
    nesterov: bool = False
    damped: bool = False

    @property
    def numbers(self) -> frozenset[str]:
        """The rate, and the numbers of the terms that it has."""
        damped = self.momentum and self.damped
        return _present(rate=True, weight_decay=self.decay, momentum=self.momentum, undamped=damped)

    def state(self, shape: Sequence[int], first_dtype: DType, second_dtype: DType) -> State:
        """The velocity."""
        return {"momentum": repeated(0, shape, first_dtype)} if self.momentum else {}

    def build(self, step: Step) -> None:
        """Make the ops of one step."""
        numbers, direction = step.numbers, _gradient(step, self.decay)
        if self.momentum:
            undamped = numbers["undamped"] if self.damped else 1.0
            velocity = _mixed("velocity", step.state["momentum"], direction, numbers["momentum"], undamped)
            # Nesterov looks one step of momentum ahead.
            if self.nesterov:
                direction = _like(direction, velocity) + velocity * _like(numbers["momentum"], velocity)
            else:
                direction = velocity
        _mixed("weight", step.weight, direction, b=numbers["rate"])


@dataclass(frozen=True)
class CombinedSgd:
    """:class:`Sgd` whose velocity is also the gradient accumulator, of the weight's type.

    Each micro-batch adds ``scaling * g`` to ``a``; the update is ``a += scaling weight_decay w``, ``w += rate undamped
    / scaling a``, ``a *= momentum``.

    Attributes:
        scaling: factor on the velocity.
        replicas: number of replicas whose shares make up the next sum; afterwards ``a`` is the share of one of them.
    """

    decay: bool
    scaling: float
    replicas: int

    def build(self, weight: Tensor, accumulated: Tensor, numbers: Mapping[str, Tensor]) -> None:
        """Make the ops of one step, given the sum of ``a`` over the replicas."""
        n, a = numbers, accumulated
        if self.decay:
            a = _mixed("decayed", a, weight, b=scaled(n["weight_decay"], self.scaling))
        _mixed("weight", weight, a, b=scaled(n["rate"] * n["undamped"], 1.0 / self.scaling))
        make(_k.AccumulatorScale, a, scaled(n["momentum"], 1.0 / self.replicas), name="velocity")


@dataclass(frozen=True)
class Lars:
    """``v = momentum v + step_size r (g + weight_decay w)``, ``w -= v`` with a rate ``r`` for each weight.

    ``r`` is ``trust |w| / (|g| + weight_decay |w| + epsilon)``, and 1 where a norm is 0 (always, without ``trusting``).
    """

    decay: bool
    trusting: bool
    epsilon: bool

    @property
    def numbers(self) -> frozenset[str]:
        """Step size and momentum, and the numbers of the terms that it has."""
        return _present(
            step_size=True,
            momentum=True,
            weight_decay=self.decay,
            trust=self.trusting,
            epsilon=self.trusting and self.epsilon,
        )

    def state(self, shape: Sequence[int], first_dtype: DType, second_dtype: DType) -> State:
        """The velocity."""
        return {"momentum": repeated(0, shape, first_dtype)}

    def build(self, step: Step) -> None:
        """Make the ops of one step."""
        numbers, gradient = step.numbers, _own_type(step)
        rate = self._trust(step, gradient) * numbers["step_size"] if self.trusting else numbers["step_size"]
        direction = _decayed(step, gradient, self.decay)
        velocity = _mixed("velocity", step.state["momentum"], direction, numbers["momentum"], rate)
        _mixed("weight", step.weight, velocity, b=-1.0)

    def _trust(self, step: Step, direction: Tensor) -> Tensor:
        weight, gradient = _norm(step.weight, step.shards), _norm(direction, step.shards)
        divisor = gradient
        if self.decay:
            divisor = divisor + weight * step.numbers["weight_decay"]
        if self.epsilon:
            divisor = divisor + step.numbers["epsilon"]
        return _ratio(weight * gradient, weight * step.numbers["trust"], divisor)


# -- the Adam family ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Adam:
    """``m = beta1 m + (1 - beta1) g``, ``v = beta2 v + (1 - beta2) g^2``, ``w += rate m' / (sqrt(v') + epsilon)``.

    ``m'`` and ``v'`` are ``m`` and ``v`` corrected for the first steps.

    Attributes:
        decay: whether there is weight decay: ``weight_decay w`` is added to the gradient, or to the step if
            ``decoupled`` (AdamW).
        corrected: whether ``m'`` and ``v'`` differ from ``m`` and ``v``.
    """

    decay: bool = False
    decoupled: bool = False
    corrected: bool = True

    @property
    def numbers(self) -> frozenset[str]:
        """Rate, betas, epsilon, and the weight decay if there is one."""
        return _present(rate=True, beta1=True, beta2=True, epsilon=True, weight_decay=self.decay)

    def state(self, shape: Sequence[int], first_dtype: DType, second_dtype: DType) -> State:
        """The moments, and the number of steps when they are corrected."""
        moments = {"exp_avg": repeated(0, shape, first_dtype), "exp_avg_sq": repeated(0, shape, second_dtype)}
        return moments | ({"step": repeated(0, (), FLOAT32)} if self.corrected else {})

    def build(self, step: Step) -> None:
        """Make the ops of one step."""
        gradient = _decayed(step, step.gradient, self.decay and not self.decoupled)
        update = self.direction(step, gradient, self.decay and self.decoupled)
        _mixed("weight", step.weight, update, b=step.numbers["rate"])

    def direction(self, step: Step, gradient: Tensor, decay: bool) -> Tensor:
        """The step before it is multiplied with the rate; changes the moments."""
        numbers, state = step.numbers, step.state
        m = _average("m", state["exp_avg"], gradient, numbers["beta1"])
        v = _average("v", state["exp_avg_sq"], gradient, numbers["beta2"], squared=True)
        # The op finds its optional inputs by these flags.
        inputs, attributes = [m, v, step.weight], {"has_weight": True}
        if self.corrected:
            inputs.append(state["step"])
            attributes["has_step"] = True
        names = ("beta1", "beta2", "epsilon", *(["weight_decay"] if decay else []))
        return _make("update", _k.AdamUpdater, inputs, {name: numbers[name] for name in names}, **attributes)


@dataclass(frozen=True)
class Lamb(Adam):
    """``w += rate min(|w|, limit) / |u| u`` with AdamW's step ``u``; the ratio is 1 where a norm is 0.

    Attributes:
        limit: largest norm of the weight; None: no limit.
    """

    limit: float | None = None

    def build(self, step: Step) -> None:
        """Make the ops of one step."""
        update = self.direction(step, step.gradient, self.decay)
        weight, norm = _norm(step.weight, step.shards), _norm(update, step.shards)
        limited_weight = weight if self.limit is None else clip(weight, 0.0, self.limit)
        rate = _ratio(weight * norm, limited_weight, norm) * step.numbers["rate"]
        _mixed("weight", step.weight, update, b=rate)


# -- RMSprop -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RmsProp:
    """``s = alpha s + (1 - alpha) g^2``, ``u = g / (sqrt(s) + epsilon)``, ``w += rate u``.

    With momentum it is ``v = momentum v + u``, ``w += rate v``.

    Attributes:
        centered: whether the square of the average gradient is subtracted from ``s``.
        tensorflow: whether epsilon stands under the root, averages begin at one, and the learning rate is in the
            velocity.
    """

    decay: bool
    momentum: bool
    centered: bool
    tensorflow: bool

    @property
    def numbers(self) -> frozenset[str]:
        """Alpha, epsilon, the rate (the step size for TensorFlow's momentum), and the numbers of the terms that it
        has."""
        rate_in_velocity = self.momentum and self.tensorflow
        return _present(
            rate=not rate_in_velocity,
            step_size=rate_in_velocity,
            alpha=True,
            epsilon=True,
            weight_decay=self.decay,
            momentum=self.momentum,
        )

    def state(self, shape: Sequence[int], first_dtype: DType, second_dtype: DType) -> State:
        """The average square, the velocity and the average gradient."""
        zeros = repeated(0, shape, first_dtype)
        # True is 1 here: the averages of TensorFlow begin at one.
        state = {"square_avg": repeated(self.tensorflow, shape, second_dtype)}
        parts = {"momentum": self.momentum, "grad_avg": self.centered}
        return state | {name: zeros for name, is_present in parts.items() if is_present}

    def build(self, step: Step) -> None:
        """Make the ops of one step."""
        numbers, gradient = step.numbers, _gradient(step, self.decay)
        divisor = self._divisor(step, gradient)
        update = _like(gradient, divisor) / divisor
        if not self.momentum:
            _mixed("weight", step.weight, update, b=numbers["rate"])
            return
        inside, outside = (numbers["step_size"], -1.0) if self.tensorflow else (1.0, numbers["rate"])
        # TensorFlow keeps the learning rate in the velocity, PyTorch outside of it.
        velocity = _mixed("velocity", step.state["momentum"], update, numbers["momentum"], inside)
        _mixed("weight", step.weight, velocity, b=outside)

    def _divisor(self, step: Step, gradient: Tensor) -> Tensor:
        square = _average("square", step.state["square_avg"], gradient, step.numbers["alpha"], squared=True)
        if self.centered:
            mean = _like(_average("mean", step.state["grad_avg"], gradient, step.numbers["alpha"]), square)
            square = square + mean * mean * _like(constant(-1.0, FLOAT32), mean)
        epsilon = _like(step.numbers["epsilon"], square)
        # TensorFlow adds epsilon under the root.
        return sqrt(square + epsilon) if self.tensorflow else sqrt(square) + epsilon


# -- parts of steps ----------------------------------------------------------------------------------------------------


def _make(
    name: str, op_class: type[_k.Op], operands: Sequence[Tensor], numbers: Mapping[str, Number], **attributes: Any
) -> Tensor:
    """An op whose numbers are attributes (floats) or inputs behind ``operands``, to which ``<name>_input`` points."""
    inputs = list(operands)
    for number, value in numbers.items():
        if isinstance(value, Tensor):
            attributes[f"{number}_input"] = len(inputs)
            inputs.append(value)
        else:
            attributes[number] = value
    return make(op_class, *inputs, name=name, **attributes)


def _mixed(name: str, target: Tensor, value: Tensor, a: Number = 1.0, b: Number = 1.0) -> Tensor:
    """``target = a target + b value`` in place."""
    with CONTEXT.builder.named(name):
        return scaled_add_(target, value, a, b)


def _average(name: str, target: Tensor, value: Tensor, factor: Number, squared: bool = False) -> Tensor:
    """``target = factor target + (1 - factor) value`` in place, or with the value's square."""
    kind = "moving_average_square" if squared else "moving_average"
    if isinstance(factor, Tensor):
        return make(_k.Accumulate, target, value, factor, name=name, kind=kind)
    return make(_k.Accumulate, target, value, name=name, kind=kind, factor=factor)


def _own_type(step: Step) -> Tensor:
    """The gradient in the weight's type."""
    dtype = step.weight.dtype
    return step.gradient if step.gradient.dtype == dtype else make(_k.Cast, step.gradient, name="gradient", dtype=dtype)


def _gradient(step: Step, decay: bool) -> Tensor:
    """The gradient in the weight's type, with weight decay."""
    return _decayed(step, _own_type(step), decay)


def _decayed(step: Step, gradient: Tensor, decay: bool) -> Tensor:
    return _mixed("decayed", gradient, step.weight, b=step.numbers["weight_decay"]) if decay else gradient


def _like(value: Number, like: Tensor) -> Any:
    """``value`` in the type of ``like``; floats take that type by themselves."""
    if not isinstance(value, Tensor) or value.dtype is like.dtype:
        return value
    return make(_k.Cast, value, name=value.name, dtype=like.dtype)


def _norm(t: Tensor, shards: ReplicaGrouping | None) -> Tensor:
    """The L2 norm of ``t`` in float32; with ``shards`` over all shards, whose sums of squares are all-reduced.

    Half elements are summed as they are, without a float copy (``popart:willow/src/popx/op/lambx.cpp``).
    """
    squares = lamb_square(t)
    if shards:
        squares = make(_k.ReplicatedAllReduceInplace, squares, op="add", group=shards)
    return sqrt(squares)


def _ratio(norms: Tensor, dividend: Tensor, divisor: Tensor) -> Tensor:
    """``dividend / divisor``, and 1 where the product of two norms is 0."""
    unit, defined = constant(1.0, FLOAT32), greater(norms, 0.0)
    # The divisor is replaced too, so that no division by 0 takes place where the result is not wanted.
    return where(defined, dividend / where(defined, divisor, unit), unit)
