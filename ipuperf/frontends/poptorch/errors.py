"""Exceptions of the PopTorch front end.

``Error``, ``RecoverableError`` and ``UnrecoverableError`` have upstream's names. A wrong argument raises what upstream
raises: ``AssertionError`` or ``ValueError`` (raised explicitly here, so that ``python -O`` changes nothing), each an
``Error`` too.

Kinds of arguments are read off annotations (:mod:`ipuperf.base.kinds`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from os import PathLike
from typing import cast

import torch

from ipuperf.base.kinds import WHOLE, ArgumentKind, Kinds, is_number


class Error(RuntimeError):
    """Anything PopTorch itself complains about.

    Args:
        message: what is wrong.
        type: the component that complains, as upstream calls it.
        location: where in it, the innermost place first; the text of the error tells of it.

    Attributes:
        message, type: as given. location: one line for each place, empty without any.
    """

    def __init__(self, message: str = "", *, type: str = "poptorch_py_error", location: Sequence[str] = ()) -> None:
        self.message, self.type = message, type
        self.location = "\n".join(f"[{depth}] {place}" for depth, place in enumerate(location))
        super().__init__(f"'{type}': {message}\nError raised in:\n{self.location}" if location else message)


class RecoverableError(Error):
    """Upstream: the device must be reset, as ``recovery_action`` says. A simulated device does not fail by itself."""

    recovery_action = "FULL_RESET"


class UnrecoverableError(Error):
    """Upstream: the device is lost. A simulated device does not fail by itself."""


class UnsupportedError(Error):
    """An option or op that ipuperf does not simulate; the message names it, the value seen and what is allowed."""


class CompiledInError(Error, ValueError):
    """A number or a type of an optimiser changed that the compiled program holds."""


class PartitionError(Error):
    """Blocks, stages and IPUs that do not fit together; the message names the block and the rule."""


class BlockError(PartitionError, AssertionError):
    """A block that the strategy cannot place, where upstream asserts."""


class InputError(Error, ValueError):
    """What a function of PopTorch was given, where upstream raises ``ValueError``."""


class ArgumentError(Error, AssertionError):
    """A wrong argument where upstream asserts."""


class CallError(ArgumentError, TypeError):
    """Arguments that ``forward`` does not take, where upstream asserts and Python has a ``TypeError``."""


class MissingArgumentError(Error, TypeError):
    """An argument of ``forward`` is missing, where upstream raises ``Error`` and Python has a ``TypeError``."""


def require(condition: object, message: str) -> None:
    """Raise :class:`ArgumentError`, unless ``condition`` holds."""
    if not condition:
        raise ArgumentError(message)


def require_int(name: str, value: object, minimum: int) -> None:
    """``AssertionError`` unless ``value`` is an ``int`` (not a ``bool``) of at least ``minimum``."""
    require(
        isinstance(value, int) and not isinstance(value, bool) and value >= minimum,
        f"{name}: {value!r} given, expected an int of at least {minimum}",
    )


def require_member(name: str, value: object, kind: type[Enum]) -> None:
    """``AssertionError`` unless ``value`` is a member of an enumeration of PopTorch."""
    require(isinstance(value, kind), f"{name}: {value!r} given, expected a member of poptorch.{kind.__name__}")


def require_bool(name: str, value: object) -> None:
    """``AssertionError`` unless ``value`` is a ``bool``."""
    require(isinstance(value, bool), f"{name}: {value!r} given, expected True or False")


def require_texts(name: str, values: object) -> None:
    """``AssertionError`` unless ``values`` are several strings."""
    several = isinstance(values, Iterable) and not isinstance(values, (str, bytes))
    texts = several and all(isinstance(value, str) for value in cast(Iterable[object], values))
    require(texts, f"{name}: {values!r} given, expected a list of strings")


def require_path(name: str, value: object) -> None:
    """``AssertionError`` unless ``value`` is a path."""
    require(isinstance(value, (str, PathLike)), f"{name}: {value!r} given, expected a path")


def _is_number(value: object) -> bool:
    """Whether ``value`` is a number, also one in a tensor."""
    return is_number(value) or (isinstance(value, torch.Tensor) and value.numel() == 1)


checked_kinds = Kinds({"int": WHOLE, "float": ArgumentKind(_is_number, "a number", frozenset([int, float]))}).checked
"""Decorator: arguments must be of the kinds that their annotations say; its arguments name those left out."""
