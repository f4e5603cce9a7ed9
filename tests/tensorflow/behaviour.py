"""Programs of TensorFlow's first version switch the second one off for the whole process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def version_2() -> Iterator[None]:
    """What a program switches off is on again after it, and its graph is gone."""
    import tensorflow as tf

    tf.constant(0)  # TensorFlow remembers in which mode it began
    try:
        yield
    finally:
        tf.compat.v1.reset_default_graph()
        tf.compat.v1.enable_v2_behavior()
