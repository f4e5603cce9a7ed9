"""Variable updates: scaled additions, gradient accumulation, the Adam family's updater, and copies into variables.

Semantics: ``docs/reference/popxl.md`` 7. Arithmetic is in float32 and rounded once to the result's type. The
kernels work in cache-sized pieces (:mod:`ipuperf.ops.blocks`). Which vertices an update runs follows PopART's lowering
(``willow/src/popx/op/accumulatex.cpp``, ``adamupdaterx.cpp``); their cycle formulas stand in
:mod:`ipuperf.ops.update_vertices` and :mod:`ipuperf.ops.vertices`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from ipuperf.ir import DTypeError, IrError, Phase, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, NUMBER, Attribute, choice, optional

from . import half, vertices
from .base import Environment, Kernel, Op
from .binding import sequence
from .blocks import Bound, Coefficients, bind_weighted_sum, in_float32, largest, pieces, scalar, temporary
from .half import Step
from .update_vertices import fused_cycles, scaled_add_cycles, type_names
from .work import Copy, Vertices, Work

# -- shared parts --------------------------------------------------------------------------------------------------


def _scratch(env: Environment) -> Callable[[int, int], np.ndarray]:
    return lambda elements, slot: env.scratch((elements,), np.float32, slot)


class _Update(Op):
    """Base of updates with scalar factors that are either Python floats or scalar tensors.

    A factor ``f`` is the attribute ``f``, or, where a class has it, ``f_input``: the index of the input that holds it.
    """

    def own_phase(self) -> Phase | None:
        """A weight update, wherever nobody says otherwise."""
        return "update"

    def factor_index(self, name: str) -> int | None:
        """Index of the input that holds factor ``name``, or None when it is a float."""
        return getattr(self, f"{name}_input", None)

    def has_tensor_factor(self, *names: str) -> bool:
        """True when any of the factors is read from a tensor."""
        return any(self.factor_index(name) is not None for name in names)

    def check_factor(self, name: str) -> None:
        """Raise unless the factor is a number or one element of a floating-point or integer tensor."""
        index = self.factor_index(name)
        if index is None:
            return
        self.require(index < len(self.inputs), f"factor {name} is input {index}, which does not exist")
        tensor = self.inputs[index]
        self.require(
            tensor.spec.elements == 1, f"factor {name} ({tensor.id!r}) has shape {tensor.shape}; one element is needed"
        )

    def reader(self, name: str, inputs: Sequence[np.ndarray], default: float = 1.0) -> Callable[[int], float]:
        """A function giving the factor's value on a replica at the time of the call."""
        index = self.factor_index(name)
        if index is None:
            value = getattr(self, name)
            number = default if value is None else float(value)
            return lambda replica: number
        values = inputs[index]
        if values.ndim == 1:
            return lambda replica: float(values[replica])
        return lambda replica: float(values[replica].reshape(-1)[0])

    def same_shape(self, target: Tensor, other: Tensor) -> None:
        """Raise unless two tensors have the same shape."""
        if target.spec.shape != other.spec.shape:
            self.refuse(f"{target.id!r} {target.shape} and {other.id!r} {other.shape} must have equal shapes")


# -- scaled addition -----------------------------------------------------------------------------------------------


class ScaledAdd(_Update):
    """``a * X + b * Y`` in X's type; X and Y have equal shapes, their types may differ.

    Inputs ``X, Y[, a][, b]``; attributes ``a``, ``b`` (floats, default 1) or ``a_input``, ``b_input`` (input indices).
    Cost: a copy of X and the vertex of the in-place form.
    """

    type: ClassVar[str] = "ScaledAdd"

    a = Attribute(optional(NUMBER), None)
    b = Attribute(optional(NUMBER), None)
    a_input = Attribute(optional(INTEGER), None)
    b_input = Attribute(optional(INTEGER), None)

    def own_phase(self) -> Phase | None:
        return None

    def infer(self) -> list[TensorSpec]:
        """The spec of X; raises for integers, unequal shapes and factors of more than one element."""
        x, y = self.inputs[:2]
        self.floating(x, y)
        self.same_shape(x, y)
        if not (self.attributes["a_input"] is self.attributes["b_input"] is None):  # floats are frequent
            self.check_factor("a")
            self.check_factor("b")
        return [x.spec]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """The weighted sum in float32, rounded once."""
        a, b = self.reader("a", inputs), self.reader("b", inputs)
        static = not self.has_tensor_factor("a", "b")
        return bind_weighted_sum(outputs[0], inputs[0], inputs[1], lambda r: (a(r), b(r)), static, False, _scratch(env))

    def vertices(self) -> Vertices:
        """The ScaledAdd or aX+bY compute set."""
        x, y = self.inputs[:2]
        tensor = self.has_tensor_factor("a", "b")
        both = self.factor_index("a") is not None or self.a not in (None, 1.0)
        name = "aXPlusbYSupervisor" if both else "ScaledAddSupervisor"
        return Vertices(
            f"popops::{name}<{type_names(x.dtype, y.dtype)},{str(not tensor).lower()}>",
            x.spec.elements,
            scaled_add_cycles(x.dtype, y.dtype, tensor, both),
            flops=(3 if both else 2) * x.spec.elements,
        )

    def work(self) -> Sequence[Work]:
        """A copy of X, then the vertex of the in-place form."""
        return [Copy(self.inputs[0].spec.bytes), self.vertices()]


