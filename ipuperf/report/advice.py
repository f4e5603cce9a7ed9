"""What changes of the program gain, as ``ipuperf report RUN --why`` keeps it beside the trace.

``levers.json`` holds ``cycles``, ``fullest`` (bytes of the fullest tile) and ``fits`` of the run as it is, and two
lists. Each of ``trials`` is a change that was simulated, in the order of advice: those that leave the training as it
is first, the largest gain first. It has

- ``what``: the change in words; ``together``: whether it is several changes, one after the other.
- ``cycles``, ``seconds``: of the samples of the run; ``gain``: the share of the run that is saved, negative for a loss.
- ``fullest``: bytes of the fullest tile; ``trades_memory``: whether the program had saved memory by not doing so.
- ``training``: what changes of the training itself, "" for nothing; ``effect``: the part of the time that shrinks most.
- ``diff``: lines of the program to take out (``- ``) and to put in (``+ ``).

Each of ``untried`` has ``what`` and ``why``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ipuperf.trace import Trace

ADVICE = "levers.json"
"""The name of the file in the folder of a report."""

LEAST_GAIN = 0.005
"""The share of the run that a change must gain to be listed."""

_KEYS = set("what together cycles seconds gain fullest trades_memory training effect diff".split())


def read_advice(folder: Path, trace: Trace) -> dict[str, Any] | None:
    """The advice on the run of a trace; None if there is none, or only one on another run."""
    try:
        advice: dict[str, Any] = json.loads((folder / ADVICE).read_text(encoding="utf-8"))
        whole = {"fullest", "fits", "untried"} <= set(advice) and all(set(trial) == _KEYS for trial in advice["trials"])
        of_run = advice["cycles"] == int(trace.columns("runs")["dur"][-1])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return advice if whole and of_run else None
