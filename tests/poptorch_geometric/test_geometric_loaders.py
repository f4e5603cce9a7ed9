"""Loaders give batches of one size, with which models train as they do in PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from geometriccases import Clusters, Successors  # noqa: E402
from torch_geometric import nn as g  # noqa: E402
from torch_geometric.data import Data  # noqa: E402

from ipuperf import poptorch  # noqa: E402
from ipuperf import poptorch_geometric as pg  # noqa: E402

CLASSES = 3


def graph(nodes: int) -> Data:
    return Data(
        x=torch.randn(nodes, 4), edge_index=torch.randint(0, nodes, (2, 2 * nodes)), y=torch.tensor([nodes % CLASSES])
    )


@pytest.fixture
def graphs() -> list[Data]:
    torch.manual_seed(4)
    return [graph(int(n)) for n in torch.randint(3, 9, (13,))]


class Classifier(torch.nn.Module):
    """Two message passing layers, a sum over each graph, and the loss of real graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = g.GraphConv(4, 8), g.GINConv(torch.nn.Linear(8, 8))
        self.out = torch.nn.Linear(8, CLASSES)

    def forward(self, batch: Any) -> Any:
        x = self.first(batch.x, batch.edge_index).tanh()
        x = self.second(x, batch.edge_index).tanh()
        x = self.out(g.global_add_pool(x, batch.batch, batch.num_graphs))
        losses = torch.nn.functional.cross_entropy(x, batch.y.long(), reduction="none")
        return x, poptorch.identity_loss((losses * batch.graphs_mask).sum() / batch.graphs_mask.sum(), "none")


def test_training_with_a_loader_is_that_of_pytorch(graphs: list[Data]) -> None:
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(2)
    options.outputMode(poptorch.OutputMode.All)
    loader = pg.FixedSizeDataLoader(graphs, batch_size=4, options=options)
    model = Classifier()
    reference = copy.deepcopy(model)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, use_combined_accum=False)
    trained = poptorch.trainingModel(model, options, optimizer)
    native = torch.optim.SGD(reference.parameters(), lr=0.05)
    assert len(loader) == 1
    (batch,) = loader
    _, found = trained(batch)
    padded = pg.FixedSizeCollater(loader.fixed_size_options, add_masks_to_batch=True)
    wanted = []
    for step in range(2):
        native.zero_grad()
        for part in range(2):
            start = 3 * (2 * step + part)
            _, loss = reference(padded(graphs[start : start + 3]))
            (loss / 2).backward()
            wanted.append(loss.detach())
        native.step()
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-5)


def test_padding_changes_no_value_of_real_graphs(graphs: list[Data]) -> None:
    model = Classifier()
    (batch,) = pg.FixedSizeDataLoader(
        graphs[:3],
        batch_size=6,
        fixed_size_options=pg.FixedSizeOptions(60, 90, 6),
        fixed_size_strategy=pg.FixedSizeStrategy.StreamPack,
    )
    found, _ = poptorch.inferenceModel(model)(batch)
    tight = pg.FixedSizeCollater(pg.FixedSizeOptions.from_dataset(graphs[:3], 4), add_masks_to_batch=True)(graphs[:3])
    torch.testing.assert_close(found[:3], model(tight)[0][:3].detach(), rtol=1e-4, atol=1e-5)


def test_batches_are_packed_shuffled_and_repeated(graphs: list[Data]) -> None:
    options = poptorch.Options().deviceIterations(2)
    sizes = pg.FixedSizeOptions(20, 60, 5)
    given: dict[str, Any] = {"fixed_size_options": sizes, "fixed_size_strategy": pg.FixedSizeStrategy.StreamPack}
    for shuffle in (False, True):
        loader = pg.FixedSizeDataLoader(graphs, 5, shuffle, options=options, drop_last=True, **given)
        batches = list(loader)
        assert batches
        for batch in batches:
            assert (batch.x.shape[0], batch.edge_index.shape) == (40, (4, 60))
            assert (batch.graphs_mask.shape[0], batch.ptr.shape[0]) == (10, 12)
    skipping = pg.FixedSizeDataLoader([*graphs, graph(30)], 5, over_size_strategy=pg.OverSizeStrategy.Skip, **given)
    assert sum(int(batch.graphs_mask.sum()) for batch in skipping) == len(graphs)


def test_a_sampler_of_batches_and_trimming(graphs: list[Data]) -> None:
    batches = [[0, 1, 2], [3, 4]]
    loader = pg.FixedSizeDataLoader(
        graphs,
        4,
        fixed_size_options=pg.FixedSizeOptions(12, 14, 4),
        over_size_strategy=pg.OverSizeStrategy.TrimNodesAndEdges,
        batch_sampler=batches,
        add_pad_masks=False,
    )
    assert [batch.x.shape[0] for batch in loader] == [12, 12]
    assert "nodes_mask" not in next(iter(loader))


