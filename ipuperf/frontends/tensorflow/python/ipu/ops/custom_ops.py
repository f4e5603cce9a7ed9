"""Operations of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ....refusals import refused


@checked_kinds()
def codelet_expression_op(vertex_expression: Callable[..., Any], *args: Any) -> Any:
    """``vertex_expression(*args)``, element by element.

    Raises:
        TypeError: it is not callable.
    """
    if not callable(vertex_expression):
        raise TypeError(f"codelet_expression_op: {vertex_expression!r} is not a function")
    return vertex_expression(*args)


_SOURCE = (
    "an operation of C++ cannot run here; write it with TensorFlow's operations, or as an op of ipuperf "
    "(docs/adding-an-op.md)"
)
precompiled_user_op = refused("custom_ops.precompiled_user_op", _SOURCE)
cpu_user_op = refused("custom_ops.cpu_user_op", _SOURCE)

__all__ = ["codelet_expression_op", "cpu_user_op", "precompiled_user_op"]
