"""Arguments of Keras' layers that the IPU's layers do not take."""

from __future__ import annotations

from typing import Any


def refuse(layer: str, **given: Any) -> None:
    """Raise for the first argument that has a value.

    Raises:
        NotImplementedError: names the argument and Keras' own layer, which takes it.
    """
    for name, value in given.items():
        if value:
            raise NotImplementedError(
                f"IPU custom {layer} layer does not support {name} (it is {value!r}); use tf.keras.layers.{layer}, "
                "which runs on the IPU too."
            )
