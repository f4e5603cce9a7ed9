"""A product of two matrices; the argument is their width."""

import sys

import numpy as np
import popxl
from popxl import ops

width = int(sys.argv[1]) if len(sys.argv) > 1 else 64
ir = popxl.Ir()
with ir.main_graph:
    weight = popxl.variable(np.eye(width, dtype=np.float32), name="weight")
    out = popxl.d2h_stream((width, width), popxl.float32, name="out")
    ops.host_store(out, ops.matmul(weight, weight))
with popxl.Session(ir, "ipu_hw") as session:
    session.run()
