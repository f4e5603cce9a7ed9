"""Parameters that differ between groups of replicas, against PyTorch with one module for each replica."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch import CommGroupType as Kind  # noqa: E402
from ipuperf.poptorch import VariableRetrievalMode as Mode  # noqa: E402

R, ROWS, IN, OUT = 4, 2, 3, 5
GROUPS = {
    (Kind.Consecutive, 2): [[0, 1], [2, 3]],
    (Kind.Orthogonal, 2): [[0, 2], [1, 3]],
    (Kind.NoGrouping, 0): [[0], [1], [2], [3]],
    (Kind.Consecutive, 4): [[0, 1, 2, 3]],
    (Kind.All, 0): [[0, 1, 2, 3]],
}


class Model(nn.Module):
    """``x @ w + b``: ``w`` has the groups' axis on the host and none in ``forward``, ``b`` is one for all."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.w = nn.Parameter(torch.randn(groups, IN, OUT, generator=generator))
        self.b = nn.Parameter(torch.randn(OUT, generator=generator))

    def forward(self, x: torch.Tensor) -> Any:
        out = torch.tanh(x @ self.w + self.b)
        return out, poptorch.identity_loss(out**2, "mean")


def options(accumulation: int = 1, reduction: Any = poptorch.ReductionType.Mean) -> poptorch.Options:
    made = poptorch.Options().replicationFactor(R).showCompilationProgressBar(False)
    made.outputMode(poptorch.OutputMode.All)
    made.Training.gradientAccumulation(accumulation).accumulationAndReplicationReductionType(reduction)
    return made


def inputs(accumulation: int = 1) -> torch.Tensor:
    return torch.randn(accumulation * R * ROWS, IN, generator=torch.Generator().manual_seed(1))


def expected(
    model: Model, x: torch.Tensor, groups: list[list[int]], optimiser: Any, steps: int, accumulation: int, *, mean: bool
) -> tuple[np.ndarray, np.ndarray]:
    """``w`` and ``b`` after some steps: replica ``r`` takes micro-batch ``r`` of each accumulation step."""
    w = [nn.Parameter(one.clone()) for one in model.w.detach()]
    b = nn.Parameter(model.b.detach().clone())
    optimizer = optimiser([*w, b])
    of_replica = {replica: number for number, members in enumerate(groups) for replica in members}
    for _ in range(steps):
        optimizer.zero_grad()
        for number, rows in enumerate(x.split(ROWS)):
            loss = (torch.tanh(rows @ w[of_replica[number % R]] + b) ** 2).mean()
            (loss / (R * accumulation if mean else 1)).backward()
        optimizer.step()
    return torch.stack([one.detach() for one in w]).numpy(), b.detach().numpy()


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=0.05, eps=1e-3)


def combined(parameters: Any) -> Any:
    return poptorch.optim.SGD(parameters, lr=0.2, momentum=0.9, use_combined_accum=True)


def check(kind: tuple[Kind, int], made: Any, oracle: Any, accumulation: int, *, mean: bool = True, **how: Any) -> Any:
    groups = GROUPS[kind]
    model = Model(len(groups))
    opts = options(accumulation, poptorch.ReductionType.Mean if mean else poptorch.ReductionType.Sum)
    if "sharded" in how:
        state = poptorch.TensorLocationSettings().useReplicatedTensorSharding()
        opts.TensorLocations.setOptimizerLocation(state.minElementsForReplicatedTensorSharding(2))
    x = inputs(accumulation)
    w, b = expected(model, x, groups, oracle, 3, accumulation, mean=mean)
    training = poptorch.trainingModel(model, opts, made(model.parameters()))
    training.w.replicaGrouping(*kind, Mode.OnePerGroup)
    for _ in range(3):
        training(x)
    np.testing.assert_allclose(model.w.detach(), w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.b.detach(), b, rtol=1e-5, atol=1e-6)
    return training


@pytest.mark.parametrize("kind", list(GROUPS), ids=lambda kind: f"{kind[0].name}{kind[1]}")
def test_sums_within_the_groups(kind: tuple[Kind, int]) -> None:
    training = check(kind, sgd, sgd, accumulation=2)
    sizes = {
        op.attributes["group"].group_size
        for graph in training.compiled_model.exported.ir.graphs.values()
        for op in graph.ops
        if op.type.startswith("ReplicatedAllReduce")
    }
    assert sizes == {len(GROUPS[kind][0]), R} - {1}, "w is summed within its groups, b over all replicas"


@pytest.mark.parametrize("mean", [True, False])
def test_without_accumulation(mean: bool) -> None:
    check((Kind.Orthogonal, 2), adamw, adamw, accumulation=1, mean=mean)


