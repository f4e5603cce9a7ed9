"""What a session answers, attached and not, as asked for and with each argument spoiled; and where drawn programs on
several IPUs and tile sets put every tensor and gradient."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from answers import answer, asked, listed, spoiled_lines, together
from programtext import checksum, figures
from rows import Golden

from ipuperf import popxl
from ipuperf.popxl import ops
from ipuperf.popxl.context import ExecutionContext, _execution_context
from ipuperf.popxl.placement import copied_from, place_of
from ipuperf.popxl.transforms import autodiff

pytestmark = pytest.mark.filterwarnings("ignore")  # arguments without effect

CALLS = """
s.run({p.inputs: x4})
s.run({p.inputs: x4}, downcast_inputs=False)
s.run({p.inputs: x4.astype(np.float64)})
s.run({p.inputs: x4.astype(np.float64)}, False)
s.run({p.inputs: x4.astype(np.int32)})
s.run({p.inputs: x4.tolist()})
s.run({p.inputs: x4[:, :1]})
s.run({p.inputs: x4[:1]})
s.run({p.inputs: np.concatenate([x4, x4])})
s.run({p.inputs: np.ones((2, 2, 2), np.float32)})
s.run({p.inputs: x4.reshape(4, 3)})
s.run({p.inputs: "a"})
s.run({})
s.run()
s.run({p.inputs: x4, p.unused: x4})
s.run({p.inputs: x4, other: x4})
s.run({other: x4})
s.run({p.inputs: x4, 3: x4})
s.run([x4])
d.run({p.inputs: x4})
o = s.create_host_outputs(); s.run_with_outputs({p.inputs: x4}, o); o
s.run_with_outputs({p.inputs: x4}, {})
s.run_with_outputs({p.inputs: x4})
s.run_with_outputs({p.inputs: x4}, {p.outputs: x4})
s.run_with_outputs({p.inputs: x4}, {p.outputs: np.zeros((2, 2, 3), np.float16)})
s.run_with_outputs({p.inputs: x4}, [x4])
s.create_host_outputs(), s.expected_inputs(), d.create_host_outputs()
s.get_tensor_data(p.w), d.get_tensor_data(p2.w), d.get_tensor_data(p2.c)
s.run({p.inputs: x4}); s.get_tensor_data(p.w), p.w.in_sync_with_ipu
s.run({p.inputs: x4}); p.w.in_sync_with_ipu
s.run({p.inputs: x4}); s.weights_to_host(); s.get_tensors_data([p.w, p.c])
s.get_tensor_data(p.t)
s.get_tensor_data(foreign)
s.get_tensors_data([])
s.write_variable_data(p.w, 5 * w3); s.run({p.inputs: x4})
s.write_variables_data({p.w: 5 * w3, p.v: np.int32([7])}); s.get_tensors_data([p.w, p.v])
d.write_variables_data({p2.w: 5 * w3}); d.get_tensor_data(p2.w)
s.write_variable_data(p.w, w3.astype(np.float64))
s.write_variable_data(p.w, w3[:2])
s.write_variable_data(p.v, 3)
s.write_variable_data(p.v, np.int32([3])); s.get_tensor_data(p.v)
s.write_variable_data(p.v, np.array([2 ** 40]))
s.write_variable_data(p.c, w3)
s.write_variable_data(p.t, w3)
s.write_variable_data(foreign, w3)
s.write_variable_data(p.every, w3)
s.weights_from_host(), s.weights_to_host()
d.weights_from_host()
d.weights_to_host()
s.is_attached, d.is_attached, s.ir == p.ir, s.device_desc, s.executable.name, s.weights_to_host_on_exit
within(d, lambda: [d.run({p2.inputs: x4}), d.is_attached]), d.is_attached, d.get_tensor_data(p2.w)
within(d, lambda: within(d, lambda: 1) + d.is_attached), d.is_attached
within(d, lambda: d.run({p2.inputs: x4}) and 1 / 0)
setattr(p.ir, "num_host_transfers", 3)
popxl.Session(popxl.Ir(), "ipu_hw", False).weights_to_host_on_exit
popxl.Session(popxl.Ir(2))
popxl.Session(popxl.Ir()).device_desc
popxl.Session(popxl.Ir(), "gpu")
popxl.Session(popxl.Ir(), "POD16").device_desc
popxl.Session(popxl.Ir(), "c600").device_desc
popxl.Session(with_input)
p.ir._pb_ir.getSessionOptions() is p.ir._pb_ir.getSessionOptions(), p.ir._pb_ir.getId() == p.ir.id
p.ir._pb_ir.other
context().ipu_id, context().io_tile_set, context().name_scopes, context().in_sequence
within(popxl.ipu(None), lambda: context().ipu_id), within(popxl.io_tiles(), lambda: context().io_tile_set), within(popxl.name_scope("a"), lambda: context().name_scopes), within(popxl.in_sequence(False), lambda: context().in_sequence)
context().other
context().graph
popxl.in_sequence(None)
popxl.in_sequence(2)
popxl.in_sequence(1.0)
popxl.in_sequence("pass"), popxl.in_sequence(lambda: 3)()
popxl.ipu(-1)
popxl.ipu(1.5)
within(part(ExecutionContext.Normal), lambda: 1)
within(part(list(ExecutionContext)[1]), lambda: 1)
"""  # noqa: E501


def _program(replicas: int = 2) -> Any:
    """``w += 1`` and ``x * w`` on two replicas, two slices in a run."""
    ir = popxl.Ir(replicas)
    ir.num_host_transfers = 2
    with ir.main_graph, popxl.in_sequence():
        inputs, unused = popxl.h2d_stream((3,), popxl.float32, "x"), popxl.h2d_stream((3,), popxl.float32, "unused")
        outputs = popxl.d2h_stream((3,), popxl.float32, "y")
        w, c = popxl.variable(np.float32([1, 2, 3]), name="w"), popxl.constant(np.float32([4]), name="c")
        v, every = popxl.variable([1], popxl.int32, "v"), popxl.variable(np.float32([1, 2, 3]), name="every")
        every._variable.retrieval = "all_replicas"

        def body(w: popxl.TensorByRef) -> None:
            ops.add_(w, 1)
            ops.host_store(outputs, ops.host_load(inputs, "x") * w)

        ops.repeat(ir.create_graph(body, w), 2, w)
        t = w * c
    return SimpleNamespace(ir=ir, inputs=inputs, unused=unused, outputs=outputs, w=w, c=c, v=v, t=t, every=every)


@contextmanager
def sessions() -> Iterator[dict[str, Any]]:
    """``s``, attached, of program ``p``; ``d``, not attached, of program ``p2``, whose stream is ``other``."""
    p, p2, with_input = _program(), _program(), popxl.Ir()
    with with_input.main_graph:
        popxl.graph_input((2,), popxl.float32, "i")
    s, d = popxl.Session(p.ir, "ipu_hw"), popxl.Session(p2.ir, "ipu_hw")

    def within(block: Any, act: Any) -> Any:
        with block:
            return act()

    with s:
        yield {
            "s": s, "d": d, "p": p, "p2": p2, "np": np, "popxl": popxl, "other": p2.inputs, "foreign": p2.w,
            "x4": np.arange(12, dtype=np.float32).reshape(2, 2, 3), "w3": np.float32([1, 2, 3]), "x": p.w,
            "with_input": with_input, "within": within, "context": popxl.context.get_current_context,
            "part": _execution_context, "ExecutionContext": ExecutionContext,
        }  # fmt: skip


@together(listed(CALLS))
def test_every_call(cases: list[str], golden: Golden) -> None:
    lines = []
    for case in cases:
        with sessions() as names:
            lines += [case, asked(case, names)]
    golden(lines)


@together(line for line in listed(CALLS) if line.startswith("s."))
def test_every_spoiled_call(cases: list[str], golden: Golden) -> None:
    lines = []
    for case in cases:
        with sessions() as names:
            lines += spoiled_lines(case, names, names["p"].ir._ir)
    golden(lines)


def drawn(seed: int) -> popxl.Ir:
    """Ops on three IPUs and both tile sets, copies between them, calls and loops of graphs that copy inside; what is
    refused is left out."""
    r = Random(seed)
    ir = popxl.Ir()
    ir.num_io_tiles = 32
    spec = popxl.TensorSpec((2, 4), popxl.float32)

    def inner(x: popxl.Tensor, y: popxl.Tensor) -> Any:
        act = seed % 4
        with popxl.ipu(act % 3):
            if act == 0:
                return x.copy_to_ipu(1, 2), y
            if act == 1:
                return ops.tanh(x), ops.io_tile_copy(y)
            return (x * 2 if act == 2 else x), y + 1

    with ir.main_graph, popxl.in_sequence(r.choice((True, False))):
        values = []
        for number in range(4):
            with popxl.ipu(r.choice((None, 0, 1, 2))):
                values.append(popxl.variable(np.ones((2, 4), np.float32), name=f"v{number}"))
        values.append(popxl.constant(np.ones((2, 4), np.float32), name="c"))
        graphs = [ir.create_graph(inner, spec, spec)]

        def outer(x: popxl.Tensor, y: popxl.Tensor) -> Any:
            a, b = ops.call(graphs[0], x, y)
            return ops.sin(a), b

        graphs.append(ir.create_graph(outer, spec, spec))
        for _ in range(16):
            x, y = r.choice(values), r.choice(values)
            with popxl.ipu(r.choice((None, 0, 1, 2))), popxl.io_tiles() if r.randrange(4) == 0 else nullcontext():
                act = r.randrange(7)
                said = [
                    lambda x=x, y=y: [x + y],
                    lambda x=x: [ops.tanh(x)],
                    lambda x=x: [x.copy_to_ipu(r.randrange(3))],
                    lambda x=x: [x.copy_to_ipu(r.randrange(3), r.randrange(3))],
                    lambda x=x: [ops.io_tile_copy(x)],
                    lambda x=x, y=y: list(ops.call(r.choice(graphs), x, y)),
                    lambda x=x, y=y: list(ops.repeat(r.choice(graphs), 2, x, y)),
                ][act]
                made: list[Any] = []
                answer(lambda said=said, made=made: made.extend(said()))
                values += made
    return ir


@pytest.mark.parametrize("seed", range(24))
def test_places(seed: int, golden: Golden) -> None:
    ir = drawn(seed)
    program = ir._ir
    with ir.main_graph:
        graphs = [graph for graph in program.all_graphs() if not graph.is_main]
        derived = [answer(lambda g=g: autodiff(popxl.Graph._from_ir(g)).graph.name) for g in graphs[::-1]]
    places = {
        f"{t.id}": (*place_of(t), answer(lambda t=t: copied_from(t)))
        for graph in program.all_graphs()
        for t in graph.tensors.values()
    }
    ipus = [(op.label, op.ipu, op.tile_set) for graph in program.all_graphs() for op in graph.ops]
    said = {"main": [place[:2] for name, place in places.items() if "/" not in name], "gradients": derived}
    golden({**said, "places": checksum(repr(places)), "ops_on": checksum(repr(ipus)), **figures(program)})
