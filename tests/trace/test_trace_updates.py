"""Which steps belong to a micro-batch: those of the weight update do not, folded or not."""

import numpy as np

from ipuperf import popxl
from ipuperf.popxl import ops
from ipuperf.simulation import simulate


def test_an_update_that_shares_a_stretch_with_other_steps_belongs_to_no_micro_batch():
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence(True):
        stream = popxl.h2d_stream((4,), popxl.float32)
        weight = popxl.variable(np.ones(4, np.float32))

        def step(value: popxl.TensorByRef):
            value = ops.var_updates.accumulate_(value, value, 0.5)
            ops.exp(value)

        ops.host_load(stream)
        graph = ir.create_graph(step, weight)
        ops.repeat(graph, 3, weight)
    with popxl.Session(ir, "ipu_model") as session:
        executable = session.executable
    for fold in (True, False):
        slices = simulate(executable.device_program, executable.machine, fold=fold).expand()
        found = slices[slices.kind == "compute"].groupby(slices.op.astype(str)).micro_batch.unique()
        by_type = {name.rpartition("/")[2].partition(".")[0]: values.tolist() for name, values in found.items()}
        assert by_type["Accumulate"] == [-1]
        assert by_type["Exp"] == [0]
