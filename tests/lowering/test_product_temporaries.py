"""Why a small product takes much memory while it runs: PopXL tutorial 5's inference, 80 images times 784 x 512 weights.

Its plan (``docs/reference/planner.md``) uses 1,470 tiles: 21 blocks of columns, 5 of rows, 14 of the summed axis. So
each weight is copied to 5 tiles and each pixel to 21, and there are 14 partial sums of each result: 14 MB beside 1.6 MB
of weights and 0.25 MB of images, on no tile more than 10 kB.
"""

from __future__ import annotations

import numpy as np

from ipuperf import popxl
from ipuperf.lowering.planner.arguments import plan_matmul
from ipuperf.popxl import ops

ROWS, INNER, COLUMNS, SIZE = 80, 784, 512, 4


def test_the_temporaries_are_copies_of_operands_and_partial_sums() -> None:
    plan = plan_matmul("gc200", 1, ROWS, INNER, COLUMNS, "f32", "f32", "fcinf")
    columns, rows, inner = plan.field[1], plan.out_split, plan.in_split
    assert (columns, rows, inner, plan.tiles) == (21, 5, 14, 21 * 5 * 14)
    wide = -(-COLUMNS // columns) * columns  # the last block of columns is filled up
    assert plan.bytes_partials * plan.tiles == inner * ROWS * wide * SIZE
    read = (columns * ROWS * INNER + rows * INNER * wide) * SIZE
    in_place = (ROWS * INNER + INNER * wide) * SIZE
    assert read - in_place <= plan.bytes_operands * plan.tiles <= read
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence(True):
        h2d = popxl.h2d_stream((ROWS, INNER), popxl.float32)
        w = popxl.variable(np.zeros((INNER, COLUMNS), np.float32), name="w")
        y = ops.host_load(h2d) @ w
        d2h = popxl.d2h_stream(y.shape, y.dtype)
        ops.host_store(d2h, y)
    with popxl.Session(ir, "ipu_hw") as session:
        session.run({h2d: np.zeros((ROWS, INNER), np.float32)})
    trace = session.executable.trace
    rows_of = trace.table("variables").query("category == 'temporary'")
    temporary = int(rows_of["bytes"].max())
    expected = (plan.bytes_operands + plan.bytes_partials) * plan.tiles
    assert expected <= temporary <= expected + 8 * plan.tiles  # blocks of 8 bytes
    operands = (ROWS * INNER + INNER * COLUMNS) * SIZE
    peak = int(trace.table("liveness")["not_always_live"].max())
    assert temporary + operands <= peak <= temporary + operands + 2 * ROWS * COLUMNS * SIZE
