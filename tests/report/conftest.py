"""Fixtures of the report tests: the made-up program, and a browser."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from chromium import Browser, find_browser


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The module ``tests/trace/synthetic.py``."""
    spec = importlib.util.spec_from_file_location(
        "synthetic_trace", Path(__file__).parents[1] / "trace" / "synthetic.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def trace(synthetic: ModuleType):
    """A pipeline over 4 IPUs, 8 micro-batches, 2 runs."""
    return synthetic.pipeline_trace()


@pytest.fixture(scope="session")
def rich(synthetic: ModuleType):
    """A folded trace with loops, parts that are empty, and all phases."""
    trace = synthetic.rich_trace()
    trace.meta["ipuperf_version"] = "1.0"
    return trace


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a module."""
    if find_browser() is None:
        pytest.skip("no Chromium is installed, or no Playwright")
    with Browser() as running:
        yield running


@pytest.fixture(scope="module")
def programs(installed_front_ends: Any) -> Iterator[ModuleType]:
    """The module ``benchmarks/page_programs.py``, with the front ends installed."""
    spec = importlib.util.spec_from_file_location(
        "page_programs", Path(__file__).parents[2] / "benchmarks" / "page_programs.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with installed_front_ends():
        yield module
