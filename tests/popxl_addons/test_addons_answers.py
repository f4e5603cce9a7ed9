"""What the public functions of addons answer and write into a program: as asked for, and with each argument spoiled.

Golden texts are as in ``tests/popxl/test_popxl_answers.py``.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from addonscalls import CALLS
from answers import called_lines, listed, spoiled_lines, together
from rows import Golden

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops
from ipuperf.popxl_addons import dot_tree, named_replica_grouping, named_tensors, patterns
from ipuperf.popxl_addons.ops import (
    cross_entropy_sharded_loss,
    fp8_mse_scale,
    fp8_utils,
    grad_reduce_square_add,
    group_quantize_decompress,
    layer_norm_distributed,
    linear_layout,
    replicated_all_reduce_TP,
    replicated_strided_collectives,
    rotary_pos_embed,
)
from ipuperf.popxl_addons.transforms import repeat_graph

pytestmark = pytest.mark.filterwarnings("ignore")  # arguments without effect


def built(module: addons.Module, *args: Any) -> tuple[popxl.Tensor, ...]:
    """The results of a call of a module's graph, with new variables."""
    factories, graph = module.create_graph(*args)
    return graph.bind(factories.init()).call(*[arg for arg in args if isinstance(arg, popxl.Tensor)])


def gradient(module: addons.Module, *args: Any) -> Any:
    """What the inputs and outputs of a module's gradient graph stand for, and the results of a call of it."""
    factories, graph = module.create_graph(*args)
    backward = graph.autodiff()
    info = graph.bind(factories.init()).call_with_info(*args)
    known = backward.grad_graph_info.inputs_dict(info)
    given = [ops.init(t.shape, t.dtype, "dy") for t in backward.graph.inputs if t not in known]
    return connected(backward), backward.call(*given, args=known)


def connected(graph: addons.GraphWithNamedArgs) -> Any:
    """The connections of a gradient graph, as text."""
    info = graph.grad_graph_info
    return [
        [f"{c.connection_type} {c.fwd_tensor.id}" for c in ends]
        for ends in (info.expected_inputs, info.expected_outputs)
    ]


def twice(t: popxl.Tensor, n: Any = 2) -> popxl.Tensor:
    return t + t


def summed(tensors: list[popxl.Tensor]) -> popxl.Tensor:
    return tensors[0] + tensors[1]


@contextmanager
def program(capsys: pytest.CaptureFixture[str], folder: Path) -> Iterator[dict[str, Any]]:
    """The names that the expressions use, in a new program on four replicas whose main graph is open."""
    np.random.seed(7)  # noqa: NPY002  # of drawn weights
    ir = popxl.Ir(4)
    ir.num_io_tiles = 32
    host = np.arange(8, dtype=np.float32).reshape(2, 4)

    def inside(graph: popxl.Graph, act: Any) -> Any:
        with graph:
            return act()

    def printed(act: Any, *args: Any) -> str:
        act(*args)
        return capsys.readouterr().out

    with ExitStack() as stack:
        monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
        monkeypatch.chdir(mkdtemp(dir=folder))
        stack.enter_context(ir.main_graph)
        stack.enter_context(popxl.in_sequence())
        w, y = popxl.variable(host, name="w"), popxl.constant(host, name="y")
        x, half = ops.add(w, 1), ir.replica_grouping(group_size=2)
        shards = popxl.replica_sharded_buffer((2, 4), popxl.float32, shard_over=2)
        buffers = {
            "one": popxl.remote_buffer((2, 4), popxl.float32),
            "two": popxl.remote_buffer((2, 4), popxl.float32, 2),
        }
        made = {name: addons.VariableFactory(lambda: host, None, name) for name in ("weight", "bias")}
        shard = ops.collectives.replica_sharded_slice(x, half)
        yield {
            "ir": ir, "popxl": popxl, "addons": addons, "ops": ops, "np": np, "host": host, "w": w, "x": x, "y": y,
            "munging": addons.array_munging, "dot_tree": dot_tree, "grouping": named_replica_grouping, "half": half,
            "named_tensors": named_tensors, "patterns": patterns, "sharded_loss": cross_entropy_sharded_loss,
            "mse": fp8_mse_scale, "fp8": fp8_utils, "reduce_square": grad_reduce_square_add,
            "norm": layer_norm_distributed,
            "quantized": group_quantize_decompress, "layout": linear_layout, "reduce_tp": replicated_all_reduce_TP,
            "strided": replicated_strided_collectives, "rotary": rotary_pos_embed, "repeat_graph": repeat_graph,
            "context": lambda name, *given: stack.enter_context(getattr(popxl, name)(*given)), "inside": inside,
            "printed": printed, "folder": "folder", "environ": monkeypatch.setenv,
            "built": built, "gradient": gradient, "twice": twice, "summed": summed,
            "called": lambda graph, *given: graph.call(*given),
            "cube": np.arange(24).reshape(2, 3, 4), "shards": shards, "shard": shard, "x16": ops.cast(x, popxl.float16),
            "tree": addons.DotTree.from_dict({"a": 1, "b.c": 2, "0": 3, "1": 4, "e": addons.DotTree()}),
            "named": addons.NamedTensors(two=x, one=w), "both": addons.NamedTensors(shard=shard, whole=x),
            "buffers": addons.NamedRemoteBuffers(**buffers), "factories": addons.NamedVariableFactories(**made),
            "graph": ir.create_graph(lambda x: ops.tanh(x) * 2, w), "product": ir.create_graph(lambda x: x @ x.T, w),
            "counted": ir.create_graph(lambda x: (x @ x.T) @ x + x, w), "empty": ir.create_empty_graph("empty"),
            "image": popxl.variable(np.ones((1, 2, 4, 4), np.float32), name="image"),
            "ones2": popxl.variable(np.ones(2, np.float32)), "w4": popxl.variable(np.ones(4, np.float32)),
            "w1": popxl.variable(np.float32(0.5)), "index": popxl.variable(np.int32(1)),
            "labels": popxl.variable([1, 3], popxl.int32), "flag": popxl.variable([True], popxl.bool),
            "words": popxl.variable(np.arange(16).reshape(2, 4, 2), popxl.uint16),
            "words4": popxl.variable(np.ones((1, 4, 2, 4), np.float32)),
            "turns": popxl.variable(np.ones((4, 2), np.float32)),
            "outputs": popxl.d2h_stream((2, 4), popxl.float32, "out"),
            "streams": addons.InputStreams(a=((2, 4), popxl.float32), b=((), popxl.int32)),
        }  # fmt: skip


@together(listed(CALLS))
def test_every_call(cases: list[str], golden: Golden, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = []
    for case in cases:
        with program(capsys, tmp_path) as names:
            lines += called_lines(case, names, names["ir"]._ir)
    golden(lines)


ALIKE = ("environ(", "munging.", "rotary.trig", "_numpy(", "inside(")
"""Of their errors NumPy and Python say the text, in other words by version, or an earlier line has them all."""


@together(line for line in listed(CALLS) if "(" in line and not any(part in line for part in ALIKE))
def test_every_spoiled_call(
    cases: list[str], golden: Golden, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = []
    for case in cases:
        with program(capsys, tmp_path) as names:
            lines += spoiled_lines(case, names, names["ir"]._ir)
    golden(lines)
