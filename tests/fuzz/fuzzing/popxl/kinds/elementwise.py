"""Element-wise instructions, casts, reductions, softmax, products."""

import math
import operator
from typing import Any

import numpy as np

import ipuperf.popxl as popxl
from ipuperf.popxl import ops

from ..program import Instruction
from ..scope import FLOATS, INTS, LARGEST, NUMBERS, SIGNED, UNSIGNED, Scope, Spec, broadcasts, data
from ..storage import ROUNDING, Shadow
from .base import Kind, memory, read_all

_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: np.ndarray) -> np.ndarray:
    """GELU by tanh."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_by_erf(x: np.ndarray) -> np.ndarray:
    """GELU by the error function."""
    return 0.5 * x * (1 + _erf(x / math.sqrt(2))) if x.size else x


SMOOTH = {"tanh": np.tanh, "sin": np.sin, "cos": np.cos, "gelu": gelu, "geluerf": gelu_by_erf}
STEADY = {
    "relu": lambda x: np.maximum(x, 0),
    "abs": np.abs,
    "negate": np.negative,
    "detach": np.copy,
    "identity": np.copy,
}
JUMPING = {"sign": np.sign, "floor": np.floor, "ceil": np.ceil, "isnan": np.isnan, "isinf": np.isinf,
           "isfinite": np.isfinite}  # fmt: skip
UNARY = {**SMOOTH, **STEADY, **JUMPING, "logical_not": np.logical_not, "exp": np.exp, "log": np.log, "log2": np.log2,
         "sqrt": np.sqrt}  # fmt: skip
BOUNDED = {"exp": (-2.0, 2.0), "log": (0.5, 8.0), "log2": (0.5, 8.0), "sqrt": (0.0, 8.0)}
"""Functions of operands that are limited first."""


class Constant(Kind):
    """Host data as a constant of the graph."""

    def draw(self, scope: Scope) -> bool:
        dtype = scope.random.choice(NUMBERS[:2] + NUMBERS[3:4] + ("bool", "uint32"))
        shape = scope.shape()
        scope.make("constant", [], shape, dtype, True, shape=shape, dtype=dtype, seed=scope.seed())
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        a = ins.attributes
        return popxl.constant(data(a["shape"], a["dtype"], a["seed"]), getattr(popxl, a["dtype"]))

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        a = ins.attributes
        array = data(a["shape"], a["dtype"], a["seed"])
        return world.memory.new(np.broadcast_to(array, (world.memory.rows, *array.shape)), a["dtype"])


class Init(Kind):
    """Zeros; the only way to a tensor without elements besides an empty slice."""

    weight = 0.5

    def draw(self, scope: Scope) -> bool:
        dtype, shape = scope.random.choice(FLOATS[:2] + INTS[:1]), scope.shape(empty=True)
        scope.make("init", [], shape, dtype, True, shape=shape, dtype=dtype)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return ops.init(ins.attributes["shape"], getattr(popxl, ins.attributes["dtype"]))

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        a = ins.attributes
        return world.memory.new(np.zeros((world.memory.rows, *a["shape"])), a["dtype"])


class Unary(Kind):
    """A function of one operand."""

    weight = 4

    def draw(self, scope: Scope) -> bool:
        op = scope.random.choice(list(UNARY))
        allowed = {"logical_not": ("bool",), "abs": FLOATS + SIGNED, "negate": FLOATS + SIGNED, "sign": FLOATS + SIGNED,
                   "identity": (*NUMBERS, "bool"), "detach": (*NUMBERS, "bool")}.get(op, FLOATS)  # fmt: skip
        x = scope.pick_of(allowed, exact=op in JUMPING)
        if x is None:
            return False
        if op in BOUNDED:
            x = clipped(scope, x, *BOUNDED[op])
        dtype = "bool" if op.startswith("is") else x.dtype
        scope.make("unary", [x], x.shape, dtype, op not in SMOOTH and op not in ("exp", "log", "log2"), op=op)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return getattr(ops, ins.attributes["op"])(operands[0])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        op, x = ins.attributes["op"], operands[0]
        dtype = "bool" if op.startswith("is") else x.dtype
        inexact = op in SMOOTH or op in ("exp", "log", "log2")
        return memory(operands).new(UNARY[op](x.read()), dtype, inexact=inexact)


def clipped(scope: Scope, x: Spec, low: float, high: float) -> Spec:
    """``x`` within limits, as a new tensor."""
    return scope.specs[scope.make("clip", [x], x.shape, x.dtype, True, low=low, high=high)]


class Clip(Kind):
    """Limits."""

    weight = 2

    def draw(self, scope: Scope) -> bool:
        x = scope.pick_of(FLOATS)
        if x is not None:
            clipped(scope, x, scope.random.choice([-4.0, -1.0, 0.0]), scope.random.choice([0.5, 4.0]))
        return x is not None

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return ops.clip(operands[0], ins.attributes["low"], ins.attributes["high"])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        x = operands[0]
        return memory(operands).new(np.clip(x.read(), ins.attributes["low"], ins.attributes["high"]), x.dtype)


def divided(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Quotient; integers truncate."""
    return np.trunc(x / y.astype(np.float64)) if x.dtype.kind in "iu" else x / y


BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "div": divided,
    "fmod": np.fmod,
    "equal": np.equal,
    "greater": np.greater,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}
LOGICAL = ("logical_and", "logical_or")
COMPARING = ("equal", "greater")


class Binary(Kind):
    """A function of two operands that broadcast."""

    weight = 7

    def draw(self, scope: Scope) -> bool:
        op = scope.random.choice([*BINARY, "add", "sub", "mul", "add", "mul"])
        jumps = op in (*COMPARING, "fmod")
        allowed = ("bool",) if op in LOGICAL else NUMBERS if op not in COMPARING else (*NUMBERS, "bool")
        x = scope.pick_of(allowed, exact=jumps)
        y = x and scope.pick(
            lambda s: s.dtype == x.dtype and broadcasts(s.shape, x.shape) is not None and (s.exact or not jumps)
        )
        if x is None or y is None:
            return False
        if op in ("div", "fmod"):
            y = away_from_zero(scope, y)
        if scope.random.random() < 0.3 and op not in ("div", "fmod"):
            x, y = y, x
        dtype = "bool" if op in COMPARING else x.dtype
        shape = broadcasts(x.shape, y.shape)
        assert shape is not None
        scope.make("binary", [x, y], shape, dtype, True, op=op)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return getattr(ops, ins.attributes["op"])(*operands)

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        op = ins.attributes["op"]
        dtype = "bool" if op in COMPARING else operands[0].dtype
        return memory(operands).new(BINARY[op](*read_all(operands)), dtype)


def away_from_zero(scope: Scope, y: Spec) -> Spec:
    """``maximum(y, 1)``: a divisor."""
    return scope.specs[scope.make("host", [y], y.shape, y.dtype, True, op="maximum", number=1)]


OPERATORS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "maximum": ops.maximum}


class Host(Kind):
    """A tensor and a Python number, through Python's operators; ``first``: the number stands first."""

    weight = 2

    def draw(self, scope: Scope) -> bool:
        x = scope.pick_of(NUMBERS)
        if x is None:
            return False
        number: float = scope.random.choice([0, 1, 2, 3])
        if x.dtype in FLOATS:
            number = round(scope.random.uniform(-2, 2), 2)
        op, first = scope.random.choice(list(OPERATORS)), scope.random.random() < 0.3
        scope.make("host", [x], x.shape, x.dtype, True, op=op, number=number, first=first)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        pair = [operands[0], ins.attributes["number"]]
        return OPERATORS[ins.attributes["op"]](*(pair[::-1] if ins.attributes.get("first") else pair))

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        x = operands[0].read()
        number = np.asarray(ins.attributes["number"], operands[0].dtype).astype(x.dtype)
        pair = [x, number][:: -1 if ins.attributes.get("first") else 1]
        return memory(operands).new(BINARY[ins.attributes["op"]](*pair), operands[0].dtype)


