"""Checks of the kinds of arguments of report functions, by :mod:`ipuperf.kinds`, which the first call loads."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from ipuperf.kinds import ParameterKinds

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: arguments must be of the kinds in their annotations. Windows and rows are checked by their users."""
    # A list as a cell: the checks are made once, with the first call, so that importing reports stays quick.
    known: list[ParameterKinds] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not known:
            from ipuperf.kinds import ANYTHING, Kinds, ParameterKinds

            kinds = Kinds(dict.fromkeys(("Window", "ndarray"), ANYTHING))
            known.append(ParameterKinds(function, function.__name__, kinds))
        known[0].check(args, kwargs)
        return function(*args, **kwargs)

    return call
