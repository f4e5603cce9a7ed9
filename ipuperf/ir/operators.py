"""Python's operators, written once for everything that stands for a tensor.

:class:`Operators` turns each operator into a call of :meth:`Operators.operate` with the name of a function. Tensors of
the IR and tensors of front ends define there what the name means.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: The function of Python and NumPy behind each name.
PYTHON: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floor_div": operator.floordiv,
    "fmod": operator.mod,
    "pow": operator.pow,
    "matmul": operator.matmul,
    "logical_and": operator.and_,
    "logical_or": operator.or_,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "negate": operator.neg,
    "abs": operator.abs,
    "logical_not": operator.invert,
}


class Operators(Generic[T]):
    """Arithmetic, comparison and logic by operators, which give a ``T``.

    Equality stays identity, so tensors can be keys.
    """

    # Makes NumPy arrays on the left return NotImplemented, so that Python calls the reflected method here.
    __array_ufunc__: Any = None

    def operate(self, function: str, *operands: Any) -> T:
        """Apply ``function`` to ``operands``; gives ``NotImplemented`` for operands of a foreign type."""
        raise NotImplementedError

    def __add__(self, operand: Any) -> T:
        return self.operate("add", self, operand)

    def __radd__(self, operand: Any) -> T:
        return self.operate("add", operand, self)

    def __sub__(self, operand: Any) -> T:
        return self.operate("sub", self, operand)

    def __rsub__(self, operand: Any) -> T:
        return self.operate("sub", operand, self)

    def __mul__(self, operand: Any) -> T:
        return self.operate("mul", self, operand)

    def __rmul__(self, operand: Any) -> T:
        return self.operate("mul", operand, self)

    def __truediv__(self, operand: Any) -> T:
        return self.operate("div", self, operand)

    def __rtruediv__(self, operand: Any) -> T:
        return self.operate("div", operand, self)

    def __floordiv__(self, operand: Any) -> T:
        return self.operate("floor_div", self, operand)

    def __rfloordiv__(self, operand: Any) -> T:
        return self.operate("floor_div", operand, self)

    def __mod__(self, operand: Any) -> T:
        return self.operate("fmod", self, operand)

    def __rmod__(self, operand: Any) -> T:
        return self.operate("fmod", operand, self)

    def __pow__(self, operand: Any) -> T:
        return self.operate("pow", self, operand)

    def __rpow__(self, operand: Any) -> T:
        return self.operate("pow", operand, self)

    def __matmul__(self, operand: Any) -> T:
        return self.operate("matmul", self, operand)

    def __rmatmul__(self, operand: Any) -> T:
        return self.operate("matmul", operand, self)

    def __and__(self, operand: Any) -> T:
        return self.operate("logical_and", self, operand)

    def __rand__(self, operand: Any) -> T:
        return self.operate("logical_and", operand, self)

    def __or__(self, operand: Any) -> T:
        return self.operate("logical_or", self, operand)

    def __ror__(self, operand: Any) -> T:
        return self.operate("logical_or", operand, self)

    def __lt__(self, operand: Any) -> T:
        return self.operate("less", self, operand)

    def __le__(self, operand: Any) -> T:
        return self.operate("less_equal", self, operand)

    def __gt__(self, operand: Any) -> T:
        return self.operate("greater", self, operand)

    def __ge__(self, operand: Any) -> T:
        return self.operate("greater_equal", self, operand)

    def __neg__(self) -> T:
        return self.operate("negate", self)

    def __abs__(self) -> T:
        return self.operate("abs", self)

    def __invert__(self) -> T:
        return self.operate("logical_not", self)
