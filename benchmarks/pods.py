"""Speed on whole Pods: BERT-Large's training step through PopTorch, on 1 to 64 replicas of four IPUs.

    python benchmarks/pods.py

CPU seconds of simulating it, each as a ratio to the one on two replicas (the smallest with collectives) in the same
process; of lowering and simulating it on a Bow-POD64 against a budget; of writing its trace and an excerpt of it for
viewers, and their sizes; and how much a long process grows. Each row has a bound near its value.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ACCUMULATION = 512
MACHINES = {1: "bow-pod4", 2: "bow-pod16", 4: "bow-pod16", 16: "bow-pod64", 63: "bow-pod256", 64: "bow-pod256"}
"""The machine for each number of replicas."""
FLAT_BOUNDS = {1: 1.0, 4: 1.3, 16: 1.5, 63: 9.0, 64: 1.8}
"""Of simulating so many replicas, against two of them; 63 are seven classes."""
BUDGET, BUDGET_MEGABYTES, LONGER_BOUND, SAVE_BOUND = 2.0, 300.0, 1.05, 1.0
EXPORT_SECONDS, EXPORT_MEGABYTES = 2.0, 20.0
GROWTH_MEGABYTES, SIMULATIONS = 30.0, 10


def _row(name: str, value: float, reference: str, reference_value: float, bound: float = 1.0) -> dict[str, Any]:
    ratio = value / reference_value
    return {"name": name, "seconds": value, "reference": f"{reference} (bound {bound})",
            "reference_seconds": reference_value, "ratio": ratio, "bound": bound}  # fmt: skip


def _seconds(call: Callable[[], Any], times: int = 1) -> tuple[float, Any]:
    """The least CPU seconds of a call, and what it gives."""
    best, found = float("inf"), None
    for _ in range(times):
        start = time.process_time()
        found = call()
        best = min(best, time.process_time() - start)
    return best, found


def _megabytes() -> float:
    """Resident megabytes of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        (line,) = (line for line in status if line.startswith("VmRSS:"))
    return float(line.split()[1]) / 1024


def bert_large(replicas: int, accumulation: int = ACCUMULATION) -> Any:
    """Its executable, built and not lowered."""
    import torch

    from ipuperf.models import bert, ipu_run
    from ipuperf.runtime.settings import RunSettings, use_settings

    options = bert.large(replicas=replicas, gradient_accumulation=accumulation)
    with use_settings(RunSettings(machine=MACHINES[replicas])):
        with torch.device("meta"), ipu_run._WithoutRandomNumbers():
            model = ipu_run.cast(bert.model(options), options).train()
        arguments = bert.batch(options, "meta")
        optimiser = ipu_run.optimiser_of(model, options)
        compiled = ipu_run.poptorch.compile_offline(
            model, ipu_run.poptorch_options(options), *arguments, training=True, optimizer=optimiser
        )
    return compiled.executable


def _simulated(executable: Any, times: int = 1) -> tuple[float, Any]:
    from ipuperf.simulation import simulate

    program = executable.device_program
    return _seconds(lambda: simulate(program, executable.machine, **executable.host_options), times)


def whole_step() -> list[dict[str, Any]]:
    """Lowering and simulating 16 replicas of four stages, with two accumulation counts; what it adds to memory."""
    executable = bert_large(16)
    before = _megabytes()
    lowering, _ = _seconds(lambda: executable.device_program)
    simulating, trace = _simulated(executable)
    added = _megabytes() - before
    least, _ = _simulated(executable, 3)
    longer, _ = _simulated(bert_large(16, 4 * ACCUMULATION), 3)
    with tempfile.TemporaryDirectory() as folder:
        saving, _ = _seconds(lambda: trace.save(Path(folder, "t.ipt")))
    name = "BERT-Large, 64 IPUs"
    return [
        _row(f"{name}: lower + simulate", lowering + simulating, "budget, s", BUDGET),
        _row(f"{name}: lower + simulate, MB added", added, "budget, MB", BUDGET_MEGABYTES),
        _row(f"{name}: accumulation 2,048", longer, "accumulation 512", least, LONGER_BOUND),
        _row(f"{name}: saving the trace", saving, "simulating it", simulating, SAVE_BOUND),
        *_exports(name, trace),
    ]


def _exports(name: str, trace: Any) -> list[dict[str, Any]]:
    from ipuperf.report import to_chrome_json, to_perfetto

    rows = []
    for write, file in ((to_perfetto, "t.pftrace"), (to_chrome_json, "t.json")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, file)
            seconds, _ = _seconds(lambda write=write, path=path: write(trace, path))
            size = path.stat().st_size / 1e6
        rows.append(_row(f"{name}: {write.__name__}", seconds, "budget, s", EXPORT_SECONDS))
        rows.append(_row(f"{name}: {write.__name__}, MB", size, "budget, MB", EXPORT_MEGABYTES))
    return rows


def replicas() -> list[dict[str, Any]]:
    """Simulating 1 to 64 replicas (256 IPUs)."""
    reference, _ = _simulated(bert_large(2), 3)
    rows = []
    for count, bound in FLAT_BOUNDS.items():
        seconds, _ = _simulated(bert_large(count), 3)
        rows.append(_row(f"BERT-Large, {count} x 4 IPUs: simulate", seconds, "2 x 4 IPUs", reference, bound))
    return rows


def long_process() -> list[dict[str, Any]]:
    """What a process keeps of simulations whose traces nobody keeps."""
    executable = bert_large(4)
    _simulated(executable, 2)
    gc.collect()
    before = _megabytes()
    _simulated(executable, SIMULATIONS)
    gc.collect()
    grown = max(0.1, _megabytes() - before)
    return [_row(f"MB kept of {SIMULATIONS} simulations", grown, "budget, MB", GROWTH_MEGABYTES)]


JOBS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "whole_step": whole_step,
    "replicas": replicas,
    "long_process": long_process,
}


def pods() -> list[dict[str, Any]]:
    """All rows, each job in a process of its own; none without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return []
    rows: list[dict[str, Any]] = []
    for name in JOBS:
        code = f"import json, pods; pods.prepare(); print(json.dumps(pods.JOBS[{name!r}]()))"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True
        )
        rows += json.loads(done.stdout.splitlines()[-1])
    return rows


def prepare() -> None:
    """One thread, PopTorch under its name."""
    import torch

    import ipuperf

    ipuperf.install()
    torch.set_num_threads(1)


if __name__ == "__main__":
    for row in pods():
        print(f"{row['name']:50} {row['seconds']:8.3f}  {row['ratio']:6.2f} x {row['reference']}")