class Where(Kind):
    """A choice by a bool."""

    def draw(self, scope: Scope) -> bool:
        mask, x = scope.pick_of(("bool",)), scope.pick_of((*NUMBERS, "bool"))
        y = x and scope.pick_of((x.dtype,))
        if mask is None or x is None or y is None:
            return False
        shape = broadcasts(mask.shape, x.shape, y.shape)
        if shape is None:
            return False
        scope.make("where", [mask, x, y], shape, x.dtype, True)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return ops.where(*operands)

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        return memory(operands).new(np.where(*read_all(operands)), operands[1].dtype)


class Cast(Kind):
    """Another dtype; floats are limited before they become integers."""

    weight = 2

    def draw(self, scope: Scope) -> bool:
        to = scope.random.choice([*NUMBERS[:2], *NUMBERS, "bool"])
        x = scope.pick(lambda s: s.exact or to in FLOATS)
        if x is None:
            return False
        if x.dtype in FLOATS and to in INTS:
            x = clipped(scope, x, 0.0 if to in UNSIGNED else -100.0, 100.0)
        scope.make("cast", [x], x.shape, to, True, to=to)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return ops.cast(operands[0], getattr(popxl, ins.attributes["to"]))

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        (x,), to = operands, ins.attributes["to"]
        value = x.read()
        # The disturbances of several roundings may cancel; a finer type would then allow no distance at all.
        if ROUNDING.get(to, 1) < ROUNDING.get(x.dtype, 0) and not np.array_equal(*np.split(value, 2)):
            value = x.memory.disturbed(value, x.dtype)
        return x.memory.new(value, to)


REDUCTIONS = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "sumsquare": lambda x, axis, keepdims: np.sum(x * x, axis=axis, keepdims=keepdims),
    "l1": lambda x, axis, keepdims: np.sum(np.abs(x), axis=axis, keepdims=keepdims),
    "l2": lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
}


def _shifted(axes: Any, rank: int) -> tuple[int, ...]:
    """Axes of a value with rows in front."""
    if axes is None:
        return tuple(range(1, rank + 1))
    return tuple(a % rank + 1 for a in (axes if isinstance(axes, list) else [axes]))


class Reduce(Kind):
    """A reduction over some axes, all, or none of a 0-d tensor."""

    weight = 3

    def draw(self, scope: Scope) -> bool:
        r, op = scope.random, scope.random.choice(list(REDUCTIONS))
        x = scope.pick_of(FLOATS if op in ("mean", "l2") else NUMBERS)
        if x is None or (op in ("max", "min", "mean") and not x.elements):
            return False
        rank = len(x.shape)
        several = sorted(r.sample(range(rank), r.randint(1, rank))) if rank else None
        axes = r.choice([None, several, r.randrange(-rank, rank) if rank else None])
        keep = r.random() < 0.4
        shape = np.sum(np.zeros((1, *x.shape)), axis=_shifted(axes, rank), keepdims=keep).shape[1:]
        scope.make("reduce", [x], shape, x.dtype, op in ("max", "min"), op=op, axes=axes, keep=keep)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return getattr(ops, ins.attributes["op"])(operands[0], ins.attributes["axes"], ins.attributes["keep"])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        x, a = operands[0], ins.attributes
        axes = _shifted(a["axes"], len(x.shape))
        found = REDUCTIONS[a["op"]](x.read(), axis=axes, keepdims=a["keep"])
        return memory(operands).new(found, x.dtype, inexact=a["op"] not in ("max", "min"))


