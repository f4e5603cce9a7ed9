"""Training models on every strategy, with replicas and in every memory, against plain gradient accumulation."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from executorcases import BLOCKS, compare  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402

optim = poptorch.optim


# -- strategies, replicas, locations -----------------------------------------------------------------------------------


def serial(liveness: Any = poptorch.Liveness.AlwaysLive, separate: bool = False) -> Any:
    made = poptorch.SerialPhasedExecution(*(poptorch.Phase(block).ipus(0) for block in BLOCKS))
    made.setTensorsLiveness(liveness).useSeparateBackwardPhase(separate)
    return made


def parallel() -> Any:
    return poptorch.ParallelPhasedExecution(*(poptorch.Phase(b).ipus(n % 2) for n, b in enumerate(BLOCKS)))


STRATEGIES = {
    "pipelined": lambda: poptorch.PipelinedExecution(*BLOCKS),
    "by ipu_id": lambda: poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu),
    "two on one IPU": lambda: poptorch.PipelinedExecution(
        poptorch.Stage("B0", "B1").ipu(0), poptorch.Stage("B2").ipu(1)
    ),
    "there and back": lambda: poptorch.PipelinedExecution(
        poptorch.Stage("B0").ipu(0), poptorch.Stage("B1").ipu(1), poptorch.Stage("B2").ipu(0)
    ),
    "sharded": lambda: poptorch.ShardedExecution(*BLOCKS),
    "one IPU": lambda: poptorch.PipelinedExecution(poptorch.Stage(*BLOCKS).ipu(0)),
    "serial phases": serial,
    "serial phases off chip": lambda: serial(poptorch.Liveness.OffChipAfterEachPhase),
    "separate backward": lambda: serial(separate=True),
    "parallel phases": parallel,
}
SCHEDULES = {
    "pipelined": ("popart_pipeline", 3, 6 + 2 * 3 - 2),
    "by ipu_id": ("popart_pipeline", 3, 6 + 2 * 3 - 2),
    "two on one IPU": ("popart_pipeline", 2, 6 + 2 * 2 - 2),
    "there and back": ("popart_pipeline", 3, 6 + 2 * 3 - 2),
    "sharded": ("sharded", 3, 6 * 2 * 3),
    "one IPU": ("sharded", 1, 6 * 2),
}
"""Timetable, stages and time steps of a weight update of six micro-batches."""


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy(name: str) -> None:
    model = compare(strategy=STRATEGIES[name](), calls=1)
    table = model.compiled_model.pipeline.timetable
    if name in SCHEDULES:
        assert (table.name, table.stages, len(table.steps)) == SCHEDULES[name]
    else:
        assert table.name.startswith("phased"), table.name
        assert {len(group) for group in table.devices} == {1}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ["pipelined", "sharded"])
def test_replicas(name: str, reduction: str) -> None:
    sgd = {"lr": 0.02, "momentum": 0.9}
    compare(
        lambda p: optim.SGD(p, **sgd), lambda p: torch.optim.SGD(p, **sgd), strategy=STRATEGIES[name](), replicas=2,
        reduction=reduction, iterations=3,
    )  # fmt: skip


def off_chip() -> Any:
    return poptorch.TensorLocationSettings().useOnChipStorage(False)


def sharded(settings: Any) -> Any:
    return settings.useReplicatedTensorSharding(True).minElementsForReplicatedTensorSharding(4)


LOCATIONS = {
    "optimiser": lambda o: o.TensorLocations.setOptimizerLocation(off_chip()),
    "activations": lambda o: o.TensorLocations.setActivationLocation(off_chip()),
    "accumulators": lambda o: o.TensorLocations.setAccumulatorLocation(off_chip()),
    "weights": lambda o: o.TensorLocations.setWeightLocation(off_chip()),
    "sharded optimiser": lambda o: o.TensorLocations.setOptimizerLocation(sharded(off_chip())),
    "sharded on chip": lambda o: o.TensorLocations.setOptimizerLocation(sharded(poptorch.TensorLocationSettings())),
    "no recomputation": lambda o: o._Popart.set("autoRecomputation", 0),
}


@pytest.mark.parametrize("name", LOCATIONS)
def test_location(name: str) -> None:
    replicas = 2 if "sharded" in name else 1
    compare(change=LOCATIONS[name], replicas=replicas, calls=1)


def test_norms_of_sharded_lamb_are_those_of_whole_tensors() -> None:
    lamb = {"lr": 0.05, "eps": 1e-3, "weight_decay": 0.1, "max_weight_norm": 1.0}
    change = LOCATIONS["sharded on chip"]
    compare(lambda p: optim.LAMB(p, **lamb), lambda p: optim.LAMB(p, **lamb), change=change, replicas=2)


def test_least_accumulation_of_a_pipeline() -> None:
    compare(accumulation=5)


def test_one_micro_batch_without_accumulators() -> None:
    model = compare(accumulation=1, strategy=STRATEGIES["sharded"]())
    assert not [t for t in model.getTensorNames() if "accumulator" in t]
