"""Element-wise kernels written as formulas.

An op writes its mathematics with operators, ``grad * (1 - square(value))``. :func:`compile_formula` turns it into the
chain of ufunc calls that a program runs. Equal subexpressions are computed once, results replace operands that are no
longer needed, the output is one of the registers, and constants are made when the chain is bound.
:func:`ipuperf.ops.binding.elementwise` binds the resulting :class:`Chain` to arrays, block by block.

The terms are evaluated in the order in which they are written, left operand first. That order decides how many
temporaries a chain needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Step = Callable[[], Any]
#: Where a value lies: ``("input", index)``, ``("constant", value)``, ``("temporary", index)`` or ``("output", 0)``.
Place = tuple[str, Any]

OUTPUT: Place = ("output", 0)


class Term:
    """A value in a formula: an input, a constant, or a ufunc of other terms."""

    __slots__ = ("leaf", "operands", "ufunc")

    def __init__(self, leaf: Place | None, ufunc: np.ufunc | None = None, operands: Sequence[Term] = ()) -> None:
        self.leaf = leaf
        self.ufunc = ufunc
        self.operands = tuple(operands)

    def __add__(self, operand: Term | float) -> Term:
        return apply(np.add, self, operand)

    def __radd__(self, operand: float) -> Term:
        return apply(np.add, operand, self)

    def __sub__(self, operand: Term | float) -> Term:
        return apply(np.subtract, self, operand)

    def __rsub__(self, operand: float) -> Term:
        return apply(np.subtract, operand, self)

    def __mul__(self, operand: Term | float) -> Term:
        return apply(np.multiply, self, operand)

    def __rmul__(self, operand: float) -> Term:
        return apply(np.multiply, operand, self)

    def __truediv__(self, operand: Term | float) -> Term:
        return apply(np.divide, self, operand)

    def __rtruediv__(self, operand: float) -> Term:
        return apply(np.divide, operand, self)

    def __neg__(self) -> Term:
        return apply(np.negative, self)


def apply(ufunc: np.ufunc, *operands: Term | float) -> Term:
    """The term ``ufunc(*operands)``."""
    return Term(None, ufunc, [_term(o) for o in operands])


def _term(value: Term | float) -> Term:
    return value if isinstance(value, Term) else Term(("constant", float(value)))


def function(ufunc: np.ufunc) -> Callable[..., Term]:
    """``ufunc`` as a function of terms."""
    return partial(apply, ufunc)


absolute = function(np.absolute)
copysign = function(np.copysign)
exp = function(np.exp)
expm1 = function(np.expm1)
heaviside = function(np.heaviside)
log1p = function(np.log1p)
maximum = function(np.maximum)
minimum = function(np.minimum)
reciprocal = function(np.reciprocal)
sqrt = function(np.sqrt)
square = function(np.square)
tanh = function(np.tanh)


@dataclass(frozen=True)
class Instruction:
    """One ufunc call: ``target = ufunc(*operands)``."""

    ufunc: np.ufunc
    operands: tuple[Place, ...]
    target: Place


@dataclass(frozen=True)
class Chain:
    """A compiled formula.

    Attributes:
        instructions: the calls in order; the last one writes the output.
        temporaries: how many arrays like the output the chain needs besides.
    """

    instructions: tuple[Instruction, ...]
    temporaries: int

    def bind(self, inputs: Sequence[np.ndarray], out: np.ndarray, temporaries: Sequence[np.ndarray]) -> list[Step]:
        """The steps on these arrays, which have the type in which arithmetic is done; the inputs broadcast to
        ``out``."""
        arrays = {"input": inputs, "temporary": temporaries, "output": (out,)}

        def array(place: Place) -> np.ndarray:
            kind, which = place
            return np.asarray(which, dtype=out.dtype) if kind == "constant" else arrays[kind][which]

        return [partial(i.ufunc, *map(array, i.operands), out=array(i.target)) for i in self.instructions]


def compile_formula(formula: Callable[..., Term], inputs: int, *, in_place: bool = False) -> Chain:
    """The chain of ``formula(*inputs)``.

    Args:
        in_place: the output is the first input, so it is written only after the last read of that input.
    """
    calls = _calls(formula(*(Term(("input", i)) for i in range(inputs))))
    last_reads: dict[Place, int] = {}
    for position, (_, operands) in enumerate(calls):
        last_reads.update(dict.fromkeys(operands, position))
    registers = _Registers(last_reads.get(("input", 0), 0) if in_place else 0)
    places: dict[Place, Place] = {}
    instructions = []
    for position, (ufunc, operands) in enumerate(calls):
        read_places = tuple(places.get(o, o) for o in operands)
        # Operands are freed before the target is taken, so
        # a result may replace an operand of its own call.
        registers.release([places[o] for o in dict.fromkeys(operands) if o in places and last_reads[o] == position])
        # The last call writes the output whatever is free.
        target = OUTPUT if position == len(calls) - 1 else registers.take(position)
        places["call", position] = target
        instructions.append(Instruction(ufunc, read_places, target))
    return Chain(tuple(instructions), registers.temporaries)


def _calls(root: Term) -> list[tuple[np.ufunc, tuple[Place, ...]]]:
    """The ufunc calls of a term in the order of writing, without repeating equal ones. An operand ``("call", k)``
    is the result of the k-th."""
    calls: list[tuple[np.ufunc, tuple[Place, ...]]] = []
    known: dict[tuple[object, ...], Place] = {}

    def place_of(term: Term) -> Place:
        if term.leaf is not None:
            return term.leaf
        assert term.ufunc is not None
        call = (term.ufunc, tuple(place_of(o) for o in term.operands))
        signs = [
            math.copysign(1, value) for kind, value in call[1] if kind == "constant"
        ]  # 0.0 == -0.0, but they divide differently
        # Equal calls are computed once.
        key = (*call, *signs)
        if key not in known:
            known[key] = ("call", len(calls))
            calls.append(call)
        return known[key]

    place_of(root)
    return calls


class _Registers:
    """Tracks which places are free: the temporaries and, from call ``output_from`` on, the output."""

    def __init__(self, output_from: int) -> None:
        self.temporaries = 0
        self._output_from = output_from
        self._free: list[Place] = [OUTPUT]

    def release(self, places: Sequence[Place]) -> None:
        """Free these places, which nobody reads any more."""
        self._free += places

    def take(self, position: int) -> Place:
        """The place that was freed last, or a new temporary."""
        for place in reversed(self._free):
            if place != OUTPUT or position >= self._output_from:
                self._free.remove(place)
                return place
        self.temporaries += 1
        return ("temporary", self.temporaries - 1)
