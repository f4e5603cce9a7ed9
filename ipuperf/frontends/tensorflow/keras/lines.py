"""The user's line of a layer that Keras calls: where the layer was made.

All layers of a functional or sequential model are called by the line of ``fit``. What a ``call`` of the user's own
makes stands on its lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from ipuperf.ir.location import user_location

from ..importer.attributes import on_line

_CALLER: ContextVar[str] = ContextVar("keras_caller", default="")
_ATTRIBUTE = "_ipu_line"


@contextmanager
def program() -> Iterator[None]:
    """Keras builds a program of a model in the block, for the user's line that is running."""
    token = _CALLER.set(user_location())
    try:
        yield
    finally:
        _CALLER.reset(token)


def note(layer: Any) -> None:
    """Note the user's line that makes ``layer``."""
    vars(layer).setdefault(_ATTRIBUTE, user_location())


def placing(call: Any) -> Any:
    """``Layer.__call__`` whose ops stand on the line of the layer."""

    @wraps(call)
    def call_on_line(self: Any, *args: Any, **kwargs: Any) -> Any:
        caller, line = _CALLER.get(), vars(self).get(_ATTRIBUTE)
        if not caller or not line:
            return call(self, *args, **kwargs)
        with on_line(caller, line):
            return call(self, *args, **kwargs)

    return call_on_line
