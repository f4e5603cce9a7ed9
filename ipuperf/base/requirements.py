"""What to install where a package is missing: names that an index has, in the releases that ipuperf was tried with."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

_OF_EXTRA = re.compile(r"""(?P<package>[^;]+?)\s*;\s*extra\s*==\s*['"](?P<extra>[\w-]+)['"]""")
_EXTRA = re.compile(r"ipuperf\[([\w,-]+)\]")


def pip_install(extra: str) -> str:
    """Return the command that installs the packages of an extra of ipuperf.

    The command names the packages themselves: ``ipuperf[extra]`` asks an index for ipuperf, which may come from a
    checkout or a file.
    """
    packages = " ".join(repr(package) for package in _packages(extra))
    return f"pip install {packages}" if packages else f"install the extra {extra} of ipuperf"


def _packages(extra: str) -> list[str]:
    try:
        rows = requires("ipuperf") or []
    except PackageNotFoundError:  # a checkout on the path that was never installed
        return []
    matches = [match for match in map(_OF_EXTRA.fullmatch, rows) if match and match["extra"] == extra]
    packages: list[str] = []
    for match in matches:
        others = _EXTRA.fullmatch(match["package"])
        packages += [p for other in others[1].split(",") for p in _packages(other)] if others else [match["package"]]
    return packages
