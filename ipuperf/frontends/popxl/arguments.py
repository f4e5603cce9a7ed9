"""Checks of arguments where functions are called: of their kinds (:mod:`ipuperf.base.kinds`), and of numbers that
have to be whole, one rule for the whole front end: nothing is rounded.

Allowed as whole numbers are integers of Python and NumPy and zero-dimensional integer arrays; floats (also 2.0) and
bools are refused.
"""

from __future__ import annotations

import inspect
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ipuperf.base.kinds import ArgumentKind, Kinds, ParameterKinds, checked, name_of, told
from ipuperf.frontends.catalogue.arguments import Argument
from ipuperf.ir import ALL_DTYPES, DType, is_host_data

P = ParamSpec("P")
R = TypeVar("R")


def whole(value: Any, subject: str, least: int | None = None) -> int:
    """``value`` as an integer.

    Raises:
        ValueError: it is none, or below ``least``. (Not TypeError: programs that catch a wrong size catch both.)
    """
    number = None
    if not isinstance(value, (bool, np.bool_)):
        with suppress(TypeError):
            number = operator.index(value)
    if number is None or (least is not None and number < least):
        at_least = "" if least is None else f" of at least {least}"
        raise ValueError(f"{subject} is {value!r}; a whole number{at_least} is needed")
    return number


def wholes(values: Iterable[Any], subject: str, least: int | None = None) -> tuple[int, ...]:
    """Each of ``values`` as an integer, see :func:`whole`.

    Raises:
        TypeError: ``values`` is one number.
    """
    return tuple(whole(value, subject, least) for value in several(values, subject))


def several(values: Any, subject: str) -> Any:
    """``values`` unless they are one number, or nothing that has an order.

    Raises:
        TypeError: they are.
    """
    if isinstance(values, Mapping) or hasattr(values, "_ir_tensor") or not np.iterable(values):
        raise TypeError(f"{subject} is {told(values)}; a sequence of whole numbers is needed")
    return values


_WORDS = {"int", "None", "Sequence", "Iterable", "Tensor", "tuple"}


def _is_integral(annotation: str) -> bool:
    """Whether an annotation allows integers and, besides tensors and None, nothing else."""
    return "int" in annotation and "int" in (words := set(re.findall(r"\w+", annotation))) and words <= _WORDS


def _checked(value: Any, subject: str) -> Any:
    """``value`` with every number in it checked; tensors and None are left alone."""
    if type(value) is int or _is_given_whole(value):
        return value
    if isinstance(value, (tuple, list)):
        return tuple([_checked(element, subject) for element in value])
    if isinstance(value, Iterable) and np.ndim(value) > 0:  # type: ignore[arg-type]  # 0-d arrays are numbers
        return tuple(_checked(element, subject) for element in value)
    return whole(value, subject)


def parameters_of(function: Callable[..., Any]) -> list[tuple[int, str, str]]:
    """Place, name and annotation of the parameters of a function, ``*`` aside; those by name alone have no place that
    is ever filled. (Signatures of :mod:`inspect` take ten times as long, at each import.)"""
    plain = inspect.unwrap(function)
    code = plain.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    notes = plain.__annotations__
    return [
        (i if i < code.co_argcount else sys.maxsize, name, str(notes.get(name, ""))) for i, name in enumerate(names)
    ]


#: Of each parameter that takes whole numbers: its place, its name, what errors call it, whether one number will not do.
Wholes = list[tuple[int, str, str, bool]]


def whole_parameters(function: Callable[..., Any]) -> Wholes:
    """Parameters annotated as integers or sequences of them."""
    parameters = parameters_of(function)
    return [
        (i, name, f"{name_of(function)}: {name}", not re.search(r"(?<!\[)\bint\b", note))
        for i, name, note in parameters
        if _is_integral(note)
    ]


