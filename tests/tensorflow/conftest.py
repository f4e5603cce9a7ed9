"""Every test has a TensorFlow state of its own; files beside the tests hold what several of them share.

Tests that need TensorFlow are skipped without it.
"""

import importlib.util
import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    if importlib.util.find_spec("tensorflow") is None:
        yield
        return
    from ipuperf.tensorflow.state import isolated

    with isolated():
        yield
