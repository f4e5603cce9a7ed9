"""What ``importlib.metadata`` says of packages that ours stand for."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any


class StandingIn(importlib.metadata.Distribution):
    """An upstream package while ours stands for it: its name and version."""

    def __init__(self, name: str, version: str) -> None:
        self._metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """The metadata; there are no other files."""
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        """Where ipuperf is."""
        return Path(__file__).parents[1] / path