def test_combined_accumulators() -> None:
    check((Kind.Consecutive, 2), combined, sgd, accumulation=3)


def test_sharded_state() -> None:
    check((Kind.Orthogonal, 2), adamw, adamw, accumulation=1, sharded=True)


def test_states_have_the_groups_axis() -> None:
    model = Model(R)
    optimiser = poptorch.optim.AdamW(model.parameters(), lr=0.05)
    training = poptorch.trainingModel(model, options(), optimiser)
    training.w.replicaGrouping(Kind.NoGrouping, 0, Mode.AllReplicas)
    training(inputs())
    state = optimiser.state_dict()["ipu_state"]
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "Accl1___w": (R, IN, OUT), "Accl2___w": (R, IN, OUT), "Step___w": (R,),
        "Accl1___b": (OUT,), "Accl2___b": (OUT,), "Step___b": (),
    }  # fmt: skip


def test_inference_and_files(tmp_path: Path) -> None:
    model = Model(2)
    x = inputs()
    running = poptorch.inferenceModel(model, options())
    running.w.replicaGrouping(Kind.Orthogonal, 2, Mode.OnePerGroup)
    found = running(x)[0]
    rows = [torch.tanh(part @ model.w[number % 2] + model.b) for number, part in enumerate(x.split(ROWS))]
    np.testing.assert_allclose(found, torch.cat(rows).detach(), rtol=1e-5, atol=1e-6)
    assert tuple(model.w.shape) == (2, IN, OUT), "forward's shape is not left behind"
    running.save(str(tmp_path / "model.poptorch"))
    loaded = poptorch.load(str(tmp_path / "model.poptorch"))
    np.testing.assert_array_equal(loaded(x)[0], found)


def test_the_attribute_is_the_parameter() -> None:
    model = Model(2)
    training = poptorch.trainingModel(model, options(), sgd(model.parameters()))
    training.w.replicaGrouping(Kind.Orthogonal, 2, Mode.OnePerGroup)
    training(inputs())
    assert isinstance(training.w, nn.Parameter)
    assert torch.equal(training.w, model.w)
    assert training.w.data_ptr() == model.w.data_ptr()
    assert training.per_replica_params == {"w": (Kind.Orthogonal, 2, Mode.OnePerGroup)}


BAD: dict[str, tuple[Any, str]] = {
    "axis": ((Kind.NoGrouping, 0, Mode.OnePerGroup), "expected a first axis of 4, one value for each group of 1 of 4"),
    "size": ((Kind.Consecutive, 3, Mode.OnePerGroup), "groups of 3 replicas do not divide 4 replicas"),
    "none": ((Kind.Orthogonal, 0, Mode.OnePerGroup), "groups of 0 replicas do not divide 4 replicas"),
    "mode": ((Kind.Orthogonal, 2, Mode.AllReplicas), "AllReplicas would bring 4 values for a parameter of 2"),
}


@pytest.mark.parametrize(("given", "said"), BAD.values(), ids=list(BAD))
def test_groups_that_do_not_fit(given: Any, said: str) -> None:
    model = Model(2)
    training = poptorch.trainingModel(model, options(), sgd(model.parameters()))
    training.w.replicaGrouping(*given)
    with pytest.raises(poptorch.Error, match=said):
        training(inputs())
    assert tuple(model.w.shape) == (2, IN, OUT)


def test_other_mistakes() -> None:
    model = Model(2)
    training = poptorch.trainingModel(model, options(), sgd(model.parameters()))
    with pytest.raises(AssertionError, match="expected a member of poptorch.CommGroupType"):
        training.w.replicaGrouping("Orthogonal", 2, Mode.OnePerGroup)
    with pytest.raises(AssertionError, match="expected the number of replicas in a group"):
        training.w.replicaGrouping(Kind.Orthogonal, "2", Mode.OnePerGroup)
    with pytest.raises(AssertionError, match="expected a member of poptorch.VariableRetrievalMode"):
        training.w.replicaGrouping(Kind.Orthogonal, 2, 7)
    training.per_replica_params["v"] = (Kind.Orthogonal, 2, Mode.OnePerGroup)
    with pytest.raises(poptorch.Error, match="the model has no parameter 'v'; it has w, b"):
        training(inputs())


def test_a_limited_norm_is_refused() -> None:
    model = Model(2)
    optimiser = poptorch.optim.AdamW(model.parameters(), lr=0.1, max_grad_norm=1.0)
    training = poptorch.trainingModel(model, options(), optimiser)
    training.w.replicaGrouping(Kind.Orthogonal, 2, Mode.OnePerGroup)
    with pytest.raises(poptorch.Error, match="max_grad_norm: w differ between groups of replicas"):
        training(inputs())
