"""Every cycle and every byte of a tile belongs to a module and a line of the user's file, in each front end."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ipuperf
from ipuperf.report.page.facts import page_facts
from ipuperf.runtime.settings import RunSettings, use_settings
from ipuperf.trace import PHASES, Trace, check
from ipuperf.trace.operations import NO_OP_NAME


def gpt() -> None:
    """Four blocks of attention in four stages of a pipeline, in PopTorch."""
    torch = pytest.importorskip("torch")
    import poptorch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv = torch.nn.LayerNorm(8), torch.nn.Linear(8, 24)
            self.mlp = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
            return self.mlp(x + torch.softmax(q @ k.transpose(1, 2), -1) @ v)

    class Gpt(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16)
            self.blocks = torch.nn.ModuleList([poptorch.BeginBlock(Block(), ipu_id=ipu) for ipu in range(4)])

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids)
            for block in self.blocks:
                x = block(x)
            loss = torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())
            return poptorch.identity_loss(loss, reduction="none")

    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    model = Gpt()
    poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters()))(torch.arange(64).view(8, 8) % 16)


def bert() -> None:
    """Embeddings, two layers of attention and a head, trained by Adam, in PopXL with addons."""
    import popxl
    import popxl_addons as addons
    from popxl import ops
    from popxl_addons.layers import Embedding, LayerNorm, Linear
    from popxl_addons.optimizers.adam import AdamOptimizerStep

    class Layer(addons.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.norm, self.up, self.down = Linear(24), LayerNorm(), Linear(16), Linear(8)

        def build(self, x: Any) -> Any:
            q, k, v = ops.split(self.qkv(x), 3, axis=-1)
            x = x + ops.softmax(q @ ops.transpose(k, (0, 2, 1)) * 0.5, axis=-1) @ v
            x = self.norm(x.reshape((32, 8))).reshape((4, 8, 8))
            return x + self.down(ops.gelu(self.up(x)))

    class Bert(addons.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layers = Embedding(popxl.float32, 16, 8), addons.Module.from_list([Layer(), Layer()])
            self.head = Linear(16)

        def build(self, ids: Any) -> Any:
            x = self.words(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(x).reshape((32, 16))

    ir = popxl.Ir()
    with ir.main_graph:
        stream = popxl.h2d_stream((4, 8), popxl.int32)
        ids = ops.host_load(stream)
        factories, forward = Bert().create_graph(ids)
        backward, weights = addons.autodiff(forward), factories.init()
        info = forward.bind(weights).call_with_info(ids)
        _, gradient = addons.ops.cross_entropy_with_grad(info.outputs[0], ids.reshape((32,)))
        calls = backward.call_with_info(gradient, args=backward.grad_graph_info.inputs_dict(info))
        gradients = backward.grad_graph_info.fwd_parent_ins_to_grad_parent_outs(info, calls)
        for weight in weights.tensors:
            state, update = AdamOptimizerStep(cache=True).create_graph(weight, weight.spec, lr=0.1)
            update.bind(state.init()).call(weight, gradients[weight])
    with popxl.Session(ir, "ipu_hw") as session:
        session.run({stream: np.arange(32, dtype=np.int32).reshape(4, 8) % 16})


def keras_pipeline() -> None:
    """Two stages of dense layers in Keras."""
    pytest.importorskip("tensorflow")
    from tensorflow import keras
    from tensorflow.python import ipu

    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = keras.Input((4,))
        with keras.ipu.PipelineStage(0):
            x = keras.layers.Dense(8, activation="relu", name="first")(inputs)
        with keras.ipu.PipelineStage(1):
            x = keras.layers.Dense(2, name="second")(keras.layers.LayerNormalization(name="norm")(x))
        model = keras.Model(inputs, x)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        model.compile("adam", "mse", steps_per_execution=4)
        model.fit(np.ones((8, 4), np.float32), np.ones((8, 2), np.float32), batch_size=2, verbose=0)


def remote_variables() -> Trace:
    """The perceptron of the tutorial, with Adam's state in Streaming Memory."""
    from ipuperf.models.mnist_mlp import TrainingOptions, training_session

    return ipuperf.simulate_session(training_session(TrainingOptions(threshold=math.inf)).session)


