"""Layers with a state of their own: running statistics, dropout masks, tied and frozen weights, half precision."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from executorcases import (  # noqa: E402
    BLOCKS,
    IN,
    OUT,
    Network,
    accumulate,
    assert_same_weights,
    batch,
    close,
    compare,
    inference,
    options,
    twins,
)
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402


class Normal(nn.Module):
    """Batch normalisation in the first two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(IN, 8), nn.Linear(8, 8), nn.Linear(8, OUT)
        self.norms = nn.ModuleList([nn.BatchNorm1d(8, momentum=0.3), nn.BatchNorm1d(8)])

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        with poptorch.Block("B0"):
            x = torch.tanh(self.norms[0](self.first(x)))
        with poptorch.Block("B1"):
            x = torch.tanh(self.norms[1](self.second(x)))
        with poptorch.Block("B2"):
            x = self.third(x)
            return x if y is None else (x, nn.functional.mse_loss(x, y))


def phased(*blocks: str) -> Any:
    """One phase per block, all on IPU 0; weights are off chip by default, running statistics stay."""
    strategy = poptorch.SerialPhasedExecution(*(poptorch.Phase(block) for block in blocks))
    for number in range(len(blocks)):
        strategy.phase(number).ipus(0)
    return strategy


@pytest.mark.heavy
@pytest.mark.parametrize("strategy", [poptorch.PipelinedExecution, poptorch.ShardedExecution, phased])
def test_running_statistics_count_each_micro_batch_once(strategy: Any) -> None:
    """Also where the forward is recomputed; then inference uses them."""
    ours, theirs = twins(Normal)
    data = batch(12, rows=5)
    opts = options(iterations=2, strategy=strategy(*BLOCKS))
    model = poptorch.trainingModel(ours, opts, torch.optim.SGD(ours.parameters(), lr=0.05))
    model(*data)
    accumulate(theirs, torch.optim.SGD(theirs.parameters(), lr=0.05), data, iterations=2, accumulation=6)
    assert ours.norms[0].num_batches_tracked.item() == 12
    assert_same_weights(ours, theirs, rtol=1e-4, atol=1e-5)
    x, _ = batch(4, seed=7)
    found = poptorch.inferenceModel(ours, inference())(x)
    close(found, theirs.eval()(x), rtol=1e-4, atol=1e-5)
    assert ours.training, "inference is compiled in evaluation mode and leaves the module as it was"
    assert all(module.training for module in ours.modules())


class Residual(nn.Module):
    """A convolution with batch normalisation, a residual block and a classifier, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.block, self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, momentum=0.3)
        self.last = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        x = torch.relu(self.first(self.stem(x)))
        x = torch.relu(x + self.second(self.block(x)))
        x = self.last(x.mean(dim=(2, 3)))
        return x if y is None else (x, nn.functional.cross_entropy(x.float(), y))


@pytest.mark.heavy
@pytest.mark.parametrize("frozen", [False, True])
def test_half_precision_residual_network(frozen: bool) -> None:
    """Training, evaluation and layers in evaluation mode, against the same network in float32 on the same numbers."""
    ours, theirs = twins(lambda: Residual().half())
    theirs.float()
    for module in (ours, theirs):
        module.second.train(not frozen)
    rng = np.random.default_rng(2)
    opts = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.trainingModel(ours, opts, torch.optim.SGD(ours.parameters(), lr=0.125))
    native = torch.optim.SGD(theirs.parameters(), lr=0.125)
    for _ in range(3):
        x = torch.tensor(rng.normal(size=(8, 3, 6, 6)), dtype=torch.float16)
        y = torch.tensor(rng.integers(0, 5, 8))
        _, loss = model(x, y)
        native.zero_grad()
        _, wanted = theirs(x.float(), y)
        wanted.backward()
        native.step()
        np.testing.assert_allclose(loss.item(), wanted.item(), rtol=4e-3)
        assert_same_weights(ours, theirs, rtol=4e-3, atol=2e-3)
    assert ours.first.running_mean.dtype == torch.float16
    found = poptorch.inferenceModel(ours.eval(), opts)(x)
    np.testing.assert_allclose(found.float().numpy(), theirs.eval()(x.float()).detach().numpy(), atol=1e-2)


def test_a_frozen_layer_stays_frozen() -> None:
    """A submodule in evaluation mode is compiled so, as upstream."""
    ours, theirs = twins(Normal)
    for each in (ours, theirs):
        each.norms[0].eval()
    data = batch(6, rows=5)
    poptorch.trainingModel(ours, options(), torch.optim.SGD(ours.parameters(), lr=0.05))(*data)
    accumulate(theirs, torch.optim.SGD(theirs.parameters(), lr=0.05), data, iterations=1, accumulation=6)
    assert not ours.norms[0].training
    assert ours.norms[0].num_batches_tracked.item() == 0
    assert_same_weights(ours, theirs, rtol=1e-4, atol=1e-5)


class Dropped(nn.Module):
    """The first stage returns its mask; gradients show the mask of the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.ones(64)), nn.Parameter(torch.ones(64))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> Any:
        with poptorch.Block("B0"):
            kept = self.dropout(x * self.weight)
        with poptorch.Block("B1"):
            y = kept * self.last
            return kept, poptorch.identity_loss(y.sum(), "none")


