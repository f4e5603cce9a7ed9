"""Modules as stage graphs: partition, edges, parameters, losses, arguments and results, errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.pipelines import Activation, Data, HostInput, Seed  # noqa: E402
from ipuperf.poptorch.export import export_model  # noqa: E402

nn, F = torch.nn, torch.nn.functional


def noise(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def check_against_torch(
    stages: Any, module: Any, exported: Any, tensors: list[Any], loss: Any, rtol: float = 2e-3
) -> Any:
    """Loss and gradients of all parameters against autograd."""
    outcome = stages(exported, tensors)
    position = next(i for i, s in enumerate(exported.outputs) if (s.part, s.output) == exported.loss)
    np.testing.assert_allclose(outcome.outputs[position], loss.item(), rtol=1e-4)
    module.zero_grad()
    loss.backward()
    grads = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    assert sorted(outcome.gradients) == sorted(grads) == sorted(exported.parameters)
    for name, grad in grads.items():
        np.testing.assert_allclose(outcome.gradients[name], grad.numpy(), rtol=rtol, atol=2e-5, err_msg=name)
    return outcome


# -- the tutorial --------------------------------------------------------------------------------------------------------


class ConvLayer(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel_size=5)
        self.pool = nn.MaxPool2d(kernel_size=2)
        self.relu = nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.relu(self.pool(self.conv(x)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = ConvLayer(1, 10)
        self.layer2 = ConvLayer(10, 20)
        self.layer3 = nn.Linear(320, 256)
        self.layer3_act = nn.ReLU()
        self.layer4 = nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        with poptorch.Block("B1"):
            x = self.layer1(x)
        with poptorch.Block("B2"):
            x = self.layer2(x)
        with poptorch.Block("B3"):
            x = x.view(-1, 320)
            x = self.layer3_act(self.layer3(x))
        with poptorch.Block("B4"):
            x = self.layer4(x)
        return x


class WithLoss(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss()

    def forward(self, args: Any, labels: Any = None) -> Any:
        output = self.model(args)
        if labels is None:
            return output
        with poptorch.Block("B4"):
            loss = self.loss(output, labels)
        return output, loss


FOUR = ("B1", "B2", "B3", "B4")


def test_the_tutorial_has_four_stages_with_known_edges(stages: Any) -> None:
    model = WithLoss(Network())
    x, y = noise(40, 1, 28, 28), torch.arange(40) % 10
    exported = export_model(model, (x, y), strategy=poptorch.PipelinedExecution(*FOUR), training=True)
    assert [(p.stage, p.ipu) for p in exported.parts] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    edges = [
        (source.part, index, exported.parts[source.part].graph.outputs[source.output].spec.bytes)
        for index, part in enumerate(exported.parts)
        for source in part.sources
        if isinstance(source, Activation)
    ]
    assert edges == [(0, 1, 230_400), (1, 2, 51_200), (2, 3, 40_960)]
    host = [[s.stream.name for s in p.sources if isinstance(s, HostInput)] for p in exported.parts]
    assert host == [["args"], [], [], ["labels"]]
    assert exported.inputs[1].stream.dtype.name == "int32"
    assert exported.num_ipus == 4
    assert [[op.type for op in p.graph.ops] for p in exported.parts] == [
        ["Conv", "AddBias", "MaxPool", "Relu"],
        ["Conv", "AddBias", "MaxPool", "Relu"],
        ["Reshape", "Transpose", "MatMul", "Add", "Relu"],
        ["Transpose", "MatMul", "Add", "LogSoftmax", "Nll"],
    ]
    assert sorted(exported.variables) == sorted(n for n, _ in model.named_parameters())
    outcome = check_against_torch(stages, model, exported, [x, y], model(x, y)[1])
    np.testing.assert_allclose(outcome.outputs[0], model(x).detach().numpy(), rtol=1e-3, atol=1e-5)


def test_two_blocks_on_one_ipu_are_one_stage() -> None:
    strategy = poptorch.PipelinedExecution(poptorch.Stage("B1", "B2").ipu(0), poptorch.Stage("B3", "B4").ipu(1))
    exported = export_model(WithLoss(Network()).eval(), (noise(8, 1, 28, 28),), strategy=strategy)
    assert [(p.stage, p.ipu, len(p.graph.ops)) for p in exported.parts] == [(0, 0, 8), (1, 1, 8)]
    assert exported.loss is None


def test_data_is_the_modules_own_and_every_op_has_the_users_line() -> None:
    model = Network()
    exported = export_model(model, (noise(2, 1, 28, 28),), strategy=poptorch.PipelinedExecution(*FOUR))
    np.testing.assert_array_equal(exported.variables["layer3.weight"].data, model.layer3.weight.detach().numpy())
    assert all(__file__ in op.location for part in exported.parts for op in part.graph.ops)
    assert isinstance(exported.parts[0].sources[1], Data)


# -- transformers --------------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    def __init__(self, encoder: Any, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, 3)

    def forward(self, x: Any, y: Any) -> Any:
        logits = self.head(self.encoder(x)[:, 0])
        return logits, F.cross_entropy(logits, y)


def test_a_transformer_encoder_in_four_blocks(stages: Any) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = Classifier(nn.TransformerEncoder(layer, 4), 32)
    for index, member in enumerate(model.encoder.layers):
        poptorch.BeginBlock(member, ipu_id=index)
    x, y = noise(2, 6, 32), torch.tensor([0, 2])
    exported = export_model(model, (x, y), training=True)
    assert [(p.stage, p.ipu) for p in exported.parts] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    for before, part in enumerate(exported.parts[1:]):
        (activation,) = [s for s in part.sources if isinstance(s, Activation)]
        assert activation.part == before
        assert exported.parts[before].graph.outputs[activation.output].shape == (2, 6, 32)
    check_against_torch(stages, model, exported, [x, y], model(x, y)[1])


def test_an_encoder_in_evaluation_is_its_ops_and_dropout_needs_a_seed(stages: Any) -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    x = noise(2, 5, 16)
    training = export_model(model, (x,))
    assert [isinstance(s, Seed) for s in training.parts[0].sources].count(True) == 1
    assert [op.attributes["key"] for op in training.parts[0].graph.ops if op.type == "Dropout"] == [0, 1, 2, 3]
    with torch.no_grad():
        exported = export_model(model.eval(), (x,))
        np.testing.assert_allclose(stages(exported, [x]).outputs[0], model(x).numpy(), rtol=1e-3, atol=1e-5)
    assert not any(isinstance(s, Seed) for s in exported.parts[0].sources)


@dataclass
class BertOutput:
    loss: Any
    logits: Any
    hidden: Any = None


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split(self, x: Any) -> Any:
        return x.view(*x.shape[:-1], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1]) + mask
        context = torch.matmul(F.softmax(scores, dim=-1), v).permute(0, 2, 1, 3).contiguous()
        x = self.norm1(x + self.out(context.view(*x.shape)))
        return self.norm2(x + self.outer(F.gelu(self.inner(x))))


class Bert(nn.Module):
    """BERT for masked language modelling in plain PyTorch, with tied embeddings and a position buffer."""

    def __init__(self, words: int = 30, width: int = 16, layers: int = 2, length: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.positions = nn.Embedding(length, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("position_ids", torch.arange(length)[None])
        self.layers = nn.ModuleList(BertLayer(width, 2) for _ in range(layers))
        self.decoder = nn.Linear(width, words)
        self.decoder.weight = self.words.weight

    def forward(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None, labels: Any = None
    ) -> Any:
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        x = self.words(input_ids) + self.positions(self.position_ids[:, : input_ids.shape[1]])
        x = self.norm(x + self.types(token_type_ids))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.decoder(x)
        loss = None if labels is None else F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))
        return BertOutput(loss, logits)


def bert_batch() -> dict[str, Any]:
    ids = torch.arange(24).view(4, 6) % 29
    mask = (ids % 5 != 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask == 1, ids, -100)}


def test_a_bert_with_tied_weights_by_keyword(stages: Any) -> None:
    model, batch = Bert(), bert_batch()
    exported = export_model(model, (), batch, training=True)
    assert exported.variables["decoder.weight"] is exported.variables["words.weight"]
    assert "decoder.weight" not in exported.parameters
    assert [s.name for s in exported.inputs] == ["input_ids", "attention_mask", "labels"]
    tensors = exported.tensors_of((batch["input_ids"], batch["attention_mask"]), {"labels": batch["labels"]})
    outcome = check_against_torch(stages, model, exported, tensors, model(**batch).loss)
    result = exported.result_of(outcome.outputs)
    assert isinstance(result, BertOutput)
    assert result.hidden is None
    assert result.logits.shape == (4, 6, 30)


def test_tied_weights_on_two_ipus_are_refused() -> None:
    model = Bert()
    poptorch.BeginBlock(model.layers[0], ipu_id=0)
    poptorch.BeginBlock(model.layers[1], ipu_id=1)
    message = "Can not copy variable tensor 'words.weight' between virtual graphs when pipelining.*IPU 0 and IPU 1"
    with pytest.raises(poptorch.PartitionError, match=message):
        export_model(model, (), bert_batch(), training=True)


# -- values that several stages use --------------------------------------------------------------------------------------


class Chain(nn.Module):
    """Blocks that all use the input, a buffer and the result of the first block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: Any) -> Any:
        first = None
        for index, layer in enumerate(self.layers):
            with poptorch.Block(ipu_id=index):
                y = layer(x if first is None else y) + self.shift  # noqa: F821
                first = y if first is None else first
        with poptorch.Block(ipu_id=3):
            result = (y + first + x).sum()
        return poptorch.identity_loss(result, "none") if False else self.end(result)

    def end(self, result: Any) -> Any:
        with poptorch.Block(ipu_id=3):
            return poptorch.identity_loss(result, "none")


