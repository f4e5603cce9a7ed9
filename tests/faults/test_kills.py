"""Runs that are cut short lose no session that had finished."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork and signals")


@pytest.mark.heavy
def test_runs_that_end_at_random_instants_lose_nothing(child_environment: dict[str, str]) -> None:
    """A few of the thousand kills of ``python tests/faults/kills.py``."""
    script = Path(__file__).with_name("kills.py")
    done = subprocess.run(
        [sys.executable, str(script), "--kills", "12"],
        capture_output=True,
        text=True,
        env=child_environment,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
