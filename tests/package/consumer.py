"""A program of someone who installed ipuperf and checks types strictly: no name of it is untyped."""

import numpy as np

import ipuperf
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ops
from ipuperf.machine import Machine, load_machine
from ipuperf.report import breakdown, duration, report_page, step_time, why_text
from ipuperf.trace import Trace


def build(width: int) -> popxl.Session:
    ir = popxl.Ir()
    with ir.main_graph:
        weight = popxl.variable(np.eye(width, dtype=np.float32), name="weight")
        out = popxl.d2h_stream((width, width), popxl.float32, name="out")
        tensor: popxl.Tensor = ops.relu(weight @ weight)
        ops.host_store(out, tensor)
    return popxl.Session(ir, "ipu_hw")


def main() -> None:
    machine: Machine = load_machine("pod4")
    trace: Trace = ipuperf.simulate_session(build(64), machine)
    seconds: float = trace.seconds(int(trace.summary()["total_cycles"]))
    rows: int = len(trace.table("ops"))
    page: str = report_page(trace)
    print(duration(seconds), rows, len(page) > 0, step_time(trace).sentence(), len(breakdown(trace)))
    print(why_text(trace).splitlines()[0])


main()
