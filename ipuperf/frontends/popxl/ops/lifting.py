"""The function library under PopXL's names: handles in, handles out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

from ipuperf import ir as _ir
from ipuperf.base.kinds import ParameterKinds
from ipuperf.frontends.catalogue.arguments import Argument
from ipuperf.frontends.options import POPXL as EFFECTS

from ..arguments import KINDS, check_wholes, checked_arguments, checked_value, parameters_of, whole_parameters
from ..builder import current_builder
from ..dtypes import dtype as _dtype
from ..handle import Tensor, wrap


@cache
def lifted(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of :mod:`ipuperf.functions` as a function of PopXL: takes and gives PopXL's tensors and dtypes,
    refuses arguments of a wrong kind and numbers that should be whole, needs an active graph, and calls its results
    after itself."""
    name = f"{function.__name__.rstrip('_')}_out"
    wholes = whole_parameters(function)
    types = [(place, key) for place, key, note in parameters_of(function) if "DType" in note]
    signature = ParameterKinds(function, function.__name__, KINDS)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        builder = current_builder()
        operands = list(args)
        signature.order(operands, kwargs)
        if wholes:
            check_wholes(wholes, operands, kwargs)
        signature.check(operands, kwargs)
        operands = [value._ir_tensor if isinstance(value, Tensor) else lowered(value) for value in operands]
        named = {key: lowered(value) for key, value in kwargs.items()} if kwargs else kwargs
        for place, key in types:
            if place < len(operands):
                operands[place] = _dtype_of(operands[place], function.__name__, key)
            elif key in named:
                named[key] = _dtype_of(named[key], function.__name__, key)
        before, builder.naming = builder.naming, name
        try:
            result = function(*operands, **named)
            if isinstance(result, _ir.Tensor):
                builder.graph.require_own(function.__name__, result)
                return wrap(result)
            return raised(result)
        finally:
            builder.naming = before

    return call


def extended(function: Callable[..., Any], arguments: Sequence[Argument]) -> Callable[..., Any]:
    """As :func:`lifted`, with the arguments that PopXL has otherwise, which may do nothing here or be refused."""
    call_library = lifted(function)
    library = inspect.signature(function)
    parameters = dict(library.parameters)
    for argument in arguments:
        if argument.place is None and argument.required:
            parameters[argument.name] = parameters[argument.name].replace(default=inspect.Parameter.empty)
    ordered = list(parameters.values())
    for argument in arguments:
        if argument.place is not None:
            default = inspect.Parameter.empty if argument.required else argument.default
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            parameter = inspect.Parameter(argument.name, kind, default=default, annotation=argument.annotation)
            ordered.insert(argument.place, parameter)
    signature = library.replace(parameters=ordered)

    @checked_arguments
    @wraps(function)
    def checked(**given: Any) -> Any:
        for argument in arguments:
            if argument.name in given:
                value = given[argument.name]
                if argument.place is not None:
                    value = checked_value(function.__name__, given.pop(argument.name), argument)
                if argument.asks(value):
                    EFFECTS.given(f"ops.{argument.function}({argument.name})", value)
            elif argument.required:
                raise TypeError(f"{function.__name__}() missing 1 required positional argument: {argument.name!r}")
        return call_library(**given)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return checked(**signature.bind_partial(*args, **kwargs).arguments)

    vars(call)["__signature__"] = signature
    return call


def _dtype_of(value: Any, function: str, name: str) -> Any:
    """An argument that stands for a type of elements, as the library takes it.

    Raises:
        ValueError: there is no such type on the IPU.
    """
    if value is None or isinstance(value, _ir.DType):
        return value
    try:
        return _dtype.as_dtype(value)._ir
    except ValueError as error:
        raise ValueError(f"{function}: {name}: {error}") from None


#: Types of arguments that stand for themselves.
_PLAIN = frozenset([int, float, bool, str, type(None)])


def lowered(value: Any) -> Any:
    """Handles replaced by what they stand for, also inside tuples and lists."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        return value._ir_tensor
    if isinstance(value, _dtype):
        return value._ir
    if isinstance(value, tuple):
        return tuple(lowered(v) for v in value)
    return (
        [lowered(v) for v in value] if isinstance(value, list) and any(isinstance(v, Tensor) for v in value) else value
    )


def raised(value: Any) -> Any:
    """IR tensors replaced by handles, also inside tuples and lists."""
    if isinstance(value, _ir.Tensor):
        return wrap(value)
    return type(value)(raised(v) for v in value) if isinstance(value, (tuple, list)) else value
