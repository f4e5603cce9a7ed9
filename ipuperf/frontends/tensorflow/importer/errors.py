"""What an import of a graph raises: one error with the op, its type, the user's line and what would help."""

from __future__ import annotations

import tensorflow as tf


class GraphError(tf.errors.InvalidArgumentError):
    """A TensorFlow graph that cannot become a program of the IPU (upstream's compiler raises ``InvalidArgumentError``,
    too)."""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)
