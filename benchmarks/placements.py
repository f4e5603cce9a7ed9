"""Lowering and simulating the tutorial's step for each placement of Adam's state, and the memory that takes."""

from __future__ import annotations

import statistics
import subprocess
import sys
from types import MappingProxyType

from bounds import LOOP, Row, cpu_seconds, loop_seconds

MEMORY = "lower + simulate: peak memory"
BOUNDS = MappingProxyType(
    {
        "lower + simulate: no sharding": 0.65,
        "lower + simulate: only state related to fc1.weight": 0.65,
        "lower + simulate: all state related to weights": 0.65,
        "lower + simulate: all state": 0.65,
        "lower + simulate: on-chip optimizer": 0.5,
        MEMORY: 0.85,
    }
)
_PEAK = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
_STEP = """
import ipuperf; ipuperf.install()
from ipuperf.models.mnist_mlp import TrainingOptions, training_session
ipuperf.simulate_session(training_session(TrainingOptions(threshold=512)).session, machine='pod4')
"""


def rows(repeats: int) -> list[Row]:
    """A row for each placement, and one of memory."""
    peak = memory()  # first, while this process is small: Linux counts what a process had before it became another
    import ipuperf

    ipuperf.install()
    from ipuperf.models.mnist_mlp import TrainingOptions, training_session
    from ipuperf.scenarios.rts_mnist import PLACEMENTS

    found = []
    for placement in PLACEMENTS:
        pairs = []
        for _ in range(min(repeats, 3)):
            session = training_session(TrainingOptions(threshold=placement.threshold)).session
            seconds = cpu_seconds(lambda session=session: ipuperf.simulate_session(session, machine="pod4"))
            pairs.append((seconds, loop_seconds()))
        seconds, reference = (statistics.median(times) for times in zip(*pairs, strict=True))
        found.append(Row(f"lower + simulate: {placement.name}", seconds, LOOP, reference))
    return [*found, peak]


def memory() -> Row:
    """Largest resident memory of a fresh process that lowers and simulates one placement."""
    return Row(MEMORY, _peak(_STEP), "process that imports pandas", _peak("import pandas\n"), "MB")


def _peak(program: str) -> float:
    done = subprocess.run([sys.executable, "-c", program + _PEAK], capture_output=True, text=True, check=True)
    return float(done.stdout)
