"""Python's operators, written once for everything that stands for a tensor.

:class:`Operators` turns each operator into a call of :meth:`Operators.operate` with the name of a function; tensors of
the IR, and the tensors of front ends, say there what the name means.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

#: What the names mean to Python and NumPy.
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


class Operators:
    """Arithmetic, comparison and logic by operators. Equality stays identity."""

    __array_ufunc__: Any = None

    def operate(self, function: str, *operands: Any) -> Any:
        """The value of ``function`` for ``operands``; ``NotImplemented`` for operands of a foreign type."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Any:
        return self.operate("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self.operate("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self.operate("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.operate("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self.operate("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.operate("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.operate("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.operate("div", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self.operate("floor_div", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self.operate("floor_div", other, self)

    def __mod__(self, other: Any) -> Any:
        return self.operate("fmod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self.operate("fmod", other, self)

    def __pow__(self, other: Any) -> Any:
        return self.operate("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return self.operate("pow", other, self)

    def __matmul__(self, other: Any) -> Any:
        return self.operate("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return self.operate("matmul", other, self)

    def __and__(self, other: Any) -> Any:
        return self.operate("logical_and", self, other)

    def __rand__(self, other: Any) -> Any:
        return self.operate("logical_and", other, self)

    def __or__(self, other: Any) -> Any:
        return self.operate("logical_or", self, other)

    def __ror__(self, other: Any) -> Any:
        return self.operate("logical_or", other, self)

    def __lt__(self, other: Any) -> Any:
        return self.operate("less", self, other)

    def __le__(self, other: Any) -> Any:
        return self.operate("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return self.operate("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return self.operate("greater_equal", self, other)

    def __neg__(self) -> Any:
        return self.operate("negate", self)

    def __abs__(self) -> Any:
        return self.operate("abs", self)

    def __invert__(self) -> Any:
        return self.operate("logical_not", self)
