"""Names of a function in front ends, declared where the function is written.

:func:`named` declares them, and front ends make their tables from them (:func:`names_in`). PopXL needs none: it takes
every function that upstream's ``popxl.ops`` has under the same name. Ops of TensorFlow's graphs are in tables of their
own (``tensorflow/graph``).
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from itertools import chain, repeat
from types import ModuleType
from typing import Any, TypeVar

from ipuperf.ir import Tensor

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def named(**names: str) -> Callable[[FunctionT], FunctionT]:
    """Declare the names of a function in front ends.

    Args:
        names: by vocabulary, separated by ``;``. ``aten``: operations of PyTorch (``amax; max.default``), whose
            arguments come in the order of the function's.
    """

    def declare(function: FunctionT) -> FunctionT:
        vars(function)["front_end_names"] = {
            key: [name.strip() for name in text.split(";")] for key, text in names.items()
        }
        return function

    return declare


def taking_tensors(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``handler(place, *operands)`` so that it takes operands of any kind.

    Operands annotated as a ``Tensor`` are first made tensors by ``place.tensor``, in their order.
    """
    operands = list(inspect.signature(handler).parameters.values())[1:]
    kinds = [operand.annotation in ("Tensor", Tensor) for operand in operands]
    # Handlers without tensors need no wrapper.
    if not any(kinds):
        return handler
    # The last annotation also holds for all operands of ``*args``.
    further = repeat(kinds[-1])

    @wraps(handler)
    def converted(place: Any, *values: Any, **named: Any) -> Any:
        value_kinds = zip(values, chain(kinds, further))
        return handler(
            place, *(place.tensor(value) if is_tensor else value for value, is_tensor in value_kinds), **named
        )

    return converted


def modules() -> list[ModuleType]:
    """The modules of this room."""
    room = import_module(str(__package__))
    return [import_module(f"{room.__name__}.{module.name}") for module in pkgutil.iter_modules(room.__path__)]


def names_in(vocabulary: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Names of ``vocabulary`` with the functions that declare them."""
    # A dictionary instead of a set keeps the order; modules also import each other's functions.
    functions = {function: None for module in modules() for function in vars(module).values() if callable(function)}
    for function in functions:
        for name in getattr(function, "front_end_names", {}).get(vocabulary, ()):
            yield name, function


def reduces(function: Callable[..., Any]) -> bool:
    """Whether a function is a reduction, which may keep its axes."""
    return "keepdims" in inspect.signature(function).parameters
