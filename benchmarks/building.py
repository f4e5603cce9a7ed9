"""Speed of building programs: what making an op of PopXL costs, and importing PopXL.

Each figure is a ratio to something measured in the same run, in turns with it, and has a bound near its value.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

OPS = 2000
ADDITIONS = 500_000
OP_BOUND, IMPORT_BOUND = 4.0, 2.5


def making() -> float:
    """CPU seconds of a PopXL program of :data:`OPS` ops: products, arithmetic, views, parts, reductions."""
    import popxl
    from popxl import ops

    graph = popxl.Ir().main_graph
    with graph:
        x = popxl.variable(np.ones((16, 32), np.float32), name="x")
        w = popxl.variable(np.ones((32, 32), np.float32), name="w")
        start = time.process_time()
        for _ in range(OPS // 10):
            y = x @ w
            z = ops.softmax(ops.gelu(y + x), 1) * 2.0
            z = ops.transpose(ops.reshape(z * y, (32, 16)))
            ops.concat([ops.sum(z, 1, True), x[:, 0:4]], 1)
        return time.process_time() - start


def adding() -> float:
    """CPU seconds of a Python loop of :data:`ADDITIONS` additions."""
    start, total = time.process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return time.process_time() - start


def importing(module: str) -> float:
    """CPU seconds that a fresh interpreter says it takes to import ``module``."""
    prepare = "import ipuperf; ipuperf.install(); " if module == "popxl" else ""
    code = f"import time; start = time.process_time(); {prepare}import {module}; print(time.process_time() - start)"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def _row(name: str, seconds: float, reference: str, reference_seconds: float, bound: float) -> dict[str, Any]:
    return {
        "name": name,
        "seconds": seconds,
        "reference": f"{reference} (bound {bound})",
        "reference_seconds": reference_seconds,
        "ratio": seconds / reference_seconds,
        "bound": bound,
    }


def building(repeats: int) -> list[dict[str, Any]]:
    """Both rows."""
    import ipuperf

    ipuperf.install()
    making(), importing("popxl"), importing("numpy")
    pairs = [(making(), adding()) for _ in range(repeats)]
    imports = [(importing("popxl"), importing("numpy")) for _ in range(repeats)]
    ops, additions = (statistics.median(times) for times in zip(*pairs, strict=True))
    popxl, numpy = (statistics.median(times) for times in zip(*imports, strict=True))
    return [
        _row(f"PopXL: {OPS} ops", ops, f"Python loop of {ADDITIONS:,} additions", additions, OP_BOUND),
        _row("import popxl", popxl, "import numpy", numpy, IMPORT_BOUND),
    ]


if __name__ == "__main__":
    for row in building(9):
        print(f"{row['name']:20} {row['seconds']:8.4f} s  {row['ratio']:6.2f} x {row['reference']}")
