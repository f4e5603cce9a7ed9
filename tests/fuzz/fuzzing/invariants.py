"""What must hold in every trace, whatever the program."""

import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from conservation import conserves

from ipuperf.simulation import simulate
from ipuperf.trace import check

TABLES = ("instances", "steps", "transfers", "host_events", "runs", "links", "liveness", "tile_memory")
VARIANTS: tuple[dict[str, Any], ...] = ({"fold": False}, {"symmetry": False}, {"seed": 1}, {"seed": 2, "fold": False})
"""Ways to simulate that must not matter: without folding, every replica, simultaneous events in another order."""


def trace_problems(executable: Any) -> list[str]:
    """Rules of conservation that do not hold, and differences between ways to simulate that must not matter."""
    trace = executable.trace
    found = [*check(trace), *_not_conserved(trace)]
    if executable.simulated_run_cycles <= 0:
        found.append(f"a run takes {executable.simulated_run_cycles} cycles")
    for variant in VARIANTS:
        other = simulate(
            executable.device_program, executable.machine, prefetch_depth=executable.host.prefetch_depth, **variant
        )
        found += [f"simulate({variant}): {text}" for text in _different(trace, other)]
    return found


def _not_conserved(trace: Any) -> list[str]:
    try:
        conserves(trace)
    except AssertionError as error:
        frame = traceback.extract_tb(error.__traceback__)[1]
        return [f"{frame.name}, {frame.line}: {error}"]
    return []


#: Tables that hold loops without a shared step folded, or trip by trip with ``fold=False``; ``expand`` tells the same.
FOLDED = ("instances", "steps", "loops", "tile_runs")


def _different(one: Any, other: Any) -> list[str]:
    # The front end says the samples of a run, and not the simulation.
    metas = [{name: value for name, value in trace.meta.items() if name != "samples_per_run"} for trace in (one, other)]
    found = [] if metas[0] == metas[1] else ["meta differs"]
    for table in [name for name in TABLES if name not in FOLDED]:
        left, right = one.columns(table), other.columns(table)
        found += [f"{table}.{name} differs" for name in left if not np.array_equal(left[name], right[name])]
    left, right = _slices(one), _slices(other)
    same = list(left) == list(right) and all(np.array_equal(left[name], right[name]) for name in left)
    return found if same else [*found, "the slices of expand() differ"]


def _slices(trace: Any) -> dict[str, np.ndarray]:
    """Every step of every IPU, in a stated order: columns."""
    frame = trace.expand().drop(columns="instance")
    texts = [name for name in frame if frame[name].dtype.kind not in "iufb"]
    columns = {
        name: frame[name].astype(str).to_numpy(dtype="U") if name in texts else frame[name].to_numpy() for name in frame
    }
    order = np.lexsort(list(reversed(columns.values())))
    return {name: values[order] for name, values in columns.items()}