class ScaledAddLhsInplace(ScaledAdd):
    """``X = a * X + b * Y`` in place; the output is X."""

    type: ClassVar[str] = "ScaledAddLhsInplace"

    def own_phase(self) -> Phase | None:
        """The step of SGD."""
        return "update"

    def modified_inputs(self) -> tuple[int, ...]:
        """X."""
        return (0,)

    def aliases(self) -> dict[int, int]:
        """The output is X."""
        return {0: 0}

    def work(self) -> Sequence[Work]:
        """The ScaledAdd or aX+bY vertex."""
        return [self.vertices()]


# -- accumulation --------------------------------------------------------------------------------------------------

#: Arithmetic operations of the fused expression: (factor known at compile time, factor read from a tensor).
_FUSED_OPERATIONS = {"square": (3, 3), "moving_average": (3, 4), "moving_average_square": (4, 5)}
_KINDS = ("add", "square", "mean", "moving_average", "moving_average_square")


class Accumulate(_Update):
    """Accumulate X into ``t`` in place; the output is ``t``. Types may differ, shapes are equal; integers of one type
    are added without a factor.

    Inputs ``t, X[, factor]``; attributes ``kind`` and ``factor`` (float or None). A third input is the factor ``f``.

    ====================== =========================================== ===========================
    kind                   value                                       vertices
    ====================== =========================================== ===========================
    add                    t + f X (f = 1)                             ScaledAdd
    mean                   t c/(c+1) + X/(c+1), c = f                  aX+bY
    square                 t + f X X (f = 1)                           fused expression
    moving_average         f t + (1-f) X                               fused expression
    moving_average_square  f t + (1-f) X X                             fused expression
    ====================== =========================================== ===========================

    A half accumulator makes ``X``, ``f`` and ``1-f`` of a moving average halves (popx/op/accumulatex.cpp); the sum is
    rounded once.
    """

    type: ClassVar[str] = "Accumulate"

    kind = Attribute(choice(*_KINDS), "add")
    factor = Attribute(optional(NUMBER), None)

    def infer(self) -> list[TensorSpec]:
        """The spec of ``t``; raises for an unknown kind, unequal shapes and a kind that lacks its factor."""
        target, value = self.inputs[:2]
        kind = self.kind
        if target.dtype.is_integer:
            self._check_integers(target, value)
        else:
            self.floating(target, value)
        self.same_shape(target, value)
        self.check_factor("factor")
        if self.factor_index("factor") is None and self.factor is None and kind not in ("add", "square"):
            raise IrError(f"{self.where()}: kind {kind!r} needs a factor (a float or a third input)")
        return [self.like(target)]

    def _check_integers(self, target: Tensor, value: Tensor) -> None:
        """Integers are added as they are: one type, kind ``add``, no factor."""
        self.same_dtype(target, value)
        if self.kind != "add" or len(self.inputs) > 2 or self.factor not in (None, 1.0):
            raise DTypeError(
                f"{self.where()}: {target.id!r} is {target.dtype.name}; integers accumulate by kind 'add', "
                "without a factor"
            )

    def factor_index(self, name: str) -> int | None:
        """The third input, if there is one, is the factor."""
        return 2 if name == "factor" and len(self.inputs) > 2 else None

    def modified_inputs(self) -> tuple[int, ...]:
        """The accumulator."""
        return (0,)

    def aliases(self) -> dict[int, int]:
        """The output is the accumulator."""
        return {0: 0}

    def _coefficients(self, inputs: Sequence[np.ndarray]) -> Coefficients:
        factor = self.reader("factor", inputs)
        if self.kind in ("add", "square"):
            return lambda r: (1.0, factor(r))
        if self.kind == "mean":
            return lambda r: (factor(r) / (factor(r) + 1.0), 1.0 / (factor(r) + 1.0))
        if inputs[0].dtype == np.float16:
            return lambda r: (float(np.float16(factor(r))), float(np.float16(1.0 - factor(r))))
        return lambda r: (factor(r), 1.0 - factor(r))

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """The weighted sum (of the square) in float32, rounded once, written to the accumulator."""
        static = self.factor_index("factor") is None
        square = self.kind.endswith("square")
        target = inputs[0]
        if self.inputs[0].dtype.is_integer:
            return lambda: np.add(target, inputs[1], out=target)
        value, before = self._in_type_of(target, inputs[1], env)
        add = bind_weighted_sum(target, target, value, self._coefficients(inputs), static, square, _scratch(env))
        return sequence([*before, add])

    def _in_type_of(self, target: np.ndarray, value: np.ndarray, env: Environment) -> tuple[np.ndarray, list[Step]]:
        """The value in the type of the accumulator, where the fused expressions cast it."""
        if not self.kind.startswith("moving_average") or target.dtype != np.float16 or value.dtype == np.float16:
            return value, []
        cast = env.scratch(value.shape, np.float16, 8)
        return cast, [half.copy(cast, value)]

    def work(self) -> Sequence[Work]:
        """The vertices of the table above."""
        target, value = self.inputs[:2]
        tensor = self.factor_index("factor") is not None
        count, kind = target.spec.elements, self.kind
        types = type_names(target.dtype, value.dtype)
        if kind in ("add", "mean"):
            both = kind == "mean"
            name = "aXPlusbYSupervisor" if both else "ScaledAddSupervisor"
            vertex = f"popops::{name}<{types},{str(not tensor).lower()}>"
            formula = scaled_add_cycles(target.dtype, value.dtype, tensor, both)
            unsure = target.dtype.is_integer  # popops estimates the floating-point vertices only
            return [Vertices(vertex, count, formula, flops=(3 if both else 2) * count, low_confidence=unsure)]
        operations = _FUSED_OPERATIONS[kind][tensor]
        if kind == "square" and not tensor and self.factor in (None, 1.0):
            operations = 2
        formula = fused_cycles(target.dtype, 2, int(tensor), operations)
        return [Vertices(f"popops::map::Accumulate_{kind}<{types}>", count, formula, flops=operations * count)]


