"""Every test has a TensorFlow state of its own; files beside the tests hold what several of them share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipuperf.tensorflow.state import isolated

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    with isolated():
        yield