@pytest.mark.parametrize("recompute", [True, False])
def test_dropout_is_replayed_in_the_backward(recompute: bool) -> None:
    """With inputs of one, the gradient of the weight is the sum of the masks that the forward used."""
    module = Dropped()
    opts = options(strategy=poptorch.PipelinedExecution("B0", "B1"))
    if not recompute:
        opts._Popart.set("autoRecomputation", 0)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    model = poptorch.trainingModel(module, opts, torch.optim.SGD(module.parameters(), lr=1.0))
    kept, loss = model(torch.ones(6, 64))
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    close(loss, kept.sum(dim=1))
    close(1 - module.weight, kept.sum(dim=0))
    close(1 - module.last, kept.sum(dim=0))
    assert len({tuple(row.tolist()) for row in kept}) == 6, "each micro-batch has its own mask"
    again, _ = model(torch.ones(6, 64))
    assert not torch.equal(again != 0, kept != 0), "each call too"


def test_the_state_of_random_numbers_can_be_set() -> None:
    module = Dropped()
    opts = options(strategy=poptorch.PipelinedExecution("B0", "B1"), replicas=2)
    model = poptorch.trainingModel(module, opts, torch.optim.SGD(module.parameters(), lr=0.0))
    model.compile(torch.ones(12, 64))
    state = model.rng_state
    first, _ = model(torch.ones(12, 64))
    second, _ = model(torch.ones(12, 64))
    assert model.rng_state != state, "what was drawn counts"
    model.rng_state = state
    assert torch.equal(model(torch.ones(12, 64))[0], first)
    assert torch.equal(model(torch.ones(12, 64))[0], second)
    assert not torch.equal(first[0::2], first[1::2]), "replicas have masks of their own"
    with pytest.raises(poptorch.Error, match="1 numbers given, this model has 4"):
        model.rng_state = [1]


@pytest.mark.parametrize("seeds", [(3, 3), (3, 4)])
def test_the_seed_decides(seeds: tuple[int, int]) -> None:
    found = []
    for seed in seeds:
        module = Dropped()
        opts = options(strategy=poptorch.ShardedExecution("B0", "B1")).randomSeed(seed)
        found.append(
            poptorch.trainingModel(module, opts, torch.optim.SGD(module.parameters(), lr=0.0))(torch.ones(6, 64))[0]
        )
    assert torch.equal(*found) == (seeds[0] == seeds[1])


def test_inference_drops_nothing() -> None:
    kept, _ = poptorch.inferenceModel(Dropped(), inference(strategy=poptorch.ShardedExecution("B0", "B1")))(
        torch.ones(4, 64)
    )
    assert torch.equal(kept, torch.ones(4, 64))


