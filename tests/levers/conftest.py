"""Runs of programs that levers are tried on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from levercases import Case


@pytest.fixture(scope="session")
def kept_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where programs lie that several tests ask about."""
    return tmp_path_factory.mktemp("levers")


@pytest.fixture
def case(ipuperf_here: Callable, tmp_path: Path, kept_folder: Path) -> Case:
    """Programs to try levers on."""
    return Case(ipuperf_here, tmp_path, kept_folder)