class AdamVarUpdate(_Update):
    """``w -= lr * min(sqrt(r1), max_norm) / sqrt(r2) * u`` in place, the quotient being 1 where ``r1``, ``r2`` or
    ``max_norm`` is 0.

    The output is ``w``.

    Inputs ``w, u, r1, r2[, lr][, max_norm]``: the weight, its updater, their squared norms, the learning rate and the
    limit of the weight's norm, the last two as tensors at ``lr_input`` and ``max_norm_input`` or as attributes (no
    ``max_norm``: no limit). Cost: the expression of the factor and ``ScaledAdd`` (popart:
    willow/src/popx/op/adamvarupdatex.cpp).
    """

    type: ClassVar[str] = "AdamVarUpdate"

    lr = Attribute(optional(NUMBER), None)
    max_norm = Attribute(optional(NUMBER), None)
    lr_input = Attribute(optional(INTEGER), None)
    max_norm_input = Attribute(optional(INTEGER), None)

    def infer(self) -> list[TensorSpec]:
        """The weight's spec; raises for integers, unequal shapes, norms and rates that are no scalars."""
        self.require(4 <= len(self.inputs) <= 6, f"needs 4 to 6 operands, got {len(self.inputs)}")
        weight, updater = self.inputs[:2]
        self.floating(weight, updater)
        self.same_shape(weight, updater)
        for tensor in self.inputs[2:]:
            self.require(tensor.spec.elements == 1, f"{tensor.id!r} has shape {tensor.shape}; one element is needed")
        if self.factor_index("lr") is None and self.lr is None:
            raise IrError(f"{self.where()}: a learning rate is needed (a float or an input)")
        self.check_factor("lr")
        self.check_factor("max_norm")
        return [self.like(weight)]

    def modified_inputs(self) -> tuple[int, ...]:
        """The weight."""
        return (0,)

    def aliases(self) -> dict[int, int]:
        """The output is the weight."""
        return {0: 0}

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """A weighted sum in float32 whose factor is read in each run."""
        rate, most = self.reader("lr", inputs), self.reader("max_norm", inputs, math.inf)
        first, second = inputs[2:4]

        def coefficients(replica: int) -> tuple[float, float]:
            r1, r2 = float(first[replica].reshape(-1)[0]), float(second[replica].reshape(-1)[0])
            limit = most(replica)
            ratio = float(min(np.sqrt(r1), limit) / np.sqrt(r2)) if r1 and r2 and limit else 1.0
            return 1.0, -rate(replica) * ratio

        return bind_weighted_sum(inputs[0], inputs[0], inputs[1], coefficients, False, False, _scratch(env))

    def work(self) -> Sequence[Work]:
        """The factor, one element on one tile, then the ScaledAdd with a factor from memory."""
        weight, updater = self.inputs[:2]
        count, types = weight.spec.elements, type_names(weight.dtype, updater.dtype)
        operations = 7 if self.max_norm is None and self.max_norm_input is None else 8
        cycles = fused_cycles(self.inputs[2].dtype, len(self.inputs) - 2, 0, operations)
        factor = Vertices("popops::map::AdamVarUpdate_factor", 1, cycles, flops=operations)
        formula = scaled_add_cycles(weight.dtype, updater.dtype, True, False)
        return [factor, Vertices(f"popops::ScaledAddSupervisor<{types},false>", count, formula, flops=2 * count)]


