"""The user's line of an op: the innermost frame of its traceback outside of TensorFlow, Keras and ipuperf."""

from __future__ import annotations

import os
import sysconfig
from typing import Any

import tensorflow as tf

import ipuperf

_PACKAGES = ("tensorflow", "keras", "tf_keras", "ipuperf", "wrapt", "numpy")


class _PassedOver(dict[str, bool]):
    """By file: whether it is never the user's."""

    def __missing__(self, file: str) -> bool:
        found = self[file] = any(file.startswith(root) for root in _ROOTS) or "__autograph_generated" in file
        return found


def _roots() -> list[str]:
    site = {sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")}
    site.add(os.path.dirname(os.path.dirname(os.path.abspath(tf.__file__))))
    own = os.path.dirname(ipuperf.__file__)
    standard = os.path.dirname(os.path.abspath(os.__file__))
    found = [os.path.join(folder, package) + os.sep for folder in site for package in _PACKAGES]
    return [*found, own + os.sep, *(os.path.join(standard, name) for name in ("contextlib.py", "functools.py"))]


_ROOTS = _roots()
_PASSED_OVER = _PassedOver()


def user_line(op: tf.Operation) -> str:
    """``file:line`` of the user's code that made ``op``; ``""`` where there is none."""
    frames: Any = op.traceback
    if frames is None:
        return ""
    for index in range(len(frames) - 1, -1, -1):
        frame = frames[index]
        if not _PASSED_OVER[frame.filename]:
            return f"{frame.filename}:{frame.lineno}"
    return ""
