"""A small user program in PopXL: a feed-forward block, run forward once per ``session.run``."""

import numpy as np
import popxl
from popxl import ops

BATCH = 32
FEATURES = 256
HIDDEN = 1024


def inference_session():
    """A session that loads a batch, applies the block and stores the result."""
    rng = np.random.default_rng(0)
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        inputs = popxl.h2d_stream((BATCH, FEATURES), popxl.float16, "inputs")
        outputs = popxl.d2h_stream((BATCH, FEATURES), popxl.float16, "outputs")
        x = ops.host_load(inputs)
        expand = popxl.variable(rng.normal(0, 0.02, (FEATURES, HIDDEN)), popxl.float16, name="expand")
        shrink = popxl.variable(rng.normal(0, 0.02, (HIDDEN, FEATURES)), popxl.float16, name="shrink")
        ops.host_store(outputs, x + ops.gelu(x @ expand) @ shrink)
    return popxl.Session(ir, "ipu_hw")