class Arg(Kind):
    """The place of an extreme."""

    weight = 0.7

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: bool(s.shape) and s.elements > 0 and s.exact and s.dtype in NUMBERS)
        if x is None:
            return False
        r, rank = scope.random, len(x.shape)
        axis, keep = r.randrange(-rank, rank), r.random() < 0.4
        shape = np.sum(np.zeros(x.shape), axis=axis, keepdims=keep).shape
        scope.make("arg", [x], shape, "int32", True, op=r.choice(["argmax", "argmin"]), axis=axis, keep=keep)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return getattr(ops, ins.attributes["op"])(operands[0], ins.attributes["axis"], ins.attributes["keep"])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        x, a = operands[0], ins.attributes
        (axis,) = _shifted(a["axis"], len(x.shape))
        found = getattr(np, a["op"])(x.read(), axis=axis)
        return memory(operands).new(np.expand_dims(found, axis) if a["keep"] else found, "int32")


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """Softmax along an axis."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


class Softmax(Kind):
    """Softmax along an axis."""

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: bool(s.shape) and s.elements > 0 and s.dtype in FLOATS)
        if x is None:
            return False
        axis = scope.random.randrange(-len(x.shape), len(x.shape))
        scope.make("softmax", [x], x.shape, x.dtype, axis=axis)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return ops.softmax(operands[0], ins.attributes["axis"])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        x = operands[0]
        (axis,) = _shifted(ins.attributes["axis"], len(x.shape))
        return memory(operands).new(softmax(x.read(), axis), x.dtype, inexact=True)


class Loss(Kind):
    """Negative log likelihood of the softmax of logits."""

    weight = 0.7

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: len(s.shape) == 2 and s.elements > 0 and s.dtype in FLOATS[:2])
        if x is None:
            return False
        labels = [scope.random.randrange(x.shape[1]) for _ in range(x.shape[0])]
        reduction = scope.random.choice(["mean", "sum", "none"])
        shape = x.shape[:1] if reduction == "none" else ()
        scope.make("loss", [clipped(scope, x, -4.0, 4.0)], shape, x.dtype, labels=labels, reduction=reduction)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        labels = popxl.constant(np.array(ins.attributes["labels"]), popxl.int32)
        return ops.nll_loss(ops.softmax(operands[0], -1), labels, reduction=ins.attributes["reduction"])

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        x, labels = operands[0], ins.attributes["labels"]
        chosen = softmax(x.read(), -1)[:, np.arange(len(labels)), labels]
        losses = -np.log(chosen.astype(x.dtype).astype(np.float64))
        reduce = {"mean": np.mean, "sum": np.sum, "none": lambda v, axis: v}[ins.attributes["reduction"]]
        return memory(operands).new(reduce(losses, axis=1), x.dtype, inexact=True)


class Matmul(Kind):
    """A matrix product with broadcast groups, of limited operands; vectors too."""

    weight = 3

    def draw(self, scope: Scope) -> bool:
        x = scope.pick(lambda s: bool(s.shape) and s.elements > 0 and s.dtype in FLOATS)
        y = x and scope.pick(lambda s: s.dtype == x.dtype and _product(x.shape, s.shape) is not None)
        if x is None:
            return False
        if y is None:
            shape = (x.shape[-1], scope.random.choice([1, 3, 5]))
            made = scope.make("constant", [], shape, x.dtype, True, shape=shape, dtype=x.dtype, seed=scope.seed())
            y = scope.specs[made]
        shape_ = _product(x.shape, y.shape)
        assert shape_ is not None
        scope.make("matmul", [clipped(scope, x, -4.0, 4.0), y], shape_, x.dtype)
        return True

    def build(self, ins: Instruction, operands: list[Any], builder: Any) -> Any:
        return ops.matmul(*operands)

    def value(self, ins: Instruction, operands: list[Shadow], world: Any) -> Any:
        x, y = operands
        rows = [np.matmul(a, b) for a, b in zip(x.read(), y.read())]
        return memory(operands).new(np.stack(rows), x.dtype, inexact=True)


def _product(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...] | None:
    """Shape of a product, None when there is none or it is too large."""
    if not x or not y or 0 in y:
        return None
    try:
        shape = np.matmul(np.empty(x, np.int8), np.empty(y, np.int8)).shape
    except ValueError:
        return None
    return shape if math.prod(shape) <= LARGEST else None
