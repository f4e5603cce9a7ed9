"""What options ask of a compilation, before anything is compiled: timetables, places of tensors, advice, refusals."""

from types import SimpleNamespace
from typing import Any

import pytest
from outcomes import outcome
from rows import Golden

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.pipelines import Activation  # noqa: E402
from ipuperf.poptorch.executor import compilation, timetables  # noqa: E402

OFF = "poptorch.TensorLocationSettings().useOnChipStorage(False)"
SHARDED = "setExecutionStrategy(poptorch.ShardedExecution('a'))"
SERIAL = "setExecutionStrategy(poptorch.SerialPhasedExecution('a')"
PARALLEL = "setExecutionStrategy(poptorch.ParallelPhasedExecution('a')"
OPTIONS = {
    "none": "",
    "iterations": "o.deviceIterations(3)",
    "accumulation": "o.Training.gradientAccumulation(5)",
    "both": "o.deviceIterations(2).Training.gradientAccumulation(7)",
    "no recomputation": "o._Popart.set('autoRecomputation', 0); o.Training.gradientAccumulation(5)",
    "standard recomputation": "o._Popart.set('autoRecomputation', 1); o.Training.gradientAccumulation(5)",
    "sharded": f"o.{SHARDED}.deviceIterations(2).Training.gradientAccumulation(2)",
    "sharded, recomputation": f"o.{SHARDED}; o._Popart.set('autoRecomputation', 4)",
    "serial phases": f"o.{SERIAL}).deviceIterations(2).Training.gradientAccumulation(2)",
    "serial phases, apart": f"o.{SERIAL}.useSeparateBackwardPhase()).Training.gradientAccumulation(2)",
    "serial phases, off chip": f"o.{SERIAL}.setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd))",
    "parallel phases": f"o.{PARALLEL}).Training.gradientAccumulation(2)",
    "replicas": "o.replicationFactor(4)",
    "states off chip": f"o.TensorLocations.setOptimizerLocation({OFF})",
    "states off chip, bound": f"o.TensorLocations.setOptimizerLocation({OFF}.minElementsForOffChip(7))",
    "shards": "o.replicationFactor(2).TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings()"
    ".useReplicatedTensorSharding().minElementsForReplicatedTensorSharding(9))",
    "weights off chip": f"o.TensorLocations.setWeightLocation({OFF}); o.TensorLocations.setAccumulatorLocation({OFF})",
    "stashes off chip": f"o.TensorLocations.setActivationLocation({OFF})",
    "different bounds": f"o.TensorLocations.setActivationLocation({OFF}); "
    f"o.TensorLocations.setWeightLocation({OFF}.minElementsForOffChip(5))",
    "period": "o.deviceIterations(4).outputMode(poptorch.OutputMode.EveryN, 2)",
    "odd period": "o.deviceIterations(4).outputMode(poptorch.OutputMode.EveryN, 3)",
    "instances": "o.replicationFactor(4); setattr(o, '_host_processes', 2)",
    "odd instances": "o.replicationFactor(4); setattr(o, '_host_processes', 3)",
}


PLANS = (
    ("one", True, None), ("two", True, None), ("three", True, None), ("three", True, True), ("on two IPUs", True, None),
    ("side by side", True, None), ("one", False, None), ("three", False, None),
)  # fmt: skip
"""Stages, whether they train, and whether they only run forward."""


def stage(number: int, ipu: int, *before: int) -> Any:
    """A stage that uses results of others."""
    return SimpleNamespace(stage=number, ipu=ipu, sources=[Activation(other, 0) for other in before])


STAGES: dict[str, tuple[list[Any], list[int]]] = {
    "one": ([stage(0, 0)], [0]),
    "two": ([stage(0, 0), stage(1, 1, 0)], [0, 1]),
    "three": ([stage(0, 0), stage(1, 1, 0), stage(2, 2, 1)], [0, 2, 4]),
    "on two IPUs": ([stage(0, 0), stage(1, 1, 0), stage(2, 0, 1)], [0, 0, 2]),
    "side by side": ([stage(0, 0), stage(1, 1), stage(2, 2, 0, 1)], [1, 1, 1]),
}


def options(text: str) -> Any:
    """The options of a row."""
    made = poptorch.Options().showCompilationProgressBar(False)
    exec(text, {"o": made, "poptorch": poptorch})
    return made


def cells(steps: Any) -> str:
    """Time steps, each with what its IPUs do; the first nine, and how many there are."""

    def told(ipu: Any) -> str:
        return "+".join(f"{cell.kind}{cell.stage}.{cell.micro_batch}" for cell in ipu) or "-"

    return f"{' | '.join(' '.join(map(told, step)) for step in steps[:9])} ({len(steps)})"


def planned(text: str, name: str, training: bool, forward_only: bool | None) -> str:
    """The timetable, how stages copy, how often it runs."""
    parts, phases = STAGES[name]
    table, copies, repeats = compilation.plan(options(text), parts, training, phases, forward_only=forward_only)
    numbers = (table.name, table.micro_batches, table.stash, table.stashed, table.devices, table.inference)
    return f"{copies}, {repeats}: {numbers} {(table.ramp_up, table.ramp_down, table.period)} {cells(table.steps)}"


@pytest.mark.parametrize("name", OPTIONS)
def test_what_options_ask_for(name: str, golden: Golden) -> None:
    text, found = OPTIONS[name], []

    def add(question: str, answer: Any) -> None:
        found.append((f"{name}, {question}", "", outcome(answer, str)[:200]))

    for stages, training, only in () if "Location" in text else PLANS:
        words = f"plan of {stages} in {'training' if training else 'inference'}{', forward only' if only else ''}"
        add(words, lambda s=stages, t=training, o=only: planned(text, s, t, o))
    for training in (True, False):
        for stages in ("one", "two"):
            exported = SimpleNamespace(parts=STAGES[stages][0])
            add(
                f"advice for {stages} in {'training' if training else 'inference'}",
                lambda t=training, e=exported: [a[:45] for a in compilation.memory_advice(options(text), t, e)],
            )
    add("places", lambda: compilation._offload(options(text)))
    add("period", lambda: compilation._check_period(options(text)))
    for count in (1, 3):
        add(f"recomputes with {count}", lambda n=count: timetables.recomputes_in_pipeline(options(text), [0] * n))
    golden([" ".join(each) for each in found])


def test_turns_within_a_phase() -> None:
    """After what a stage uses and, on its IPU, after the stages before it; other phases do not count."""
    for name, turns in {"one": [0], "two": [0, 0], "on two IPUs": [0, 1, 0], "side by side": [0, 0, 1]}.items():
        parts, phases = STAGES[name]
        assert timetables._turns(parts, phases) == turns
    parts = [stage(0, 0), stage(1, 0), stage(2, 0), stage(3, 1, 1)]
    assert timetables._turns(parts, [0, 0, 0, 0]) == [0, 1, 2, 2]
