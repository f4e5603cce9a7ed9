"""The Adam family: the step computed from the moments, and the op that applies it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ipuperf.ir import IrError, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, NUMBER, Attribute, choice, optional

from .. import half, vertices
from ..base import Arrays, Environment, Kernel
from ..binding import sequence
from ..blocks import Bound, Piece, bind_weighted_sum, by_pieces, in_float32, largest, pieces, scalar, temporary
from ..half import Step
from ..work import Vertices, Work
from .optimiser import UpdateOp, scratch_of
from .update_vertices import fused_cycles, scaled_add_cycles, type_names

_MODES = ("adam", "adamax", "lamb")


def _power(beta: float, steps: float) -> float:
    """``beta ** steps``. As on the device, a negative ``beta`` gives NaN unless the steps are whole."""
    return math.nan if beta < 0 and not steps.is_integer() else beta**steps


class AdamUpdater(UpdateOp):
    """The Adam family's step from its two moments.

    Inputs ``m, v[, weight][, time_step]`` (``has_weight``, ``has_step``). Attributes: ``mode``, ``weight_decay``,
    ``beta1``, ``beta2``, ``epsilon`` as floats, or ``<name>_input`` with an input index. The result has ``weight``'s
    type, without weight ``m``'s: ``m' / (sqrt(v') + epsilon) + weight_decay * weight``. AdaMax uses ``v`` itself
    instead of ``sqrt(v')``. A time step is first incremented in place; then ``m' = m / (1 - beta1**t)`` and ``v' = v /
    (1 - beta2**t)``. Without time step ``m' = m`` and ``v' = v``.

    A half ``m`` is corrected in half, as in PopART's expression (popx/op/adamupdaterx.cpp); everything else is in
    float32.

    Cost: the increment of the step, then one fused expression over all operands.
    """

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

    def _corrections(self, inputs: Arrays) -> Callable[[int], tuple[float, float]]:
        """For a replica, ``(1 - beta1**t, 1 - beta2**t)`` at the current step; 1 where there is no correction."""
        if not self.has_step:
            return lambda replica: (1.0, 1.0)
        steps = inputs[self.step_index].reshape(-1)
        beta1 = self.reader("beta1", inputs)
        if self.mode == "adamax":
            return lambda r: (1.0 - _power(beta1(r), float(steps[r])), 1.0)
        beta2 = self.reader("beta2", inputs)
        return lambda r: (1.0 - _power(beta1(r), float(steps[r])), 1.0 - _power(beta2(r), float(steps[r])))

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Increment the time step, then compute the step in pieces in float32, rounded once."""
        m, v, out = inputs[0], inputs[1], outputs[0]
        # Without weight there is no decay; `m` stands in so that all pieces have four views.
        weight = inputs[2] if self.has_weight else m
        # Factors and steps may differ between replicas, so no piece spans two of them.
        parts = pieces([out, m, v, weight], per_replica=True)
        readers = (self._corrections(inputs), self.reader("epsilon", inputs, 0.0))
        decay = self.reader("weight_decay", inputs, 0.0)
        # PopART corrects a half moment in half, which rounds otherwise than float32.
        in_half = self.has_step and m.dtype == np.float16

        def bind(some: Sequence[Piece], scratch: Callable[[int, int], np.ndarray]) -> Kernel:
            size = largest(some)
            term, decay_term = scratch(size, 0), scratch(size, 1)
            bound = [
                (b, temporary(term, b.views[0]), temporary(decay_term, b.views[0]))
                for b in in_float32(some, scratch, 2)
            ]
            corrected = _corrected_half([b for b, *_ in bound], scratch(size, 8)) if in_half else None
            return self._steps(bound, *readers, decay, corrected)

        update = by_pieces(parts, bind, scratch_of(env))
        if not self.has_step:
            return update
        step = inputs[self.step_index]
        # The step counts before it is used, so the first correction is that of step 1.
        return sequence(partial(np.add, step, 1, out=step, casting="unsafe"), update)

    def _steps(
        self,
        bound: Sequence[tuple[Bound, np.ndarray, np.ndarray]],
        corrections: Callable[[int], tuple[float, float]],
        epsilon: Callable[[int], float],
        decay: Callable[[int], float],
        corrected: Callable[[int, float], float] | None,
    ) -> Kernel:
        """The steps of pieces with their temporaries, one after the other."""
        root = self.mode != "adamax"

        def run() -> None:
            for number, (piece, term_view, decay_view) in enumerate(bound):
                for fill in piece.fill:
                    fill()
                replica, (piece_out, piece_m, piece_v, piece_weight) = piece.replica, piece.views
                m_correction, v_correction = corrections(replica)
                if corrected is not None:
                    m_correction = corrected(number, m_correction)
                _adam_piece(
                    piece_out,
                    piece_m,
                    piece_v,
                    piece_weight,
                    term_view,
                    decay_view,
                    m_correction,
                    v_correction,
                    epsilon(replica),
                    decay(replica),
                    root,
                )
                for rounding in piece.round:
                    rounding()

        return run

    def work(self) -> Sequence[Work]:
        """The increment of the time step, if there is one, and one fused expression over all operands."""
        m = self.inputs[0]
        count, works = m.spec.elements, list[Work]()
        if self.has_step:
            step = self.inputs[self.step_index]
            works.append(vertices.broadcast_scalar("ADD", step.dtype, 1, in_place=True))
        # A factor that is a tensor is one more scalar operand of the expression.
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
        """Divide, subtract and power for each corrected moment, a single divide for others, and the square root."""
        corrected = len(self._betas())
        return 3 * corrected + (2 - corrected) + (self.mode != "adamax")


def _corrected_half(bound: Sequence[Bound], memory: np.ndarray) -> Callable[[int, float], float]:
    """A function that corrects the first moment of a piece in half precision, ``half(m / half(c1))``.

    It returns 1, the correction that remains. ``memory`` is temporary.
    """
    narrow, rounds = memory.view(np.float16), list[tuple[np.ndarray, Step, Step]]()
    for _, wide, *_ in (piece.views for piece in bound):
        part = temporary(narrow, wide)
        rounds.append((wide, half.copy(part, wide), half.copy(wide, part)))

    def correct(number: int, m_correction: float) -> float:
        wide, to_half, to_float = rounds[number]
        np.divide(wide, scalar(np.float16(m_correction)), out=wide)
        to_half()
        to_float()
        return 1.0

    return correct


def _adam_piece(
    out: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    weight: np.ndarray,
    term: np.ndarray,
    decay_term: np.ndarray,
    m_correction: float,
    v_correction: float,
    epsilon: float,
    decay: float,
    root: bool,
) -> None:
    """One piece of :class:`AdamUpdater`.

    ``out = (m / m_correction) / (sqrt(v / v_correction) + epsilon) + decay * weight``, without the root unless
    ``root``. ``term`` and ``decay_term`` are temporaries.
    """
    # The corrections are numbers, so a product with
    # the inverse replaces a division by element.
    np.multiply(v, scalar(1.0 / v_correction), out=term)
    if root:
        np.sqrt(term, out=term)
    np.add(term, scalar(epsilon), out=term)
    np.divide(m, term, out=term)
    # Without decay the last product can be written to the result directly.
    if decay == 0.0:
        np.multiply(term, scalar(1.0 / m_correction), out=out)
        return
    np.multiply(term, scalar(1.0 / m_correction), out=term)
    np.multiply(weight, scalar(decay), out=decay_term)
    np.add(term, decay_term, out=out)


class AdamVarUpdate(UpdateOp):
    """``w -= lr * min(sqrt(r1), max_norm) / sqrt(r2) * u`` in place; the quotient is 1 where ``r1``, ``r2`` or
    ``max_norm`` is 0.

    The output is ``w``.

    Inputs ``w, u, r1, r2[, lr][, max_norm]``: the weight, its updater, their squared norms, the learning rate and the
    limit of the weight's norm. The last two are tensors at ``lr_input`` and ``max_norm_input``, or attributes (no
    ``max_norm``: no limit). Cost: the expression of the factor and ``ScaledAdd`` (popart:
    willow/src/popx/op/adamvarupdatex.cpp).
    """

    in_place = True

    lr = Attribute(optional(NUMBER), None)
    max_norm = Attribute(optional(NUMBER), None)
    lr_input = Attribute(optional(INTEGER), None)
    max_norm_input = Attribute(optional(INTEGER), None)

    def infer(self) -> list[TensorSpec]:
        """The weight's spec. Raises for integers, unequal shapes, and norms or rates that are not scalars."""
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

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """A weighted sum in float32 whose factor is read in each run."""
        rate, max_norm = self.reader("lr", inputs), self.reader("max_norm", inputs, math.inf)
        weight_squares, update_squares = inputs[2:4]

        def coefficients(replica: int) -> tuple[float, float]:
            weight_square, update_square = (
                float(weight_squares[replica].reshape(-1)[0]),
                float(update_squares[replica].reshape(-1)[0]),
            )
            limit = max_norm(replica)
            # A norm of 0 says nothing about the size of the step, so the ratio is 1.
            ratio = (
                float(min(np.sqrt(weight_square), limit) / np.sqrt(update_square))
                if weight_square and update_square and limit
                else 1.0
            )
            return 1.0, -rate(replica) * ratio

        return bind_weighted_sum(inputs[0], inputs[0], inputs[1], coefficients, False, False, scratch_of(env))

    def work(self) -> Sequence[Work]:
        """The factor, one element on one tile, then the ScaledAdd with a factor from memory."""
        weight, updater = self.inputs[:2]
        count, types = weight.spec.elements, type_names(weight.dtype, updater.dtype)
        # A limit of the norm is one more operation.
        operations = 7 if self.max_norm is None and self.max_norm_input is None else 8
        cycles = fused_cycles(self.inputs[2].dtype, len(self.inputs) - 2, 0, operations)
        factor = Vertices("popops::map::AdamVarUpdate_factor", 1, cycles, flops=operations)
        formula = scaled_add_cycles(weight.dtype, updater.dtype, True, False)
        return [factor, Vertices(f"popops::ScaledAddSupervisor<{types},false>", count, formula, flops=2 * count)]
