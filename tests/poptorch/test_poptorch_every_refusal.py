"""Models that only a compilation can refuse: each error as a row, or the ops where there is none."""

import re
from pathlib import Path
from typing import Any

import pytest
from outcomes import outcome
from rows import Golden

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.poptorch import experimental_addons  # noqa: E402, F401  # models use it

X = torch.arange(6.0).reshape(2, 3)
SHARDED = "setExecutionStrategy(poptorch.ShardedExecution())"
OVERLAP = poptorch.OverlapMode.OverlapAccumulationLoop
DISABLED, CHANNELS = poptorch.MatMulSerializationMode.Disabled, poptorch.MatMulSerializationMode.OutputChannels

MODELS = {
    "a share of a sum": ("poptorch.set_available_memory(x + 1, 0.5)", ""),
    "a share of an input": ("poptorch.set_available_memory(x, 0.5)", ""),
    "no share": ("poptorch.set_available_memory(self.w @ x, 0.0)", ""),
    "no parts": ("poptorch.serializedMatMul(self.w, x, DISABLED)", ""),
    "one part": ("poptorch.serializedMatMul(self.w, x, CHANNELS, 1)", ""),
    "parts that do not fit": ("poptorch.serializedMatMul(self.w, x, CHANNELS, 2)", ""),
    "an index that is true or false": ("x[x > 0]", ""),
    "memory beside a tensor": ("torch.as_strided(x * 1, (2, 4), (3, 1), 1)", ""),
    "another op": ("poptorch.custom_op([x], 'NoSuchOp', 'my.domain', 1, example_outputs=[x])[0]", ""),
    "another version of an op": ("poptorch.custom_op([x], 'AutogradProxy', 'ai.graphcore', 9, [x])[0]", ""),
    "other results": ("poptorch.custom_op([x, x], 'AutogradProxy', 'ai.graphcore', 1, [x[0]])[0]", ""),
    "a proxy of another shape": ("experimental_addons.autograd_proxy(x, x[0])", ""),
    "a position of a pooling": ("F.max_pool1d(x, 2, return_indices=True)[1]", ""),
    "a value of a tensor": ("x * x.sum().item()", ""),
    "no loss": ("x + 1", "training"),
    "a loss without parameters": ("poptorch.identity_loss(torch.ones(2) * 3, 'sum')", "training"),
    "a loss of the input alone": ("poptorch.identity_loss(x * 3, 'sum')", "training"),
    "two losses": ("poptorch.identity_loss(self.w, 'sum'), poptorch.identity_loss(self.w * 2, 'sum')", "training"),
    "a period that does not divide": ("x + 1", "deviceIterations(4).outputMode(poptorch.OutputMode.EveryN, 3)"),
    "accumulation in inference": ("x + 1", "Training.gradientAccumulation(2)"),
    "a pipeline of one stage": (
        "poptorch.identity_loss(self.w, 'sum')", "_Popart.set('autoRecomputation', 3); training"
    ),
    "three IPUs": ("x + 1", "replicationFactor(3)"),
    "too many IPUs": ("x + 1", "replicationFactor(65).autoRoundNumIPUs(True)"),
    "groups that do not divide": (
        "x + 1", "replicationFactor(4).inputReplicaGrouping(3, poptorch.CommGroupType.Consecutive)"
    ),
    "bounds of all kinds": (
        "x + 1",
        "TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False)"
        ".minElementsForOffChip(3)); o.TensorLocations.setActivationLocation(poptorch.TensorLocationSettings()"
        ".useOnChipStorage(False))",
    ),
    "no I/O tiles": ("poptorch.set_overlap_for_input(x, OVERLAP) + 1", SHARDED),
    "overlap in a pipeline": ("poptorch.set_overlap_for_input(x, OVERLAP) + 1", ""),
    "overlap of a sum": ("poptorch.set_overlap_for_input(x + 1, OVERLAP) + 1", SHARDED),
    "overlap of no result": ("poptorch.set_overlap_for_output(x + 1, OVERLAP) * 2", SHARDED),
    "overlap of a mode": (
        "poptorch.set_overlap_for_input(x, OVERLAP) + 1",
        f"{SHARDED}.outputMode(poptorch.OutputMode.Final); o.TensorLocations.numIOTiles(32)",
    ),
}  # fmt: skip


class Model(torch.nn.Module):
    """A formula of the input and a parameter."""

    def __init__(self, formula: str) -> None:
        super().__init__()
        self.formula = formula
        self.w = torch.nn.Parameter(torch.ones(2, 2))

    def forward(self, x: Any) -> Any:
        return eval(self.formula, {**globals(), "F": torch.nn.functional, "self": self, "x": x})


def compiled(formula: str, change: str) -> str:
    """What an offline compilation comes to: the numbers of ops and results."""
    o = poptorch.Options().showCompilationProgressBar(False)
    setters, trained, _ = change.partition("training")
    exec(f"o.{setters.rstrip('; ')}" if setters else "", {"o": o, "poptorch": poptorch})
    module = Model(formula)
    batch = X.repeat(o.samples_factor, 1)
    if trained:
        model = poptorch.trainingModel(module, o, poptorch.optim.SGD(module.parameters(), lr=0.1))
    else:
        model = poptorch.inferenceModel(module, o)
    model.compile(batch)
    parts = model.compiled_model.exported.parts
    return f"{[type(op).__name__ for part in parts for op in part.graph.ops]}"


@pytest.mark.parametrize("name", MODELS)
def test_what_a_compilation_refuses(name: str, golden: Golden) -> None:
    formula, change = MODELS[name]
    text = outcome(lambda: compiled(formula, change), str)
    text = re.sub(rf"{re.escape(str(Path(__file__).parent))}/(\S+?):\d+", r"\1", text)
    golden([f"{formula} {change}", text])
