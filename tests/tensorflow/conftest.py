"""Every test has a TensorFlow state of its own."""

from collections.abc import Iterator

import pytest

from ipuperf.tensorflow.state import isolated


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    with isolated():
        yield
