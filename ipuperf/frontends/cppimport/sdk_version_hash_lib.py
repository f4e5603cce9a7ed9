"""The module that ``examples_utils`` and Optimum Graphcore compile to name binaries after the SDK's ``packageHash``.

Source: examples-utils, ``load_lib_utils/sdk_version_hash``.
"""

from __future__ import annotations

from ipuperf.base.version import __version__


def sdk_version_hash() -> str:
    """Return ipuperf's version in the SDK's place."""
    return f"ipuperf-{__version__}"


__all__ = ["sdk_version_hash"]
