"""Changes of a model and its options before a front end compiles them.

PopTorch asks here for each model, TensorFlow for each pipeline. Within :func:`revising_models` a function changes what
they compile, so that a question "what if" needs no change of the program's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass
class ModelRequest:
    """What a program asks of a front end for one model. A revision changes it.

    Attributes:
        front_end: ``poptorch`` or ``tensorflow``.
        options: a copy of the program's options (TensorFlow: its configuration).
        training: whether the model is compiled for training.
        module: the module of PyTorch; None for TensorFlow.
        inputs: what the host makes of each tensor of a call, one function after the other.
    """

    front_end: str
    options: Any
    training: bool
    module: Any = None
    inputs: tuple[Callable[[Any], Any], ...] = ()


ModelRevision: TypeAlias = Callable[[ModelRequest], None]

_REVISION: ContextVar[ModelRevision | None] = ContextVar("revision of models", default=None)


@contextmanager
def revising_models(revise: ModelRevision | None) -> Iterator[None]:
    """Compile models within as ``revise`` changes them; with None as the program asks for them."""
    token = _REVISION.set(revise)
    try:
        yield
    finally:
        _REVISION.reset(token)


def revised_model(request: ModelRequest) -> ModelRequest:
    """The request after the active revision."""
    revise = _REVISION.get()
    if revise is not None:
        revise(request)
    return request
