"""In-place ops: the operand's storage changes, and with it every tensor that shares it."""

from typing import Any

import numpy as np

from ipuperf.popxl import ops
from ipuperf.popxl.ops import var_updates

from ..program import Instruction
from ..scope import FLOATS, NUMBERS, Scope, Spec, broadcasts
from ..storage import Shadow
from .base import Kind, memory, read_all
from .elementwise import clipped, gelu, gelu_by_erf

ACTIVATIONS = {"relu_": lambda x: np.maximum(x, 0), "gelu_": gelu, "geluerf_": gelu_by_erf}


class Activate(Kind):
    """A function in place."""

    weight = 1.5

    def draw(self, scope: Scope) -> bool:
        x = scope.pick_of(FLOATS, mutable=True)
        if x is None:
            return False
        op = scope.random.choice(list(ACTIVATIONS))
        scope.change("activate", x, [], op == "relu_", op=op)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return getattr(ops, ins.attributes["op"])(operands[0])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        (x,), op = operands, ins.attributes["op"]
        x.write(ACTIVATIONS[op](x.read()), inexact=op != "relu_")
        return x.view(x.addresses)


class Addinplace(Kind):
    """``x += y``, ``y`` broadcast, also where both share storage."""

    weight = 2.5

    def draw(self, scope: Scope) -> bool:
        x = scope.pick_of(NUMBERS, mutable=True)
        y = x and scope.pick(lambda s: s.dtype == x.dtype and broadcasts(s.shape, x.shape) == x.shape)
        if x is None or y is None:
            return False
        scope.change("addinplace", x, [y], True)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return ops.add_(*operands)

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        x = operands[0]
        a, b = read_all(operands)
        x.write(a + b)
        return x.view(x.addresses)


class Factored(Kind, family=True):
    """Base of updates by a factor: a number, or a 0-d tensor that is the last operand."""

    def factor(self, scope: Scope, low: float, high: float) -> tuple[list[Spec], float | None]:
        """A tensor or a number."""
        if scope.random.random() < 0.5:
            return [], round(scope.random.uniform(low, high), 2)
        x = scope.pick(lambda s: s.shape == () and s.dtype == "float32")
        if x is None:
            seed = scope.seed()
            x = scope.specs[scope.make("constant", [], (), "float32", shape=(), dtype="float32", seed=seed)]
        return [clipped(scope, x, low, high)], None


def _as_factor(ins: Instruction, values: list[Any]) -> Any:
    """The number of the instruction, else its last operand."""
    number = ins.attributes["factor"]
    return values[-1] if number is None else number


class Scaledadd(Factored):
    """``a * x + y`` with a factor ``a``, in place or not."""

    weight = 2

    def draw(self, scope: Scope) -> bool:
        place = scope.random.random() < 0.7
        x = scope.pick_of(FLOATS[:2], mutable=place)
        y = x and scope.pick(lambda s: s.dtype == x.dtype and s.shape == x.shape)
        if x is None or y is None:
            return False
        tensor, number = self.factor(scope, -1, 1)
        more = {"factor": number, "place": place, "side": scope.random.choice("ab")}
        if place:
            scope.change("scaledadd", x, [y, *tensor], **more)
        else:
            scope.make("scaledadd", [x, y, *tensor], x.shape, x.dtype, **more)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        function = ops.scaled_add_ if ins.attributes["place"] else ops.scaled_add
        return function(operands[0], operands[1], **{ins.attributes["side"]: _as_factor(ins, operands)})

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        values = read_all(operands)
        factor, (x, y) = _as_factor(ins, values), values[:2]
        found = factor * x + y if ins.attributes["side"] == "a" else x + factor * y
        if not ins.attributes["place"]:
            return memory(operands).new(found, operands[0].dtype, inexact=True)
        operands[0].write(found, inexact=True)
        return operands[0].view(operands[0].addresses)


ACCUMULATORS = {
    "accumulate_": lambda t, x, f: t + f * x,
    "accumulate_square_": lambda t, x, f: t + f * x * x,
    "accumulate_mean_": lambda t, x, f: f / (f + 1) * t + x / (f + 1),
    "accumulate_moving_average_": lambda t, x, f: f * t + (1 - f) * x,
    "accumulate_moving_average_square_": lambda t, x, f: f * t + (1 - f) * x * x,
}


