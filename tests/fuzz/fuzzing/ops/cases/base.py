"""A case of the family ``ops``: how a call of one public op is drawn, and what PyTorch gives for it."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipuperf.popxl import ops

Operand = list[Any]
"""``[role, shape, dtype, ...]``: what its data are like (:func:`data`); the dtype ``any`` is that of the program."""
Drawn = tuple[list[Operand], dict[str, Any]]
"""Operands and further arguments of a call."""

FLOATS = ("float32", "float32", "float32", "float16", "float64")
SIGNED = (*FLOATS, "int32", "int64", "int16", "int8")
NUMBERS = (*SIGNED, "uint32", "uint64", "uint16", "uint8")
ANY = (*NUMBERS, "bool")
DIRECT = ("main", "constants", "stream")
AROUND = (*DIRECT, "call", "call", "call", "repeat", "branch")


def plain(function: Callable[..., Any], *tensors: Any, **arguments: Any) -> Any:
    """The call itself."""
    return function(*tensors, **arguments)


@dataclass(frozen=True)
class Case:
    """A public op.

    Attributes:
        draw: operands and arguments; None where the dice fit no call.
        oracle: the value, by PyTorch, of the operands and the arguments; of a ``random`` op also of what ipuperf gave,
            as the first argument.
        build: the call in PopXL.
        gradient: whether the op has a gradient, or a function of its arguments that says so.
        dtypes: of the operands of ``any`` dtype.
        around: where the call may stand.
        hostable: positions of operands that may be host data.
        across: the oracle takes lists of what all replicas have, and gives a list.
        rounding: a multiple of the tolerance.
    """

    draw: Callable[[random.Random], Drawn | None]
    oracle: Callable[..., Any]
    build: Callable[..., Any] = plain
    gradient: bool | Callable[[dict[str, Any]], bool] = True
    dtypes: tuple[str, ...] = FLOATS
    around: tuple[str, ...] = AROUND
    hostable: tuple[int, ...] = ()
    random: bool = False
    across: bool = False
    rounding: float = 1.0


def shape_of(r: random.Random, low: int = 0, high: int = 3, longest: int = 5) -> list[int]:
    """A shape of ``low`` to ``high`` axes."""
    return [r.randint(1, longest) for _ in range(r.randint(low, high))]


def one(role: str = "normal", low: int = 0) -> Callable[[random.Random], Drawn]:
    """A call with one operand of a role."""
    return lambda r: ([[role, shape_of(r, low), "any"]], {})


def data(operand: Operand, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Data of an operand."""
    role, shape, own, *more = operand
    dtype = dtype if own == "any" else own
    drawn = ROLES[role](rng, tuple(shape), np.dtype(dtype).kind, *more)
    return np.asarray(drawn).astype(dtype)


def _normal(rng: np.random.Generator, shape: Sequence[int], kind: str, scale: float = 1.0) -> Any:
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -4, 5, shape)
    return scale * rng.normal(size=shape)


def _distinct(rng: np.random.Generator, shape: Sequence[int], kind: str) -> Any:
    count = math.prod(shape)
    return (rng.permutation(count).reshape(shape) - count // 2) / (1 if kind in "iu" else 8)


def _special(rng: np.random.Generator, shape: Sequence[int], kind: str) -> Any:
    return rng.choice([0.0, 1.5, -2.0, np.inf, -np.inf, np.nan], shape)


ROLES: dict[str, Callable[..., Any]] = {
    "normal": _normal,
    "positive": lambda rng, shape, kind: np.abs(_normal(rng, shape, kind)) + (1 if kind in "iu" else 0.25),
    "distinct": _distinct,
    "special": _special,
    "halves": lambda rng, shape, kind: rng.integers(0 if kind == "u" else -8, 9, shape) / 2,
    "index": lambda rng, shape, kind, bound: rng.integers(0, bound, shape),
    "fixed": lambda rng, shape, kind, value: np.reshape(value, shape),
    "seed": lambda rng, shape, kind: rng.integers(0, 1 << 30, shape),
}


def in_place(function: Callable[..., Any], x: Any, *others: Any, **arguments: Any) -> Any:
    """The result of an in-place op, and what its operand then holds."""
    x = ops.identity(x)
    return function(x, *others, **arguments), x


def twice(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """What :func:`in_place` gives."""

    def both(*tensors: Any, **arguments: Any) -> Any:
        value = oracle(*tensors, **arguments)
        return value, value

    return both


def broadcast_pair(r: random.Random) -> tuple[list[int], list[int]]:
    """Two shapes that broadcast."""
    shape = shape_of(r)
    other = [1 if r.random() < 0.2 else n for n in shape][r.randint(0, len(shape)) if r.random() < 0.3 else 0 :]
    return (shape, other) if r.random() < 0.6 else (other, shape)


def axes_of(r: random.Random, rank: int) -> Any:
    """Axes of a reduction: None, one of them, or a list."""
    some = sorted(r.sample(range(rank), r.randint(1, rank))) if rank else []
    return r.choice([None, some, r.randrange(-rank, rank) if rank else None])
