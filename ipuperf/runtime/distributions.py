"""Metadata for ``importlib.metadata`` about the upstream packages that ipuperf's modules stand for."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any


class StandingIn(importlib.metadata.Distribution):
    """An upstream package, with its name and version, while ipuperf's module stands for it."""

    def __init__(self, name: str, version: str) -> None:
        self._metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """Return the metadata; the package has no other files."""
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        """Return a path below ipuperf's own folder."""
        return Path(__file__).parents[1] / path
