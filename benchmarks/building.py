"""Speed of building programs: what making an op of PopXL costs, and importing PopXL."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

import numpy as np
from bounds import LOOP, Row, cpu_seconds, loop_seconds

OPS = 2000
NAME, IMPORT = f"PopXL: {OPS:,} ops", "import popxl"
BOUNDS = {NAME: 0.4, IMPORT: 2.8}


def making() -> float:
    """CPU seconds of a PopXL program of :data:`OPS` ops: products, arithmetic, views, parts, reductions."""
    import popxl
    from popxl import ops

    graph = popxl.Ir().main_graph
    with graph:
        x = popxl.variable(np.ones((16, 32), np.float32), name="x")
        w = popxl.variable(np.ones((32, 32), np.float32), name="w")

        def program() -> None:
            for _ in range(OPS // 10):
                y = x @ w
                z = ops.softmax(ops.gelu(y + x), 1) * 2.0
                z = ops.transpose(ops.reshape(z * y, (32, 16)))
                ops.concat([ops.sum(z, 1, True), x[:, 0:4]], 1)

        return cpu_seconds(program)


def importing(module: str) -> float:
    """CPU seconds that a fresh interpreter says it takes to import ``module``."""
    prepare = "import ipuperf; ipuperf.install(); " if module == "popxl" else ""
    code = f"import time; start = time.process_time(); {prepare}import {module}; print(time.process_time() - start)"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def rows(repeats: int) -> list[Row]:
    """Both rows."""
    import ipuperf

    ipuperf.install()
    making(), importing("popxl"), importing("numpy")
    pairs = [(making(), loop_seconds()) for _ in range(repeats)]
    imports = [(importing("popxl"), importing("numpy")) for _ in range(repeats)]
    ops, additions = (statistics.median(times) for times in zip(*pairs, strict=True))
    popxl, numpy = (statistics.median(times) for times in zip(*imports, strict=True))
    return [Row(NAME, ops, LOOP, additions), Row(IMPORT, popxl, "import numpy", numpy)]
