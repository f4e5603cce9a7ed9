"""Where an op comes from in the user's program."""

from __future__ import annotations

import sys
from types import FrameType

#: Packages whose frames stand between the user's line and an op: TensorFlow calls the functions that it traces.
_NOT_THE_USERS = frozenset({"ipuperf", "functools", "contextlib", "tensorflow", "tf_keras", "keras", "wrapt"})


class _PassedOver(dict[str, bool]):
    """By module: whether calls from it are never the user's."""

    def __missing__(self, module: str) -> bool:
        found = self[module] = module.partition(".")[0] in _NOT_THE_USERS
        return found


_PASSED_OVER = _PassedOver()


def user_location() -> str:
    """``file:line`` of the innermost caller outside ipuperf and TensorFlow, for error messages and reports; ``""``
    where there is none."""
    frame: FrameType | None = sys._getframe(2)
    passed_over = _PASSED_OVER
    try:
        while frame is not None and passed_over[frame.f_globals["__name__"]]:
            frame = frame.f_back
    except KeyError:  # code that runs without a module's name is the user's
        pass
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
