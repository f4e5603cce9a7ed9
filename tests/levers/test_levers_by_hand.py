"""Changes of PopTorch programs against the programs with the lines that each diff says."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from levercases import PIPELINE, Case, cycles_of

from ipuperf.levers import Trial, Untried
from ipuperf.levers.global_batch import MicroBatches, MoreReplicas, MoreStages, Replicas
from ipuperf.levers.host import PrefetchDepth, SyncPatterns
from ipuperf.levers.loops import CallLength, MoreMicroBatches
from ipuperf.levers.measure import _outcomes, measure
from ipuperf.levers.precision import HalfModel, HalfPart
from ipuperf.levers.proportion import MemoryProportion
from ipuperf.levers.recomputation import KeptPart, RecomputationSwitch
from ipuperf.levers.trial import Lever, simulated

pytest.importorskip("torch")

INFERENCE = (
    PIPELINE.replace("options.Training.gradientAccumulation(ACCUMULATION)", "options.deviceIterations(8)")
    .replace("return x, self.loss(x, labels)", "return x + 0 * self.loss(x, labels)")
    .replace(
        "poptorch.trainingModel(net, options=options, optimizer=torch.optim.SGD(net.parameters(), lr=0.01))",
        "poptorch.inferenceModel(net, options)",
    )
    .replace("16 * ITERATIONS", "16")
)
"""The pipeline without its training."""

CONVOLUTIONS = """
import poptorch, torch

torch.manual_seed(0)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((4, 16, 16), float(index)), index % 10


net = torch.nn.Sequential(
    torch.nn.Conv2d(4, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
    torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64 * 256, 10),
)


class Model(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, labels):
        return torch.nn.functional.cross_entropy(self.net(x), labels)


options = poptorch.Options()
options.Training.gradientAccumulation(4)
model = Model(net)
trained = poptorch.trainingModel(model, options, optimizer=poptorch.optim.Adam(model.parameters()))
for x, labels in poptorch.DataLoader(options, Data(), batch_size=4):
    trained(x, labels)
    break
"""
"""A model on one IPU, with a data loader."""


def by_hand(text: str, diff: tuple[str, ...]) -> str:
    """The program with the lines of a diff; what is only added stands before the model."""
    added = []
    for before, line, after in zip(["", *diff], diff, [*diff[1:], ""], strict=False):
        if line.startswith("- "):
            assert line[2:] in text
            text = text.replace(line[2:], after[2:])
        elif not before.startswith("- "):
            added.append(line[2:])
    lines = text.splitlines()
    at = next(place for place, line in enumerate(lines) if re.search(r"\b(training|inference)Model\(", line))
    changed = "\n".join([*lines[:at], *added, *lines[at:]]) + "\n"
    (times,) = {int(found) for found in re.findall(r"pass (\d+) times", "\n".join(diff))} or {1}
    changed = changed.replace("count = 16", f"count = {16 * times}")
    if any("inputs as x.half()" in line for line in diff):
        changed = changed.replace("torch.randn(count, 784)", "torch.randn(count, 784).half()")
        changed = changed.replace("trained(x, labels)", "trained(x.half(), labels)")
    return changed


def outcomes(case: Case, text: str, lever: Lever) -> list[Trial | Untried]:
    return list(_outcomes(lever, case.rerun(case.run(text))))


@pytest.mark.heavy
@pytest.mark.parametrize("text", [PIPELINE, CONVOLUTIONS, INFERENCE], ids=["pipeline", "convolutions", "inference"])
@pytest.mark.parametrize(
    "lever",
    [HalfModel(), HalfPart(), RecomputationSwitch(), KeptPart(), MicroBatches(), Replicas(), MemoryProportion(),
     MoreMicroBatches(), CallLength(), PrefetchDepth(), SyncPatterns()],
    ids=lambda lever: type(lever).__name__,
)  # fmt: skip
def test_a_change_takes_what_the_program_with_its_lines_takes(text: str, lever: Lever, case: Case) -> None:
    for outcome in outcomes(case, text, lever):
        if isinstance(outcome, Trial):
            changed = case.run(by_hand(text, outcome.change.diff))
            assert outcome.cycles * outcome.change.work == cycles_of(changed), outcome.what


@pytest.mark.heavy
def test_several_changes_take_what_the_program_with_their_lines_takes(case: Case) -> None:
    run = case.rerun(case.run(PIPELINE))
    levers = [RecomputationSwitch(), HalfModel(), Replicas(), MoreReplicas(), MicroBatches(), CallLength()]
    results = measure(run, levers)
    assert {trial.what.count("; and ") for trial in results.together} == {1, 2}
    for trial in results.together:
        changed = case.run(by_hand(PIPELINE, trial.change.diff))
        assert trial.cycles * trial.change.work == cycles_of(changed), trial.what
        assert trial.cycles < min(one.cycles for one in results.trials if trial.what.startswith(f"{one.what};"))


@pytest.mark.heavy
def test_a_change_after_itself_has_the_lines_of_both(case: Case) -> None:
    """Sizes of batches are those of the user's file, times all factors."""
    run, lever = case.rerun(case.run(CONVOLUTIONS)), MicroBatches()
    trial = Trial(run.change, run.trace)
    for size in (8, 16):
        changed = run.after(trial.change, trial.trace)
        trial = simulated(changed, lever._change(changed, changed.torch_model, Fraction(2)))
        assert f"+ batch_size={size}" in trial.change.diff
        assert sum("batch_size" in line for line in trial.change.diff) == 2
        assert trial.cycles == cycles_of(case.run(by_hand(CONVOLUTIONS, trial.change.diff)))


