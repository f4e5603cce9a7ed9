"""Finds the line of the user's program that an op comes from."""

from __future__ import annotations

import sys
from types import FrameType

#: Packages whose frames stand between the user's line and an op: TensorFlow calls the functions that it traces.
_NOT_THE_USERS = frozenset({"ipuperf", "functools", "contextlib", "tensorflow", "tf_keras", "keras", "wrapt"})


class _PassedOver(dict[str, bool]):
    """Says for each module, by its name, whether calls from it are never the user's.

    It is a dictionary, as every new op asks for each frame above it.
    """

    def __missing__(self, module: str) -> bool:
        is_foreign = self[module] = module.partition(".")[0] in _NOT_THE_USERS
        return is_foreign


_PASSED_OVER = _PassedOver()


def user_location() -> str:
    """``file:line`` of the innermost caller outside ipuperf and TensorFlow, for error messages and reports.

    Gives ``""`` where there is no such caller.
    """
    # Two frames up: this function and its caller are always ipuperf's.
    frame: FrameType | None = sys._getframe(2)
    passed_over = _PASSED_OVER
    try:
        while frame is not None and passed_over[frame.f_globals["__name__"]]:
            frame = frame.f_back
    except KeyError:  # code that runs without a module's name is the user's
        pass
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