class Tied(nn.Module):
    """The first and the last layer have one weight; both blocks are on IPU 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(IN, IN), nn.Linear(IN, IN), nn.Linear(IN, IN)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        with poptorch.Block("B0"):
            x = torch.tanh(self.first(x))
        with poptorch.Block("B1"):
            x = torch.tanh(self.middle(x))
        with poptorch.Block("B2"):
            x = self.last(x)
            return x, nn.functional.mse_loss(x[:, :OUT], y)


def test_tied_weights_on_one_ipu() -> None:
    strategy = poptorch.PipelinedExecution(
        poptorch.Stage("B0").ipu(0), poptorch.Stage("B1").ipu(1), poptorch.Stage("B2").ipu(0)
    )
    model = compare(network=Tied, strategy=strategy)
    assert model.model.last.weight is model.model.first.weight


@pytest.mark.parametrize("accumulator", [torch.float32, torch.float16])
def test_a_half_model(accumulator: Any) -> None:
    """Against the same training in float32: as close as float16 weights and activations can be."""
    ours, theirs = twins(lambda: Network(dtype=torch.float16))
    theirs.float()
    optimiser = poptorch.optim.AdamW(
        ours.parameters(), lr=0.01, eps=1e-2, weight_decay=0.1, accum_type=accumulator, loss_scaling=16.0,
        first_order_momentum_accum_type=torch.float16,
    )  # fmt: skip
    data = batch(12, dtype=torch.float16)
    out, loss = poptorch.trainingModel(ours, options(iterations=2), optimiser)(*data)
    native = torch.optim.AdamW(theirs.parameters(), lr=0.01, eps=1e-2, weight_decay=0.1)
    expected = accumulate(theirs, native, [t.float() for t in data], iterations=2, accumulation=6)
    assert (out.dtype, loss.dtype, ours.first.weight.dtype) == (torch.float16,) * 3
    close(loss.float(), torch.stack([r[1] for r in expected]), rtol=1e-2, atol=1e-2)
    assert_same_weights(ours, theirs, rtol=1e-2, atol=2e-3)


def test_half_accumulators_of_float_weights() -> None:
    """The sums are rounded to float16: near the exact weights, and not equal to them."""
    ours, theirs = twins(Network)
    optimiser = poptorch.optim.SGD(ours.parameters(), lr=0.1, accum_type=torch.float16)
    poptorch.trainingModel(ours, options(), optimiser)(*batch(6))
    accumulate(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1), batch(6), iterations=1, accumulation=6)
    assert_same_weights(ours, theirs, rtol=1e-2, atol=1e-4)
    assert not torch.allclose(ours.first.weight, theirs.first.weight, rtol=1e-6, atol=1e-8)


def test_parameters_that_are_not_trained() -> None:
    """Those without requires_grad, and those that the optimiser does not have."""
    ours, theirs = twins(Network)
    for each in (ours, theirs):
        each.first.weight.requires_grad_(False)
    data = batch(6)
    model = poptorch.trainingModel(ours, options(), torch.optim.SGD([*ours.second.parameters()], lr=0.1))
    model(*data)
    accumulate(theirs, torch.optim.SGD([*theirs.second.parameters()], lr=0.1), data, iterations=1, accumulation=6)
    assert_same_weights(ours, theirs)


def test_the_memory_proportion_of_an_ipu_reaches_convolutions_and_products() -> None:
    class Picture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(2, 3, 3), nn.Linear(3 * 4, OUT)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.linear(self.conv(x).flatten(1)), "mean")

    opts = poptorch.Options().setAvailableMemoryProportion({"IPU0": 0.25})
    model = poptorch.trainingModel(Picture(), opts)
    model(torch.randn(2, 2, 4, 4))
    graphs = model.compiled_model.exported.ir.graphs.values()
    planned = [op for graph in graphs for op in graph.ops if op.type.startswith(("Conv", "MatMul"))]
    works = [item for op in planned for item in op.work() if hasattr(item, "available_memory_proportion")]
    assert len(works) >= 4
    assert {item.available_memory_proportion for item in works} == {0.25}
