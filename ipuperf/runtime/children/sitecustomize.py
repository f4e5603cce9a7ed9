"""Python runs this module first in a process that a program with ipuperf's front ends has started."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path


def _begin() -> None:
    try:
        from ipuperf.runtime.children import begin
    except ImportError:  # a Python without ipuperf
        return
    begin()


def _hand_on() -> None:
    """Run the ``sitecustomize`` that this one hides."""
    folder = str(Path(__file__).parent)
    # Without this folder, Python finds the module that it would have run.
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != folder])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_begin()
_hand_on()
