"""Layers and optimizers of Keras that tell the arguments they were made with."""

from __future__ import annotations

from types import FunctionType
from typing import Any, ClassVar

import tf_keras


class Configured:
    """The ``get_config`` of a class that keeps arguments of its constructor in attributes of their names.

    Class attributes:
        arguments: those names, separated by spaces; the base class tells the others.
    """

    arguments: ClassVar[str] = ""

    def get_config(self) -> dict[str, Any]:
        """The arguments: activations by name, initializers as Keras writes them."""
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        return {**config, **{name: _written(getattr(self, name)) for name in self.arguments.split()}}


def _written(value: Any) -> Any:
    if isinstance(value, tf_keras.initializers.Initializer):
        return tf_keras.initializers.serialize(value)
    return value.__name__ if isinstance(value, FunctionType) else value