BLOCKS = """
import poptorch, torch

PLACES = [0, 0, 0, 1, 1]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(1024, 1024) for _ in PLACES])

    def forward(self, x, labels):
        for number, (layer, place) in enumerate(zip(self.layers, PLACES)):
            with poptorch.Block(f"layer{number}", ipu_id=place):
                x = torch.relu(layer(x))
                if number == len(PLACES) - 1:
                    return torch.nn.functional.cross_entropy(x, labels)


options = poptorch.Options()
options.replicationFactor(2)
options.Training.gradientAccumulation(8)
net = Net()
model = poptorch.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.01))
model(torch.randn(64, 1024), torch.randint(0, 10, (64,)))
"""


def test_stages_instead_of_replicas(case: Case) -> None:
    (trial,) = outcomes(case, BLOCKS, MoreStages())
    assert isinstance(trial, Trial)
    assert trial.what.startswith("have 1 replica on 4 IPUs each instead of 2 on 2, with 16 micro-batches each")
    options = tuple(line for line in trial.change.diff if "#" not in line)
    changed = by_hand(BLOCKS.replace("[0, 0, 0, 1, 1]", "[0, 0, 1, 2, 3]"), options)
    assert trial.cycles == cycles_of(case.run(changed)) != cycles_of(case.run(BLOCKS))


@pytest.mark.parametrize(
    ("text", "why"),
    [(BLOCKS.replace("0, 1, 1]", "0, 0, 1]"), "refused: IPU 1 has 1 of the model's blocks, too few for 2 IPUs"),
     (BLOCKS.replace("Factor(2)", "Factor(1)"), ""),
     (BLOCKS.replace("Factor(2)", "Factor(2).setExecutionStrategy(poptorch.ShardedExecution())"), "")],
    ids=["one block", "one replica", "sharded"],
)  # fmt: skip
def test_where_replicas_cannot_become_stages(text: str, why: str, case: Case) -> None:
    assert [outcome.why for outcome in outcomes(case, text, MoreStages())] == [why] * bool(why)


PRODUCT = """
import numpy as np
import popxl
from popxl import ops

ir = popxl.Ir(replication=1)
with ir.main_graph, popxl.in_sequence():
    x = ops.host_load(popxl.h2d_stream((512, 2048), popxl.float32, "x"))
    weight = popxl.variable(np.ones((2048, 2048), np.float32), name="weight")
    ops.host_store(popxl.d2h_stream((512, 2048), popxl.float32, "y"), ops.matmul(x, weight))
with popxl.Session(ir, "ipu_hw") as session:
    session.run({stream: np.zeros((512, 2048), np.float32) for stream in session.expected_inputs()})
"""


def test_the_memory_proportion_of_a_popxl_program(case: Case) -> None:
    trials = outcomes(case, PRODUCT, MemoryProportion())
    for share, trial in zip((0.1, 0.3, 1.0), trials, strict=True):
        changed = PRODUCT.replace(
            "ops.matmul(x, weight)", f"ops.matmul(x, weight, available_memory_proportion={share})"
        )
        assert trial.cycles == cycles_of(case.run(changed))
    assert len({trial.cycles for trial in trials}) > 1


KERAS = """
import numpy as np
from tensorflow import keras
from tensorflow.python import ipu

config = ipu.config.IPUConfig()
config.auto_select_ipus = 2
# here
config.configure_ipu_system()
x, y = np.zeros((32, 64), np.float32), np.zeros((32, 1), np.float32)
with ipu.ipu_strategy.IPUStrategy().scope():
    inputs = keras.Input((64,))
    with keras.ipu.PipelineStage(0):
        hidden = keras.layers.Dense(64, activation="relu")(inputs)
        hidden = keras.layers.Dense(64, activation="relu")(hidden)
    with keras.ipu.PipelineStage(1):
        outputs = keras.layers.Dense(1)(hidden)
    model = keras.Model(inputs, outputs)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.compile("sgd", "mse", steps_per_execution=4)
    model.fit(x, y, batch_size=4)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("text", [KERAS, KERAS.replace("# here", "config.allow_recompute = True")], ids=["off", "on"])
def test_recomputation_of_a_keras_pipeline(text: str, case: Case) -> None:
    pytest.importorskip("tensorflow")
    (trial,) = outcomes(case, text, RecomputationSwitch())
    (line,) = trial.change.diff
    changed = text.replace("# here", line[2:]).replace("config.allow_recompute = True", line[2:])
    assert trial.cycles == cycles_of(case.run(changed))
    for lever in (HalfModel(), MicroBatches(), Replicas()):
        assert [type(outcome) for outcome in outcomes(case, text, lever)] == [Untried]
