"""One installation computes the same bits in every process, and says by what."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ipuperf.runtime.origin import origin_of

PROGRAM = """
import hashlib, sys
if "{first}" == "torch":
    import torch
import numpy as np
import ipuperf.popxl as popxl
import ipuperf.popxl.ops as ops
import ipuperf.popxl.transforms as transforms

ir, rng = popxl.Ir(), np.random.default_rng(1)
data = lambda *shape, dtype=np.float32: rng.normal(size=shape).astype(dtype)
with ir.main_graph, popxl.in_sequence():
    x, w = popxl.variable(data(512, 512)), popxl.variable(data(512, 512))
    image, kernel = popxl.variable(data(2, 32, 28, 28)), popxl.variable(data(64, 32, 3, 3))
    results = [x @ w, ops.conv(image, kernel, padding=(1, 1, 1, 1)), ops.cast(x * 1e-6, popxl.float16)]
    forward = ir.create_graph(lambda a, b: ops.conv(a, b, stride=(2, 2)), image, kernel)
    backward = transforms.autodiff(forward)
    call = ops.call_with_info(forward, image, kernel)
    (y,) = call.outputs
    results += ops.call(backward.graph, y, inputs_dict=backward.inputs_dict(call))
    streams = [popxl.d2h_stream(t.shape, t.dtype) for t in results]
    for stream, t in zip(streams, results):
        ops.host_store(stream, t)
with popxl.Session(ir, "ipu_model") as session:
    outputs = session.run()
print(hashlib.sha256(b"".join(outputs[s].tobytes() for s in streams)).hexdigest(), "torch" in sys.modules)
"""


@pytest.mark.heavy
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_an_import_changes_no_bit() -> None:
    """Products, convolutions and their gradients, conversions to half precision."""
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(first=first)], capture_output=True, text=True, check=True
        ).stdout.split()
        for first in ("numpy", "torch")
    ]
    assert [loaded for _, loaded in found] == ["False", "True"]
    assert found[0][0] == found[1][0]


def test_a_run_says_what_computes() -> None:
    assert f"NumPy {np.__version__}" in origin_of(Path(__file__), (), "auto", "simulated").text()