class AccumulatorScale(_Update):
    """``t = f * t`` in place; the output is ``t``. Inputs ``t[, f]``; attribute ``factor``. Factor 0 is a fill.

    Cost: ``BroadcastScalar1DInPlace<MULTIPLY>``, or ``Fill`` for the constant 0.
    """

    type: ClassVar[str] = "AccumulatorScale"

    factor = Attribute(optional(NUMBER), None)

    def infer(self) -> list[TensorSpec]:
        """The spec of ``t``; raises for integers and without a factor of one element."""
        self.floating(self.inputs[0])
        self.check_factor("factor")
        if self.factor_index("factor") is None and self.factor is None:
            raise IrError(f"{self.where()}: a factor is needed (a float or a second input)")
        return [self.like(self.inputs[0])]

    def factor_index(self, name: str) -> int | None:
        """The second input, if there is one, is the factor."""
        return 1 if len(self.inputs) > 1 else None

    @property
    def clears(self) -> bool:
        """True when the factor is the constant 0."""
        return self.factor_index("factor") is None and self.factor == 0.0

    def modified_inputs(self) -> tuple[int, ...]:
        """The accumulator."""
        return (0,)

    def aliases(self) -> dict[int, int]:
        """The output is the accumulator."""
        return {0: 0}

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """The product in float32, rounded once; a fill where the factor is the constant 0."""
        target = inputs[0]
        if self.clears:
            return lambda: target.fill(0)
        factor = self.reader("factor", inputs)
        bound = in_float32(pieces([target, target], per_replica=True), _scratch(env), 0)

        def run() -> None:
            for piece in bound:
                for step in piece.fill:
                    step()
                out, value = piece.views
                np.multiply(value, scalar(factor(piece.replica)), out=out)
                for step in piece.round:
                    step()

        return run

    def work(self) -> Sequence[Work]:
        """The vertex of a product with a scalar, or a fill."""
        target = self.inputs[0]
        if self.clears:
            return [vertices.fill(target.dtype, target.spec.elements)]
        return [vertices.broadcast_scalar("MULTIPLY", target.dtype, target.spec.elements, in_place=True)]


class AccumulatorZero(AccumulatorScale):
    """``t = 0`` in place; the output is ``t``. Printed as the upstream operation, an AccumulatorScale by 0."""

    factor = Attribute(choice(0.0), 0.0)