def test_what_loaders_refuse(graphs: list[Data]) -> None:
    with pytest.raises(AssertionError, match="`num_graphs` is 3 but batch size is 2"):
        pg.FixedSizeDataLoader(graphs, 2, fixed_size_options=pg.FixedSizeOptions(9, 9, 3))
    with pytest.raises(AssertionError, match="Cannot set `collate_fn` with `FixedSizeDataLoader`"):
        pg.FixedSizeDataLoader(graphs, collate_fn=list)
    with pytest.raises(ValueError, match="without `batch_sampler`"):
        pg.FixedSizeDataLoader(graphs, fixed_size_strategy=pg.FixedSizeStrategy.StreamPack, batch_sampler=[[0]])
    with pytest.raises(ValueError, match="needs FixedSizeStrategy.StreamPack"):
        pg.FixedSizeDataLoader(graphs, over_size_strategy=pg.OverSizeStrategy.Skip)
    with pytest.raises(ImportError, match=r"fixed_size_options=\.\.\."):
        pg.CustomFixedSizeDataLoader  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'Loader' \(did you mean DataLoader\?\); it has DataLoader"):
        pg.Loader  # noqa: B018


def test_graphs_of_one_size_need_no_padding() -> None:
    options = poptorch.Options().deviceIterations(2)
    same = [graph(4) for _ in range(8)]
    batches = list(pg.DataLoader(same, batch_size=2, options=options))
    assert [batch.x.shape[0] for batch in batches] == [16, 16]
    assert batches[0].edge_index.shape == (4, 16)


def test_clusters_are_joined_and_padded() -> None:
    torch.manual_seed(1)
    whole = graph(24)
    whole.y = torch.arange(24)
    clusters = Clusters(whole, num_parts=6, log=False)
    loader = pg.FixedSizeClusterLoader(
        clusters, pg.FixedSizeOptions(10, 20), batch_size=2, options=poptorch.Options().deviceIterations(3)
    )
    (batch,) = loader
    assert (batch.x.shape, batch.edge_index.shape) == ((30, 4), (6, 20))
    assert sorted(batch.y[batch.nodes_mask].tolist()) == list(range(24))
    with pytest.raises(AssertionError, match="FixedSizeClusterLoader, currently it is set to 3"):
        pg.FixedSizeClusterLoader(clusters, pg.FixedSizeOptions(10, 20, 3))
    with pytest.raises(AssertionError, match="does not support the following arguments: .'shuffle'"):
        pg.FixedSizeClusterLoader(clusters, pg.FixedSizeOptions(10, 20), shuffle=True)


def test_sampled_neighbourhoods_are_padded() -> None:
    whole = Data(x=torch.arange(12.0)[:, None], edge_index=torch.zeros(2, 12, dtype=torch.long), y=torch.arange(12))
    given: dict[str, Any] = {"neighbor_sampler": Successors(12), "batch_size": 3}
    sizes = pg.FixedSizeOptions(8, 5)
    loader = pg.FixedSizeNeighborLoader(whole, [1], fixed_size_options=sizes, **given)
    batches = list(loader)
    assert len(batches) == 4
    assert batches[1].x[:6, 0].tolist() == [3, 4, 5, 4, 5, 6]
    assert batches[1].nodes_mask.tolist() == [True] * 6 + [False] * 2
    assert (batches[1].edge_index.shape, batches[1]["batch_size"]) == ((2, 5), 3)
    found = pg.FixedSizeNeighborLoader(whole, [1], **given)
    assert next(iter(found)).x.shape == (7, 1)


class Weighted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        result = self.layer(x)
        return result, torch.nn.functional.mse_loss(result, torch.ones_like(result))


@pytest.mark.filterwarnings("ignore::ipuperf.runtime.effects.WithoutEffectWarning")
def test_a_stepper_compares_both_trainings() -> None:
    stepper = pg.TrainingStepper(Weighted(), optimizer=poptorch.optim.SGD, lr=0.1, rtol=1e-4, atol=1e-5)
    stepper.run(3, (torch.randn(5, 4),))
    assert set(stepper.benchmark(1, (torch.randn(5, 4),), ("ipu", "cpu"))) == {"ipu_time", "cpu_time"}
    with pytest.raises(NotImplementedError, match="'gpu'"):
        stepper.benchmark(1, (torch.randn(5, 4),), "gpu")
    with torch.no_grad():
        stepper.cpu_model.layer.weight += 1
    with pytest.raises(AssertionError, match="layer.weight was not equal"):
        stepper.check_parameters()
