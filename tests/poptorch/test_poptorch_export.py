"""Modules as stage graphs: partition, edges, parameters, losses, arguments and results, errors."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from exportcases import check_against_torch, noise  # noqa: E402

from ipuperf import poptorch  # noqa: E402
from ipuperf.pipelines import Activation, Data, HostInput, Seed  # noqa: E402
from ipuperf.poptorch.export.module import export_model  # noqa: E402

nn, F = torch.nn, torch.nn.functional


# -- the tutorial ------------------------------------------------------------------------------------------------------


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


# -- transformers ------------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    def __init__(self, encoder: Any, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, 3)

    def forward(self, x: Any, y: Any) -> Any:
        logits = self.head(self.encoder(x)[:, 0])
        return logits, F.cross_entropy(logits, y)


@pytest.mark.heavy
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


@pytest.mark.heavy
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
        return self.norm2(x + self.outer(F.gelu(self.inner(x), approximate="tanh")))


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


@pytest.mark.heavy
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


# -- values that several stages use ------------------------------------------------------------------------------------


class Chain(nn.Module):
    """Blocks that all use the input, a buffer and the result of the first block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: Any) -> Any:
        first = y = None
        for index, layer in enumerate(self.layers):
            with poptorch.Block(ipu_id=index):
                y = layer(x if index == 0 else y) + self.shift
                first = y if first is None else first
        with poptorch.Block(ipu_id=3):
            return poptorch.identity_loss((y + first + x).sum(), "none")


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
