"""``ipu_compiler.compile``: one program from a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...compiled import Compiled, compile_function


def compile(computation: Callable[..., Any], inputs: Sequence[Any] | None = None) -> Compiled:
    """Trace ``computation`` into one IPU program.

    Args:
        inputs: arguments: host data, placeholders (``tf.placeholder``) or variables.

    Returns:
        A handle for ``Session.run``, or to be called: it executes the program and gives what ``computation`` returned.

    Raises:
        TypeError: ``computation`` is not callable, or ``inputs`` no list.
    """
    if not callable(computation):
        raise TypeError(f"ipu_compiler.compile: {computation!r} is not a function")
    if inputs is not None and not isinstance(inputs, (list, tuple)):
        raise TypeError(f"ipu_compiler.compile: inputs must be a list, got {type(inputs).__name__}")
    return compile_function(computation, list(inputs or ()))
