"""Kinds of arguments of PopTorch's classes, by their annotations (:mod:`ipuperf.kinds`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from ipuperf.kinds import WHOLE, ArgumentKind, Kinds, checked, is_number

P = ParamSpec("P")
R = TypeVar("R")


def _is_number(value: object) -> bool:
    """Whether ``value`` is a number, also one in a tensor."""
    return is_number(value) or (isinstance(value, torch.Tensor) and value.numel() == 1)


_KINDS = Kinds({"int": WHOLE, "float": ArgumentKind(_is_number, "a number", frozenset([int, float]))})


def checked_kinds(*own: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of functions and constructors: arguments must be of the kinds that their annotations say, those aside
    that are the function's ``own`` to check."""
    return checked(_KINDS, own)