def check_wholes(parameters: Wholes, positional: list[Any], named: dict[str, Any]) -> None:
    """Replace the arguments of ``parameters`` by integers, see :func:`whole`."""
    for place, name, subject, sequence in parameters:
        if place < len(positional):
            if sequence or type(positional[place]) is not int:
                positional[place] = _as_said(positional[place], subject, sequence)
        elif name in named:
            named[name] = _as_said(named[name], subject, sequence)


def _is_given_whole(value: Any) -> bool:
    """Whether nothing in ``value`` is to be asked: nothing, or a tensor (which kinds refuse where none may be)."""
    return value is None or hasattr(value, "_ir_tensor")


def _as_said(value: Any, subject: str, sequence: bool) -> Any:
    """The integers of an argument, of which there may have to be several."""
    numbers = _checked(value, subject)
    return several(numbers, subject) if sequence and not _is_given_whole(numbers) else numbers


# -- kinds -------------------------------------------------------------------------------------------------------------


def _is_tensor(value: Any) -> bool:
    """Whether ``value`` is PopXL's tensor (whose module knows this one)."""
    return hasattr(type(value), "in_sync_with_ipu")


def _is_operand(value: Any) -> bool:
    """Whether ``value`` is a tensor, or host data that becomes one."""
    if _is_tensor(value) or isinstance(value, (bool, int, float, np.number, np.bool_)):
        return True
    if is_host_data(value) and not isinstance(value, np.ndarray):
        try:  # empty ones are upstream's ValueError, where the constant is made
            value = np.asarray(value.detach() if hasattr(value, "detach") else value)
        except (ValueError, TypeError):  # ragged lists, tensors in lists
            return False
    return isinstance(value, np.ndarray) and (
        value.dtype.kind in "biuf" or (value.dtype.names or ("",))[0] in ALL_DTYPES
    )


def _is_dtype(value: Any) -> bool:
    """Whether ``value`` stands for a type of elements; whether there is such a type is asked where it is looked up."""
    return isinstance(value, (str, type, np.dtype, DType)) or type(value).__name__ == "dtype"


#: What names mean in annotations of functions that PopXL's programs call.
KINDS = Kinds(
    {
        **dict.fromkeys(("Tensor", "TensorByRef"), ArgumentKind(_is_tensor, "a popxl.Tensor")),
        "Operand": ArgumentKind(_is_operand, "a popxl.Tensor, or a number or an array of numbers,"),
        "ndarray": ArgumentKind(lambda value: hasattr(value, "shape") and hasattr(value, "ndim"), "a NumPy array"),
        **dict.fromkeys(("DType", "dtype", "_dtype"), ArgumentKind(_is_dtype, "a popxl dtype")),
    }
)


def checked_value(function: str, value: Any, argument: Argument) -> Any:
    """A value of one argument, of the kind that its annotation says; whole where that says integers."""
    kind = KINDS.of(argument.annotation, {})
    if _is_integral(argument.annotation):
        value = _as_said(value, f"{function}: {argument.name}", True)
    if not kind.holds(value):
        raise TypeError(f"{function}: {argument.name} is {told(value)}; {kind.words} is needed")
    return value


def checked_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: arguments must be of the kinds that their annotations say (:meth:`ParameterKinds.check`), and whole
    where these say integers (:func:`whole`)."""
    parameters = whole_parameters(function)
    signature = ParameterKinds(function, name_of(function), KINDS)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        positional: list[Any] = list(args)
        signature.order(positional, kwargs)
        check_wholes(parameters, positional, kwargs)
        signature.check(positional, kwargs)
        return function(*positional, **kwargs)

    return call


def checked_kinds(*skipped: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: arguments must be of the kinds that their annotations say, those aside that are integers, which the
    function itself asks to be whole (:func:`whole`, :func:`wholes`), and its ``own``, which it names better."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        whole = {key for _, key, note in parameters_of(function) if _is_integral(note)}
        return checked(KINDS, {*whole, *skipped})(function)

    return decorated
