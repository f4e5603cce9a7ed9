"""How rows of the catalogue take PyTorch's operands, by the name in their column ``types``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ipuperf.frontends.catalogue import ROWS
from ipuperf.functions.arithmetic import not_equal
from ipuperf.functions.arranging import axis_of, reshaped
from ipuperf.ir import BOOL, INT32, Tensor

from .lowering import Handler, Lowering, Value

Binary = Callable[[Tensor, Tensor], Tensor]
Dims = Any
Reduction = Callable[..., Tensor]


def computed(function: Callable[..., Any]) -> Handler:
    """The handler that calls ``function`` of :mod:`ipuperf.functions` with its operands in the result's type; whatever
    is no operand (numbers, axes) stays as it is. The order and the defaults of the arguments are the aten op's."""
    signature = inspect.signature(function)
    operands = {p.name for p in signature.parameters.values() if p.annotation in ("Tensor", "Operand")}

    def handler(low: Lowering, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            if name in operands:
                several = isinstance(value, tuple)
                given.arguments[name] = low.tensors(value, low.dtype) if several else low.tensor(value, low.dtype)
        return function(*given.args, **given.kwargs)

    # The export reads this signature to see whether a node's options fit (`stages._accepts`).
    first = inspect.Parameter("low", inspect.Parameter.POSITIONAL_ONLY)
    vars(handler)["__signature__"] = signature.replace(parameters=[first, *signature.parameters.values()])
    return handler


def whole(function: Binary) -> Handler:
    """The handler of a function of whole numbers, in the result's type."""

    def handler(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
        if not low.dtype.is_integer:
            raise low.unsupported(f"operands of type {low.dtype.name} are unsupported; allowed: whole numbers")
        return function(*low.tensors([lhs, rhs], low.dtype))

    return handler


def rounded(function: Callable[[Tensor], Tensor]) -> Handler:
    """The handler of a rounding: whole numbers stay as they are."""

    def handler(low: Lowering, value: Value) -> Tensor:
        x = low.tensor(value, low.dtype)
        return function(x) if x.dtype.is_floating_point else x

    return handler


def promoted(function: Binary) -> Handler:
    """The handler of a comparison, in the type that PyTorch compares in."""

    def handler(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
        return function(*low.tensors([lhs, rhs], low.promoted(lhs, rhs)))

    return handler


def truth(low: Lowering, value: Value) -> Tensor:
    """Whether elements differ from zero."""
    x = low.tensor(value)
    return x if x.dtype == BOOL else not_equal(x, 0)


def truths(function: Binary) -> Handler:
    """The handler of logic: of what elements are as truths."""

    def handler(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
        return function(truth(low, lhs), truth(low, rhs))

    return handler


# -- along axes --------------------------------------------------------------------------------------------------------


def _axes(dim: Dims, rank: int) -> tuple[int, ...]:
    """Reduced axes; None or an empty list stands for all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(rank))
    return tuple(sorted(axis_of(d, rank) for d in ([dim] if isinstance(dim, int) else dim)))


def reduced(function: Reduction, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """``function`` over axes of ``x``; over the one element of a tensor without axes."""
    if not x.shape:
        return function(reshaped(x, (1,)), (0,), keepdims=False)
    return function(x, _axes(dim, len(x.shape)), keepdims=keepdim)


def reduction(function: Reduction) -> Handler:
    """A reduction in the result's type."""

    def handler(
        low: Lowering, value: Value, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        if low.dtype == BOOL:  # of truths, the largest or smallest
            truth: Tensor = of_truths(function)(low, value, dim, keepdim)
            return truth
        return reduced(function, low.tensor(value, low.dtype), dim, keepdim)

    return handler


def of_truths(function: Reduction) -> Handler:
    """any (maximum of 0 and 1) and all (minimum)."""

    def handler(low: Lowering, value: Value, dim: Dims = None, keepdim: bool = False) -> Tensor:
        return not_equal(reduced(function, low.tensor(truth(low, value), INT32), dim, keepdim), 0)

    return handler


def along(function: Callable[[Tensor, int], Tensor]) -> Handler:
    """The handler of a function along one axis, in the result's type."""

    def handler(low: Lowering, value: Value, dim: int, dtype: Any = None) -> Tensor:
        x = low.tensor(value, low.dtype)
        if not x.shape:
            return reshaped(function(reshaped(x, (1,)), 0), ())
        return function(x, axis_of(dim, len(x.shape)))

    return handler


RULES: Mapping[str, Callable[[Callable[..., Any]], Handler]] = {
    "": computed,
    "along": along,
    "promoted": promoted,
    "reduced": reduction,
    "rounded": rounded,
    "truths": truths,
    "whole": whole,
}

#: Handlers of the catalogue's rows by aten name.
HANDLERS: Mapping[str, Handler] = {name: RULES[row.types](row.implementation) for row in ROWS for name in row.aten}
