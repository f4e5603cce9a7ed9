"""Results of every kind, inputs that a model changes, and anchored tensors, in every output mode and for groups of
replicas: each as a row."""

from typing import Any

import pytest
from outcomes import outcome
from rows import Golden

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402

MODE, GROUP = "poptorch.OutputMode", "poptorch.CommGroupType"
CASES = {
    "default": "deviceIterations(4)",
    "one": "modelName('one')",
    "final": f"deviceIterations(4).outputMode({MODE}.Final)",
    "sum": f"deviceIterations(4).outputMode({MODE}.Sum)",
    "every second": f"deviceIterations(4).outputMode({MODE}.EveryN, 2)",
    "every fourth, replicas": f"deviceIterations(4).outputMode({MODE}.EveryN, 4).replicationFactor(2)",
    "replicas": "deviceIterations(2).replicationFactor(2)",
    "sum, replicas": f"deviceIterations(2).replicationFactor(2).outputMode({MODE}.Sum)",
    "final, replicas": f"deviceIterations(2).replicationFactor(2).outputMode({MODE}.Final)",
    "groups": f"deviceIterations(2).replicationFactor(4).inputReplicaGrouping(2, {GROUP}.Consecutive)",
    "groups across": f"deviceIterations(2).replicationFactor(4).inputReplicaGrouping(2, {GROUP}.Orthogonal)",
    "synthetic": "deviceIterations(2).enableSyntheticData(True)",
}
ANCHORS = {
    "all": ("poptorch.OutputMode.All",),
    "final": ("poptorch.OutputMode.Final",),
    "sum": ("poptorch.OutputMode.Sum",),
    "second": ("poptorch.OutputMode.EveryN, 2",),
    "default": (),
}


class Everything(torch.nn.Module):
    """Gives batches, vectors, scalars and constants of several types, and changes some of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor([[1.0, 2.0], [-1.0, 0.5]]))
            self.linear.bias.fill_(0.25)

    def forward(self, x: Any, changed: Any, count: Any, filled: Any) -> Any:
        y = self.linear(x)
        changed.add_(y)
        count.add_(1)
        filled.fill_(3)
        constants = torch.tensor([1.0, 2.0]), torch.tensor(4)
        return (
            {"y": y, "mean": y.mean(), "sums": y.sum(0), "hits": (y > 0).sum(), "truth": y > 0},
            constants,
            [x, None, "t"],
        )


def shown(value: Any) -> str:
    """Numbers and shapes."""
    if isinstance(value, torch.Tensor):
        return f"{[round(float(v), 4) for v in value.flatten()]} {tuple(value.shape)} {value.dtype}".replace(
            "torch.", ""
        )
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    return str({key: shown(each) for key, each in value.items()}) if isinstance(value, dict) else repr(value)


def run(change: str) -> list[Any]:
    """Results, changed inputs and anchored tensors of the second of two calls."""
    o = poptorch.Options().showCompilationProgressBar(False)
    exec(f"o.{change}", {"o": o, "poptorch": poptorch})
    anchors = {name: mode for name, mode in ANCHORS.items() if name != "second" or o.device_iterations > 1}
    for name, mode in anchors.items():
        exec(f"o.anchorTensor('{name}', 'linear', {', '.join(mode)})", {"o": o, "poptorch": poptorch})
    model = poptorch.inferenceModel(Everything(), o)
    rows = 2 * o.samples_factor
    numbers = torch.arange(2.0 * rows).reshape(rows, 2) / 4 - 1
    for _ in range(2):
        count = torch.tensor(5) if rows == 2 else torch.arange(rows // 2)
        given = (numbers.clone(), numbers.clone(), count, torch.zeros(rows))
        results = model(*given)
    return [results, given[1:], [model.getAnchoredTensor(name) for name in anchors]]


@pytest.mark.parametrize("name", CASES)
def test_what_a_model_gives(name: str, golden: Golden) -> None:
    text = outcome(lambda: run(CASES[name]), shown)
    golden([CASES[name], text])