class Accumulate(Factored):
    """The accumulators of ``var_updates``; float16 may go into float32."""

    weight = 3

    def draw(self, scope: Scope) -> bool:
        x = scope.pick_of(FLOATS[:2], mutable=True)
        y = x and scope.pick(
            lambda s: s.shape == x.shape and (s.dtype == x.dtype or (x.dtype, s.dtype) == ("float32", "float16"))
        )
        if x is None or y is None:
            return False
        op = scope.random.choice(list(ACCUMULATORS))
        if "square" in op:
            y = clipped(scope, y, -4.0, 4.0)
        tensor, number = self.factor(scope, 0.1, 0.9)
        scope.change("accumulate", x, [y, *tensor], op=op, factor=number)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return getattr(var_updates, ins.attributes["op"])(operands[0], operands[1], _as_factor(ins, operands))

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        values = read_all(operands)
        found = ACCUMULATORS[ins.attributes["op"]](values[0], values[1], _as_factor(ins, values))
        operands[0].write(found, inexact=True)
        return operands[0].view(operands[0].addresses)


class Scale(Factored):
    """An accumulator scaled, or set to zero."""

    def draw(self, scope: Scope) -> bool:
        x = scope.pick_of(FLOATS[:2], mutable=True)
        if x is None:
            return False
        tensor, number = self.factor(scope, -1, 1)
        scope.change("scale", x, tensor, factor=scope.random.choice([number, number, 0.0]) if not tensor else None)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        if ins.attributes["factor"] == 0:
            return var_updates.accumulator_zero_(operands[0])
        return var_updates.accumulator_scale_(operands[0], _as_factor(ins, operands))

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        values = read_all(operands)
        found = values[0] * _as_factor(ins, values)
        operands[0].write(np.zeros_like(found) if ins.attributes["factor"] == 0 else found, inexact=True)
        return operands[0].view(operands[0].addresses)


class Copyvar(Kind):
    """``x[...] = y``."""

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: s.mutable)
        y = x and scope.pick(lambda s: s.dtype == x.dtype and s.shape == x.shape)
        if x is None or y is None:
            return False
        scope.change("copyvar", x, [y], True)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return var_updates.copy_var_update_(*operands)

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        operands[0].write(operands[1].read())
        return operands[0].view(operands[0].addresses)


class Increment(Kind):
    """``(x + n) % m`` of a counter, in place or not; the remainder has the sign of ``x + n``, as in C."""

    def draw(self, scope: Scope) -> bool:
        place = scope.random.random() < 0.6
        x = scope.pick_of(("int32", "uint32"), mutable=place)
        if x is None:
            return False
        more = {"place": place, "by": scope.random.randint(1, 3), "modulus": scope.random.randint(2, 5)}
        if place:
            scope.change("increment", x, [], True, **more)
        else:
            scope.make("increment", [x], x.shape, x.dtype, True, **more)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        function = ops.increment_mod_ if ins.attributes["place"] else ops.increment_mod
        return function(operands[0], ins.attributes["by"], ins.attributes["modulus"])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        x, a = operands[0], ins.attributes
        found = np.fmod(x.read() + np.asarray(a["by"], x.dtype), np.asarray(a["modulus"], x.dtype))
        if not a["place"]:
            return memory(operands).new(found, x.dtype)
        x.write(found)
        return x.view(x.addresses)


class Adam(Kind):
    """The update term of Adam from two moments (the second is squared first)."""

    weight = 0.7

    def draw(self, scope: Scope) -> bool:
        m = scope.pick_of(("float32",))
        v = m and scope.pick(lambda s: s.dtype == m.dtype and s.shape == m.shape)
        w = m and scope.pick(lambda s: s.dtype == m.dtype and s.shape == m.shape)
        if m is None or v is None or w is None:
            return False
        v = clipped(scope, v, -4.0, 4.0)
        square = scope.specs[scope.make("binary", [v, v], v.shape, v.dtype, True, op="mul")]
        scope.make("adam", [clipped(scope, m, -4.0, 4.0), square, w], m.shape, m.dtype)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return var_updates.adam_updater(*operands, weight_decay=0.1, epsilon=0.1)

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        m, v, w = read_all(operands)
        return memory(operands).new(m / (np.sqrt(v) + 0.1) + 0.1 * w, operands[0].dtype, inexact=True)