def transformer() -> Trace:
    """A transformer in PopXL whose layers are sharded over two IPUs and repeated."""
    from ipuperf.models.gpt_j import GptJOptions, generation_session

    options = GptJOptions(vocabulary=64, hidden=32, layers=3, heads=4, rotary=4, sequence=8, micro_batch=2, replicas=2)
    return ipuperf.simulate_session(generation_session(options).session)


def resnet50() -> Trace:
    """ResNet-50 in stages on 4 IPUs, in PopTorch."""
    pytest.importorskip("torch")
    from ipuperf.models import resnet50

    return resnet50.simulate(resnet50.pretraining())


PROGRAMS = {
    "bert": bert,
    "gpt": gpt,
    "keras pipeline": keras_pipeline,
    "remote variables": remote_variables,
    "resnet50": resnet50,
    "transformer": transformer,
}
INSIDE = {
    "bert": {"Bert.words", "Bert.0.qkv", "Bert.1.down", "Bert.head"},
    "gpt": {"blocks.0", "blocks.0.mlp.2", "blocks.1.qkv", "blocks.3.norm", "head", "tokens"},
    "keras pipeline": {"first", "second", "norm"},
    "remote variables": {"Classifier.fc1", "Classifier.fc4"},
    "transformer": {"Layer.attention.qkv", "Head.logits", "Embeddings.word"},
    "resnet50": {"blocks.0.reduce", "blocks.12.expand"},
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.heavy if name == "resnet50" else ()) for name in PROGRAMS],
)
def name(request: pytest.FixtureRequest) -> str:
    """A program."""
    return request.param


@pytest.fixture(scope="module")
def trace(name: str, installed_front_ends: Callable[[], Any]) -> Trace:
    """The trace of its first executable."""
    with installed_front_ends(), use_settings(RunSettings()) as used:
        return PROGRAMS[name]() or used.executables[0].trace


def test_every_cycle_and_byte_has_a_module_and_a_line(name: str, trace: Trace) -> None:
    operations = trace.operations()
    operations = operations[operations.op != NO_OP_NAME]
    assert operations.cycles.sum() == trace.modules().own_cycles.sum() > 0  # syncs of no op are waiting
    assert INSIDE[name] <= set(operations.module)
    lines = trace.table("ops").set_index("op_id")["line"]
    variables = trace.table("variables")
    assert (operations.module != "").all()
    code, tiles = trace.code(), trace.table("tile_memory")
    assert check(trace) == []  # of each tile too
    assert code.bytes.sum() == tiles[tiles.category != "variableNotAlwaysLive"].bytes.sum() > 0
    known = code[(code.module != "") & code.line.str.fullmatch(r".*\.py:\d+")]
    assert known.bytes.sum() >= 0.99 * code.bytes.sum()
    tree = trace.modules()
    held = trace.table("variables").query("location == 'tile'").bytes.sum()
    assert tree[tree.parent == ""].bytes.sum() == code.bytes.sum() + held
    assert operations.line.str.fullmatch(r".*\.py:\d+").all()
    assert lines.loc[variables.op_id].str.fullmatch(r".*\.py:\d+").all()  # an op for each of them


def test_updates_belong_to_the_modules_of_their_weights(name: str, trace: Trace) -> None:
    if name not in ("gpt", "resnet50"):
        pytest.skip("PopXL's and TensorFlow's optimisers have modules of their own")
    updates = trace.modules().set_index("module")["update"]
    assert all(updates[module] > 0 for module in INSIDE[name] & set(updates.index) - {"blocks.0", "blocks.1.norm"})


def test_no_column_of_the_page_is_empty(name: str, trace: Trace) -> None:
    facts = page_facts(trace, 1000)
    for table in ("operations", "modules", "code"):
        for column, values in facts[table].items():
            # A program has not all phases, and the first IPU is number 0.
            assert column in (*PHASES, "ipu") or not isinstance(values, list | np.ndarray) or any(values), (
                table,
                column,
            )
    variables = facts["variables"]["listed"]
    for of_variable, module, line in zip(*(variables[name] for name in ("name", "module", "line")), strict=True):
        assert module, of_variable
        assert line, of_variable