def test_a_host_input_is_loaded_where_it_is_first_used_and_passed_on(stages: Any) -> None:
    model, x = Chain(), noise(5, 4)
    exported = export_model(model, (x,), training=True)
    assert [[type(s).__name__ for s in p.sources].count("HostInput") for p in exported.parts] == [1, 0, 0, 0]
    last = [s for s in exported.parts[3].sources if isinstance(s, Activation)]
    assert sorted(s.part for s in last) == [0, 0, 2]
    assert exported.unused == ["shift"]  # a buffer on several IPUs is a constant of each
    check_against_torch(stages, model, exported, [x], model(x))


def test_gradients_stop_at_detach_and_no_grad(stages: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Parameter(noise(4) + i) for i in range(3))

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                scale = self.a * x
            y = scale * self.b + self.b.detach() * self.c + self.c.data
            return y, poptorch.identity_loss(y, "mean")

    model, x = Model(), noise(4)
    exported = export_model(model, (x,), training=True)
    outcome = stages(exported, [x])
    model(x)[1].backward()
    assert sorted(outcome.gradients) == ["b", "c"]
    np.testing.assert_allclose(outcome.gradients["b"], model.b.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(outcome.gradients["c"], model.c.grad.numpy(), rtol=1e-5)
    assert "Detach" not in [op.type for p in export_model(model, (x,)).parts for op in p.graph.ops]


def test_blocks_inside_regions_without_gradients_keep_their_places() -> None:
    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                with poptorch.Block(ipu_id=0):
                    x = x * 2
                with poptorch.Block(ipu_id=1):
                    x = torch.einsum("ij,kj->ik", x, x)
            return x

    exported = export_model(Model(), (noise(3, 4),))
    assert [p.ipu for p in exported.parts] == [0, 1]
    assert exported.parts[0].graph.ops[0].type == "Mul"


# -- arguments and results -----------------------------------------------------------------------------------------------


@dataclass
class Batch:
    images: Any
    scale: float
    extra: Any = None


class Nested(nn.Module):
    def forward(self, batch: Any, *rest: Any, names: Any = None, flag: bool = False) -> Any:
        y = batch.images * batch.scale + rest[0]["a"]
        if flag:
            y = y + rest[1]
        return {"y": y, "pair": (y.sum(), None), "names": names, "again": [y], "fixed": torch.ones(2)}


def test_nested_arguments_and_results(stages: Any) -> None:
    model, x = Nested(), noise(2, 3)
    args = (Batch(x, 2.0), {"a": torch.ones(3)}, torch.tensor(5))
    exported = export_model(model, args, {"flag": True, "names": ["n"]})
    assert [s.name for s in exported.inputs] == ["batch.images", "rest.0.a", "rest.1"]
    tensors = exported.tensors_of(args, {"names": ["n"], "flag": True})
    result = exported.result_of(stages(exported, tensors).outputs)
    wanted = model(*args, flag=True, names=["n"])
    np.testing.assert_allclose(result["y"], wanted["y"].numpy(), rtol=1e-6)
    assert result["pair"][1] is None
    assert result["names"] == ["n"]
    np.testing.assert_allclose(result["again"][0], result["y"])
    np.testing.assert_array_equal(result["fixed"], [1, 1])
    assert exported.outputs[-1].constant is not None
    with pytest.raises(poptorch.Error, match=r"batch.scale: 3.0 given, the model was compiled with 2.0"):
        exported.tensors_of((Batch(x, 3.0), *args[1:]), {"names": ["n"], "flag": True})
    with pytest.raises(poptorch.Error, match=r"batch.extra: a tensor given, the model was compiled with None"):
        exported.tensors_of((Batch(x, 2.0, x), *args[1:]), {"names": ["n"], "flag": True})


def test_inputs_and_parameters_as_results(stages: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.arange(3.0))

        def forward(self, x: Any, unused: Any) -> Any:
            return x, self.w, x[1:]

    x = noise(3)
    exported = export_model(Model(), (x, torch.zeros(2)))
    outputs = stages(exported, [x, torch.zeros(2)]).outputs
    for mine, wanted in zip(outputs, (x, torch.arange(3.0), x[1:]), strict=True):
        np.testing.assert_array_equal(mine, wanted.numpy())
    assert exported.inputs[1].stream is None


# -- losses --------------------------------------------------------------------------------------------------------------


class Loss(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.function = function

    def forward(self, x: Any, y: Any) -> Any:
        return self.function(self.layer(x), y)


def loss_arguments() -> tuple[Any, Any]:
    return noise(5, 4), torch.tensor([0, 1, 2, 0, 1])


def test_no_loss_is_an_error() -> None:
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph"):
        export_model(Loss(lambda x, y: x.sum()), loss_arguments(), training=True)


def test_two_independent_losses_are_an_error() -> None:
    model = Loss(lambda x, y: F.cross_entropy(x, y) + F.mse_loss(x, x.flip(0)) * 5)
    message = "Multiple independent losses found in graph. Graph must have one final loss. Wrap final graph loss in "
    with pytest.raises(poptorch.Error, match=message + "poptorch.identity_loss"):
        export_model(model, loss_arguments(), training=True)


def test_several_losses_may_end_in_one(stages: Any) -> None:
    model = Loss(
        lambda x, y: poptorch.identity_loss(F.cross_entropy(x, y) + F.mse_loss(x, x.flip(0).detach()) * 5, "sum")
    )
    exported = export_model(model, loss_arguments(), training=True)
    check_against_torch(stages, model, exported, list(loss_arguments()), model(*loss_arguments()))


def test_a_loss_that_is_no_result_is_still_the_loss() -> None:
    def function(x: Any, y: Any) -> Any:
        F.cross_entropy(x, y).mul(2)
        poptorch.identity_loss(x, "mean")
        return x

    with pytest.raises(poptorch.Error, match="loss"):
        export_model(Loss(function), loss_arguments(), training=True)


# -- PopTorch's own ops --------------------------------------------------------------------------------------------------


def test_checkpoints_are_listed_and_leave_their_part() -> None:
    def function(x: Any, y: Any) -> Any:
        kept = poptorch.recomputationCheckpoint(torch.tanh(x))
        return F.cross_entropy(kept * 2, y)

    exported = export_model(Loss(function), loss_arguments(), training=True)
    ((part, tensor),) = exported.checkpoints
    assert part == 0
    assert tensor.producer.type == "Tanh"
    assert exported.parts[0].checkpoints == [tensor]
    assert tensor in exported.parts[0].graph.outputs


def test_memory_proportions_and_serialised_products(stages: Any) -> None:
    w = noise(4, 6)

    def function(x: Any, y: Any) -> Any:
        a = poptorch.set_available_memory(F.linear(x, torch.ones(4, 3), torch.ones(4)), 0.2)
        modes = poptorch.MatMulSerializationMode
        found = [poptorch.serializedMatMul(a, w, mode, factor) for mode, factor in (
            (modes.OutputChannels, 3), (modes.InputChannels, 5), (modes.ReducingDim, 2))]  # fmt: skip
        return (*found, poptorch.nop(a))

    exported = export_model(Loss(function), loss_arguments())
    products = [op for op in exported.parts[0].graph.ops if op.type == "MatMul"]
    assert len(products) == 2 + 3 + 5 + 2
    assert products[1].attributes["available_memory_proportion"] == 0.2
    outputs = stages(exported, loss_arguments()).outputs
    for mine in outputs[:3]:
        np.testing.assert_allclose(mine, outputs[3] @ w.numpy(), rtol=1e-4, atol=1e-5)


# -- errors --------------------------------------------------------------------------------------------------------------


def fails(function: Any, message: str, **options: Any) -> None:
    with pytest.raises(poptorch.Error, match=message) as caught:
        export_model(Loss(function), loss_arguments(), **options)
    assert f"{__file__}:" in str(caught.value)


def test_control_flow_on_data_is_refused_with_its_line(capsys: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        if x.sum() > 0:
            return x
        return y

    fails(function, r"'if x.sum\(\) > 0:' depends on the value of a tensor; the program of an IPU is static")
    assert "def forward" not in capsys.readouterr().err


def test_item_is_refused() -> None:
    fails(lambda x, y: x * y[0].item(), "aten::item|depends on the value of a tensor")


def test_custom_autograd_functions_are_refused() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 3

    before = torch.autograd.Function.apply
    fails(lambda x, y: Twice.apply(x), "custom autograd function 'Twice' is unsupported")
    assert torch.autograd.Function.apply == before


def test_errors_of_the_module_itself_keep_line_and_reason() -> None:
    fails(lambda x, y: x @ x, "cannot be exported: .*mat1 and mat2 shapes|cannot be exported: RuntimeError")


def test_ops_between_blocks_are_refused() -> None:
    def function(x: Any, y: Any) -> Any:
        with poptorch.Block(ipu_id=0):
            x = x * 2
        x = x * 4
        with poptorch.Block(ipu_id=1):
            return x * 3

    fails(function, "No active Block, all the ops must belong to a Block")


def test_ops_before_the_first_block_go_to_the_first_stage() -> None:
    def function(x: Any, y: Any) -> Any:
        x = x * 2
        poptorch.Block.start(ipu_id=1)
        return x * 3

    exported = export_model(Loss(function), loss_arguments())
    assert [(p.ipu, [op.type for op in p.graph.ops]) for p in exported.parts] == [
        (0, ["Transpose", "MatMul", "Add", "Mul"]),
        (1, ["Mul"]),
    ]


def test_data_flows_to_later_stages_only() -> None:
    def function(x: Any, y: Any) -> Any:
        with poptorch.Block("later", ipu_id=1):
            x = x * 2
        with poptorch.Block("earlier", ipu_id=0):
            return x * 3

    strategy = poptorch.ParallelPhasedExecution(
        poptorch.Phase(poptorch.Stage("earlier")).ipus(0), poptorch.Phase(poptorch.Stage("later")).ipus(1)
    )
    with pytest.raises(poptorch.PartitionError, match="phase 0 runs after a block of phase 1|later stages only"):
        export_model(Loss(function), loss_arguments(), strategy=strategy)


def test_changing_an_input_in_place_is_refused() -> None:
    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.add_(1)

    with pytest.raises(poptorch.UnsupportedError, match="forward changes its input 'x' in place; clone it first"):
        export_model(Model(), (noise(3),))


def test_unsupported_strings_and_state_are_restored() -> None:
    before = torch.backends.mha.get_fastpath_enabled(), poptorch.isRunningOnIpu()
    fails(lambda x, y: torch.fft.fft(x), "aten::.*fft.* is unsupported|complex")
    assert (torch.backends.mha.get_fastpath_enabled(), poptorch.isRunningOnIpu()) == before


def test_models_without_data_can_be_exported() -> None:
    with torch.device("meta"):
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
        x = torch.empty(2, 8, 64)
    exported = export_model(model, (x,))
    assert exported.variables["layers.0.linear1.weight"].data.shape == (128, 64)
    assert len(exported.parameters) == 2 * 12
