"""The function library under PopXL's names: handles in, handles out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from types import ModuleType
from typing import Any

from ipuperf import ir as _ir

from ..arguments import whole_arguments
from ..context import get_current_graph
from ..dtypes import dtype as _dtype
from ..handle import Tensor, wrap


def lifted(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of :mod:`ipuperf.functions` as a function of PopXL: takes and gives PopXL's tensors and dtypes,
    refuses numbers that should be whole, needs an active graph, and calls its results after itself."""
    name = f"{function.__name__.rstrip('_')}_out"
    checked = whole_arguments(function)
    signature = inspect.signature(function)
    types = [p.name for p in signature.parameters.values() if "DType" in str(p.annotation)]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind_partial(*args, **kwargs)
        get_current_graph()
        for key in types:
            if given.arguments.get(key) is not None:
                given.arguments[key] = _dtype.as_dtype(given.arguments[key])
        with _ir.CONTEXT.builder.named(name):
            return raised(checked(*lowered(given.args), **{k: lowered(v) for k, v in given.kwargs.items()}))

    return call


def lowered(value: Any) -> Any:
    """Handles replaced by what they stand for, also inside tuples and lists."""
    if isinstance(value, Tensor):
        return value._ir_tensor
    if isinstance(value, _dtype):
        return value._ir
    if type(value) in (tuple, list) and any(isinstance(v, Tensor) for v in value):
        return type(value)(lowered(v) for v in value)
    return tuple(lowered(v) for v in value) if type(value) is tuple else value


def raised(value: Any) -> Any:
    """IR tensors replaced by handles, also inside tuples and lists."""
    if isinstance(value, _ir.Tensor):
        return wrap(value)
    return type(value)(raised(v) for v in value) if isinstance(value, (tuple, list)) else value


def lift(library: Sequence[ModuleType], names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """The functions of these names that any module of the library has, lifted."""
    found = {name: next((vars(m)[name] for m in library if name in vars(m)), None) for name in names}
    return {name: lifted(function) for name, function in found.items() if function is not None}
