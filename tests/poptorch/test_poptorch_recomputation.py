"""``autoRecomputation`` and ``recomputationCheckpoint`` outside pipelines: same numbers, less memory, more cycles."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402

NONE, STANDARD, NORM_ONLY, PIPELINE, ALL = range(5)
LAYERS = 4
WIDTH = 16


class Layer(nn.Module):
    """With batch statistics, random numbers and an activation function."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.dropout(torch.tanh(self.norm(self.linear(x))), 0.2)


class Network(nn.Module):
    """Layers on one or two IPUs, with a checkpoint after each layer in ``keep``."""

    def __init__(self, keep: tuple[int, ...] = (), ipus: int = 1, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(width) for _ in range(LAYERS)])
        self.keep, self.ipus = keep, ipus

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        for number, layer in enumerate(self.layers):
            with poptorch.Block(f"B{number}", ipu_id=number * self.ipus // LAYERS):
                x = layer(x)
                if number in self.keep:
                    x = poptorch.recomputationCheckpoint(x)
                if number == LAYERS - 1:
                    loss = nn.functional.mse_loss(x, y)
        return loss


def options(kind: int | None, ipus: int = 1, **more: Any) -> Any:
    made = poptorch.Options().showCompilationProgressBar(False).randomSeed(5)
    made.Training.gradientAccumulation(3)
    made.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu) if ipus > 1 else
                              poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))  # fmt: skip
    if kind is not None:
        made._Popart.set("autoRecomputation", kind)
    for key, value in more.items():
        made._Popart.set(key, value)
    return made


def trained(kind: int | None, keep: tuple[int, ...] = (), ipus: int = 1, **more: Any) -> tuple[Any, list[torch.Tensor]]:
    """The model after two calls, and all its numbers and losses."""
    torch.manual_seed(0)
    network = Network(keep, ipus)
    model = poptorch.trainingModel(
        network, options(kind, ipus, **more), poptorch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    )
    generator = torch.Generator().manual_seed(1)
    losses = [model(*torch.randn(2, 12, WIDTH, generator=generator)) for _ in range(2)]
    return model, [*losses, *(t.detach().clone() for t in network.state_dict().values())]


def made_again(model: Any) -> dict[str, int]:
    """How many ops of each type of the forward pass stand in the backward graphs."""
    stages = model.compiled_model.pipeline.stages
    forward = {op.type for stage in stages for op in stage.description.graph.ops}
    found: dict[str, int] = {}
    for stage in stages:
        plain = {"Mul", "Add", "Sub", "MatMul", "Transpose", "Reshape", "ReduceSum", "Cast", "ReduceMean"}
        for op in stage.derivative.graph.ops:
            if op.type in forward - plain:
                found[op.type] = found.get(op.type, 0) + 1
    return found


@pytest.mark.heavy
@pytest.mark.parametrize(("ipus", "norms"), [(1, {STANDARD: 1, NORM_ONLY: 4, ALL: 3}), (2, {STANDARD: 2, ALL: 3})])
def test_numbers_are_exactly_those_without_recomputation(ipus: int, norms: dict[int, int]) -> None:
    _, expected = trained(NONE, ipus=ipus)
    for kind, count in norms.items():
        model, found = trained(kind, (0, 2), ipus)
        assert made_again(model)["BatchNormalization"] == count
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other), kind


def test_what_stands_between_checkpoints_runs_again() -> None:
    model, _ = trained(ALL, (1,))
    # layers 0 and 1; what dropout gives in layer 1 leads to the checkpoint only
    assert made_again(model) == {"BatchNormalization": 2, "Tanh": 2, "Dropout": 1}
    model, _ = trained(ALL, (1,), explicitRecomputation=True)
    assert made_again(model)["BatchNormalization"] == LAYERS


def test_checkpoints_alone_recompute_nothing() -> None:
    model, _ = trained(None, (1,))
    assert made_again(model) == {}


def offline(kind: int, keep: tuple[int, ...], ipus: int = 1) -> tuple[int, int]:
    """Bytes of the fullest tile and cycles of a call with large activations."""
    width, rows = 64, 3 * 32768
    with torch.device("meta"):
        network, data = Network(keep, ipus, width), torch.empty(2, rows, width)
    optimizer = poptorch.optim.SGD(network.parameters(), lr=0.1)
    summary = poptorch.simulate(network, options(kind, ipus), *data, optimizer=optimizer, machine="pod4").summary()
    return summary["memory"]["max_tile"]["bytes"], summary["runs"][0]["cycles"]


@pytest.mark.heavy
@pytest.mark.parametrize("ipus", [1, 2])
def test_less_memory_for_more_cycles(ipus: int) -> None:
    plain_bytes, plain_cycles = offline(NONE, (0, 1, 2), ipus)
    found_bytes, cycles = offline(ALL, (0, 1, 2), ipus)
    assert found_bytes < plain_bytes
    assert cycles > plain_cycles


@pytest.mark.parametrize(
    ("kind", "ipus", "message"),
    [
        (PIPELINE, 1, r"'autoRecomputation', 3\): recomputation Pipeline without a pipeline of several stages"),
        (PIPELINE, 2, r"allowed are 0 \(None\), 1 \(Standard\), 2 \(NormOnly\) and 4 \(RecomputeAll\)"),
    ],
)
def test_a_pipelines_recomputation_without_a_pipeline(kind: int, ipus: int, message: str) -> None:
    with pytest.raises(poptorch.Error, match=message):
        trained(kind, ipus=ipus)


def test_another_recomputation_in_a_pipeline_is_the_pipelines(caplog: Any) -> None:
    network = Network(ipus=2)
    opts = options(STANDARD)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    model = poptorch.trainingModel(network, opts)
    model.compile(*torch.randn(2, 12, WIDTH))
    assert "1): recomputation Standard is done as 3 (Pipeline)" in caplog.text
    assert any(kind == "R" for kind, _ in model.compiled_model.pipeline.timetable.kinds)
    assert made_again(model) == {}


def test_explicit_recomputation_is_a_switch() -> None:
    with pytest.raises(AssertionError, match="'explicitRecomputation', 1.: expected True or False"):
        poptorch.Options()._Popart.set("explicitRecomputation", 1)