class CopyVarUpdate(_Update):
    """``t = X`` in place (equal shapes and types); the output is ``t``. Cost: a copy."""

    type: ClassVar[str] = "CopyVarUpdate"

    def infer(self) -> list[TensorSpec]:
        """The spec of ``t``; raises unless types and shapes are equal."""
        target, value = self.inputs
        self.same_dtype(target, value)
        self.same_shape(target, value)
        return [self.like(target)]

    def modified_inputs(self) -> tuple[int, ...]:
        """The tensor that is written."""
        return (0,)

    def aliases(self) -> dict[int, int]:
        """The output is the tensor that is written."""
        return {0: 0}

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """A copy."""
        target, value = inputs
        return lambda: np.copyto(target, value)

    def work(self) -> Sequence[Work]:
        """A copy of the bytes of one operand."""
        return [Copy(self.inputs[0].spec.bytes)]


# -- Adam ----------------------------------------------------------------------------------------------------------

_MODES = ("adam", "adamax", "lamb")


class AdamUpdater(_Update):
    """The Adam family's step from its two moments.

    Inputs ``m, v[, weight][, time_step]`` (``has_weight``, ``has_step``). Attributes: ``mode``, ``weight_decay``,
    ``beta1``, ``beta2``, ``epsilon`` as floats, or ``<name>_input`` with an input index. The result has ``weight``'s
    type, without weight ``m``'s: ``m' / (sqrt(v') + epsilon) + weight_decay * weight``; AdaMax takes ``v`` itself, not
    ``sqrt(v')``. A time step is first incremented in place; then ``m' = m / (1 - beta1**t)`` and
    ``v' = v / (1 - beta2**t)``. Without time step ``m' = m`` and ``v' = v``.

    A half ``m`` is corrected in half, as in PopART's expression (popx/op/adamupdaterx.cpp); the rest is in float32.

    Cost: the increment of the step, then one fused expression over all operands.
    """

    type: ClassVar[str] = "AdamUpdater"

    mode = Attribute(choice(*_MODES), "adam")
    has_weight = Attribute(FLAG, False)
    has_step = Attribute(FLAG, False)
    weight_decay = Attribute(optional(NUMBER), None)
    beta1 = Attribute(optional(NUMBER), None)
    beta2 = Attribute(optional(NUMBER), None)
    epsilon = Attribute(optional(NUMBER), None)
    weight_decay_input = Attribute(optional(INTEGER), None)
    beta1_input = Attribute(optional(INTEGER), None)
    beta2_input = Attribute(optional(INTEGER), None)
    epsilon_input = Attribute(optional(INTEGER), None)

    def infer(self) -> list[TensorSpec]:
        """The spec of the weight, or of ``m``; raises for an unknown mode, unequal shapes and missing operands or
        factors."""
        m, v = self.inputs[:2]
        self.floating(m, v)
        self.same_shape(m, v)
        if self._decays and not self.has_weight:
            raise IrError(f"{self.where()}: weight decay needs the weight as an input")
        for name in ("weight_decay", "epsilon", *self._betas()):
            self.check_factor(name)
        for name in self._betas():
            if self.factor_index(name) is None and getattr(self, name) is None:
                raise IrError(f"{self.where()}: bias correction (a time step) needs {name}")
        if self.has_step:
            step = self.inputs[self.step_index]
            self.require(
                step.spec.elements == 1, f"time_step {step.id!r} has shape {step.shape}; one element is needed"
            )
        if not self.has_weight:
            return [self.like(m)]
        weight = self.inputs[2]
        self.floating(weight)
        self.same_shape(m, weight)
        return [self.like(weight)]

    @property
    def step_index(self) -> int:
        """Input index of the time step."""
        return 2 + self.has_weight

    def _betas(self) -> tuple[str, ...]:
        if not self.has_step:
            return ()
        return ("beta1",) if self.mode == "adamax" else ("beta1", "beta2")

    def modified_inputs(self) -> tuple[int, ...]:
        """The time step, if there is one."""
        return (self.step_index,) if self.has_step else ()

    def _corrections(self, inputs: Sequence[np.ndarray]) -> Callable[[int], tuple[float, float]]:
        """For a replica, ``(1 - beta1**t, 1 - beta2**t)`` at the present step; 1 where there is no correction."""
        if not self.has_step:
            return lambda replica: (1.0, 1.0)
        steps = inputs[self.step_index].reshape(-1)
        beta1 = self.reader("beta1", inputs)
        if self.mode == "adamax":
            return lambda r: (1.0 - beta1(r) ** float(steps[r]), 1.0)
        beta2 = self.reader("beta2", inputs)
        return lambda r: (1.0 - beta1(r) ** float(steps[r]), 1.0 - beta2(r) ** float(steps[r]))

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Count the time step, then the step in pieces in float32, rounded once."""
        m, v, out = inputs[0], inputs[1], outputs[0]
        weight = inputs[2] if self.has_weight else m
        parts = pieces([out, m, v, weight], per_replica=True)
        size = largest(parts)
        first, second = (env.scratch((size,), np.float32, slot) for slot in (0, 1))
        bound = [
            (b, temporary(first, b.views[0]), temporary(second, b.views[0]))
            for b in in_float32(parts, _scratch(env), 2)
        ]
        epsilon, corrections = self.reader("epsilon", inputs, 0.0), self._corrections(inputs)
        decay = self.reader("weight_decay", inputs, 0.0)
        step = inputs[self.step_index] if self.has_step else None
        root = self.mode != "adamax"
        corrected = self._corrected_half([b for b, *_ in bound], size, env) if m.dtype == np.float16 else None

        def run() -> None:
            if step is not None:
                np.add(step, 1, out=step, casting="unsafe")
            for number, (piece, tmp, extra) in enumerate(bound):
                for fill in piece.fill:
                    fill()
                r, (po, pm, pv, pw) = piece.replica, piece.views
                c1, c2 = corrections(r)
                if corrected is not None:
                    c1 = corrected(number, c1)
                _adam_piece(po, pm, pv, pw, tmp, extra, c1, c2, epsilon(r), decay(r), root)
                for rounding in piece.round:
                    rounding()

        return run

    def _corrected_half(
        self, bound: Sequence[Bound], size: int, env: Environment
    ) -> Callable[[int, float], float] | None:
        """What corrects the first moment of a piece in half precision, ``half(m / half(c1))``, and leaves 1 to correct;
        None without time step."""
        if not self.has_step:
            return None
        narrow, rounds = env.scratch((size,), np.float16, 8), list[tuple[np.ndarray, Step, Step]]()
        for _, wide, *_ in (piece.views for piece in bound):
            part = temporary(narrow, wide)
            rounds.append((wide, half.copy(part, wide), half.copy(wide, part)))

        def correct(number: int, c1: float) -> float:
            wide, to_half, to_float = rounds[number]
            np.divide(wide, scalar(np.float16(c1)), out=wide)
            to_half()
            to_float()
            return 1.0

        return correct

    def work(self) -> Sequence[Work]:
        """The increment of the time step, if there is one, and one fused expression over all operands."""
        m = self.inputs[0]
        count, works = m.spec.elements, list[Work]()
        if self.has_step:
            step = self.inputs[self.step_index]
            works.append(vertices.broadcast_scalar("ADD", step.dtype, 1, in_place=True))
        tensor_factors = [n for n in ("weight_decay", "epsilon", "beta1", "beta2") if self.factor_index(n) is not None]
        operations = 2 + self._moment_operations() + 2 * self._decays
        formula = fused_cycles(m.dtype, 2 + self.has_weight, int(self.has_step) + len(tensor_factors), operations)
        types = type_names(*(t.dtype for t in self.inputs[: 2 + self.has_weight]))
        works.append(
            Vertices(f"popops::map::AdamUpdater_{self.mode}<{types}>", count, formula, flops=operations * count)
        )
        return works

    @property
    def _decays(self) -> bool:
        return self.factor_index("weight_decay") is not None or bool(self.weight_decay)

    def _moment_operations(self) -> int:
        """Divide, subtract and power per corrected moment, a lone divide otherwise; and the square root."""
        corrected = len(self._betas())
        return 3 * corrected + (2 - corrected) + (self.mode != "adamax")


def _adam_piece(
    out: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    weight: np.ndarray,
    tmp: np.ndarray,
    extra: np.ndarray,
    c1: float,
    c2: float,
    epsilon: float,
    decay: float,
    root: bool,
) -> None:
    """One piece of :class:`AdamUpdater`: ``out = (m / c1) / (sqrt(v / c2) + epsilon) + decay * weight``."""
    np.multiply(v, scalar(1.0 / c2), out=tmp)
    if root:
        np.sqrt(tmp, out=tmp)
    np.add(tmp, scalar(epsilon), out=tmp)
    np.divide(m, tmp, out=tmp)
    if decay == 0.0:
        np.multiply(tmp, scalar(1.0 / c1), out=out)
        return
    np.multiply(tmp, scalar(1.0 / c1), out=tmp)
    np.multiply(weight, scalar(decay), out=extra)
    np.add(tmp, extra, out=out)
