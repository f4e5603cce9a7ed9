"""Checks of integer-valued arguments, one rule for the whole front end: nothing is rounded.

Allowed are integers of Python and NumPy and zero-dimensional integer arrays; floats (also 2.0) and bools are refused.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def whole(value: Any, what: str, least: int | None = None) -> int:
    """``value`` as an integer.

    Raises:
        ValueError: it is none, or below ``least``. (Not TypeError: programs that catch a wrong size catch both.)
    """
    found = None
    if not isinstance(value, (bool, np.bool_)):
        with suppress(TypeError):
            found = operator.index(value)
    if found is None or (least is not None and found < least):
        at_least = "" if least is None else f" of at least {least}"
        raise ValueError(f"{what} is {value!r}; a whole number{at_least} is needed")
    return found


def wholes(values: Iterable[Any], what: str, least: int | None = None) -> tuple[int, ...]:
    """Each of ``values`` as an integer, see :func:`whole`."""
    return tuple(whole(value, what, least) for value in values)


_WORDS = {"int", "None", "Sequence", "Iterable", "Tensor", "tuple"}


def _is_integral(annotation: object) -> bool:
    """Whether an annotation (a string) allows integers and, besides tensors and None, nothing else."""
    words = set(re.findall(r"\w+", str(annotation)))
    return "int" in words and words <= _WORDS


def _checked(value: Any, what: str) -> Any:
    """``value`` with every number in it checked; tensors and None are left alone."""
    if value is None or type(value) is int or hasattr(value, "_ir_tensor"):
        return value
    if isinstance(value, (tuple, list)):
        return tuple([_checked(item, what) for item in value])
    if isinstance(value, Iterable) and np.ndim(value) > 0:  # type: ignore[arg-type]  # 0-d arrays are numbers
        return tuple(_checked(item, what) for item in value)
    return whole(value, what)


def whole_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: arguments annotated as integers (or sequences of them) must be integers, see :func:`whole`."""
    parameters = list(inspect.signature(function).parameters.values())
    integral = [
        (i, p.name, f"{function.__name__}: {p.name}") for i, p in enumerate(parameters) if _is_integral(p.annotation)
    ]
    if not integral:
        return function

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given: list[Any] = list(args)
        for place, name, what in integral:
            if place < len(given):
                given[place] = _checked(given[place], what)
            elif name in kwargs:
                kwargs[name] = _checked(kwargs[name], what)
        return function(*given, **kwargs)

    return call
