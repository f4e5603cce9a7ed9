"""The versions of TensorFlow that programs can run on: those of the extra ``tensorflow`` in ``pyproject.toml``."""

from __future__ import annotations

FIRST, END = (2, 16), (2, 22)
"""The first version (major, minor) that works, and the first one that has not been tried."""


def check_version(found: str) -> None:
    """Raise ImportError unless TensorFlow ``found`` (``2.21.0``) is one of these versions."""
    parts = tuple(int(part) for part in found.split(".")[:2])
    if not FIRST <= parts < END:
        first, end = (".".join(map(str, version)) for version in (FIRST, END))
        raise ImportError(
            f"TensorFlow {found} is installed, and programs for the IPU run on TensorFlow {first} and newer, below "
            f"{end}, with tf-keras of the same version: pip install 'ipuperf[tensorflow]'",
            name="tensorflow",
        )
