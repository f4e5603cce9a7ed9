"""Fixtures of the trace tests: the made-up program."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The module ``tests/trace/synthetic.py``."""
    spec = importlib.util.spec_from_file_location("synthetic_trace", Path(__file__).with_name("synthetic.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def trace(synthetic: ModuleType):
    """A pipeline over 4 IPUs, 8 micro-batches, 2 runs."""
    return synthetic.pipeline_trace()
