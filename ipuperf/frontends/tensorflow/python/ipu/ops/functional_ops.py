"""Functions whose code is shared by their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ....effects import EFFECTS


@checked_kinds()
def outlined_function(
    func: Callable[..., Any] | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Any:
    """A function of tensors (or a decorator) whose calls share code on the IPU.

    Equal stretches of a program share their code anyway (``IPUConfig.optimizations.enable_graph_outlining``), those of
    such calls among them.

    Raises (when called):
        ValueError: the function returns no tensor.
    """
    EFFECTS.given("ipu.functional_ops.outlined_function(unique_sharding)", unique_sharding)
    EFFECTS.given("ipu.functional_ops.outlined_function(keep_input_layouts)", keep_input_layouts)

    def decorated(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with tf.name_scope(name or "function"):
                found = inner(*(tf.nest.map_structure(tf.convert_to_tensor, a) for a in args))
            if not any(tf.is_tensor(leaf) for leaf in tf.nest.flatten(found)):
                raise ValueError("outlined_function: the function has to return at least one tensor")
            return found

        return call

    return decorated if func is None else decorated(func)


__all__ = ["outlined_function"]
