"""Operands of any kind for the handlers of a front end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from itertools import chain, repeat
from typing import Any

from ipuperf.ir import Tensor


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
