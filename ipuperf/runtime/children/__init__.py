"""The upstream names in the Python processes that a program starts.

Such a process has its own Python, in which :func:`~ipuperf.runtime.install.install` has not run. It may be spawned by
``multiprocessing`` (and then imports the program again), or be a script that ``subprocess`` starts. So the environment
that it inherits names the front ends and puts this folder first in ``PYTHONPATH``: Python then runs the folder's
``sitecustomize.py`` at its start. A Python without ipuperf starts as usual.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

#: The variable that a process inherits: ``upstream name=target``, separated by commas.
VARIABLE = "IPUPERF_NAMES"


def announce(targets: Mapping[str, str]) -> None:
    """Make these names, and no others, known to the processes started from now on."""
    folder, old_paths = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # The folder is taken out first, so that it is there once, in front.
    paths = [path for path in old_paths if path and path != folder]
    # Without front ends the environment becomes what it was, so that children start as usual.
    if targets:
        os.environ[VARIABLE] = ",".join(f"{name}={target}" for name, target in targets.items())
        paths.insert(0, folder)
    else:
        os.environ.pop(VARIABLE, None)
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        os.environ.pop("PYTHONPATH", None)


def begin() -> None:
    """Install the names that this process has inherited."""
    from ipuperf.runtime.install import install

    pairs = os.environ.get(VARIABLE, "")
    if pairs:
        install(dict(pair.split("=", 1) for pair in pairs.split(",")), force=True)
