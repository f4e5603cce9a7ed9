"""The upstream names in the Python processes that a program starts.

Such a process has a Python of its own, which knows nothing of :func:`~ipuperf.runtime.install.install`: one that
``multiprocessing`` spawns (and that imports the program again), or a script by ``subprocess``. So the environment that
it inherits names the front ends, and puts this folder before ``PYTHONPATH``: Python runs ``sitecustomize.py`` of it
first. A Python without ipuperf starts as ever.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "IPUPERF_NAMES"
"""What a process inherits: ``upstream name=target`` with commas between."""


def announce(targets: Mapping[str, str]) -> None:
    """Let processes that are started from now on find these names, and no others."""
    here, before = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [path for path in before if path and path != here]
    if targets:
        os.environ[VARIABLE] = ",".join(f"{name}={target}" for name, target in targets.items())
        paths.insert(0, here)
    else:
        os.environ.pop(VARIABLE, None)
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        os.environ.pop("PYTHONPATH", None)


def begin() -> None:
    """In a process that was started so: install the names that it inherits."""
    from ipuperf.runtime.install import install

    given = os.environ.get(VARIABLE, "")
    if given:
        install(dict(pair.split("=", 1) for pair in given.split(",")), force=True)
