"""TensorFlow's names of functions of :mod:`ipuperf.functions`, as those functions declare them
(:func:`ipuperf.functions.naming.named`). Results are called after the function, those of reductions as TensorFlow
calls it. Functions with rules of TensorFlow's own are in :mod:`.functions` and :mod:`.nn`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ipuperf.functions.naming import names_in, reduces

from .array import lifted

_DECLARED = re.compile(r"(?:(math|nn)\.)?(\w+)\(([\w, ]+)\)")


def _declared() -> dict[str, dict[str, Callable[..., Any]]]:
    """Functions by the module they are in (``""``: ``tf`` and ``tf.math``) and by name."""
    found: dict[str, dict[str, Callable[..., Any]]] = {"": {}, "math": {}, "nn": {}}
    for text, function in names_in("tensorflow"):
        parts = _DECLARED.fullmatch(text)
        if parts is None:
            raise ValueError(f"{function.__name__}: {text!r} is no declaration; allowed: [math.|nn.]name(parameters)")
        place, name, operands = parts.groups(default="")
        found[place][name] = lifted(function, operands.replace(",", " "), name if reduces(function) else "")
    return found


ROOT, MATH, NN = _declared().values()
MATH |= ROOT
