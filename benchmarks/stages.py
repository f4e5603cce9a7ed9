"""Many pipeline stages: an encoder with as many layers as stages and twice as many micro-batches, no numerics.

Twice the stages are twice the layers, so what is linear takes twice as long. Both sizes are measured in turns. A
pipeline of very many micro-batches is to take as long to build as one of many.
"""

from __future__ import annotations

import statistics
from types import MappingProxyType
from typing import Any

from bounds import Row, cpu_seconds

FEW, MANY = 16, 32
MACHINE = "pod64"
PARTS = ("build", "lower", "simulate")


def _name(part: str) -> str:
    return f"{MANY} stages: {part}"


MICRO_BATCHES = 1_000, 1_000_000
LONG = f"{FEW} stages, {MICRO_BATCHES[1]:,} micro-batches: timetable and build"
BOUNDS = MappingProxyType({**dict(zip(map(_name, PARTS), (3.6, 3.8, 3.8), strict=True)), LONG: 1.3})


def building(stages: int, micro_batches: int, models: list[Any]) -> float:
    """CPU seconds of the timetable and the pipeline of a new model, which comes to the end of ``models``."""
    from ipuperf.models.encoder import EncoderOptions, encoder
    from ipuperf.pipelines import build_pipeline
    from ipuperf.schedules import popart_pipeline

    model = encoder(EncoderOptions(layers=stages, stages=stages), seed=None)
    models.append(model)

    def build() -> None:
        timetable = popart_pipeline(stages, micro_batches)
        build_pipeline(model.ir, model.parts, timetable, outputs=model.outputs, training=model.training)

    return cpu_seconds(build)


def measure(stages: int) -> tuple[float, ...]:
    """CPU seconds of each part."""
    from ipuperf.lowering import lower
    from ipuperf.machine import load_machine
    from ipuperf.simulation import simulate

    machine, models, programs = load_machine(MACHINE), [], []
    built = building(stages, 2 * stages, models)
    lowering = cpu_seconds(lambda: programs.append(lower(models[0].ir, machine)))
    return built, lowering, cpu_seconds(lambda: simulate(programs[0], machine))


def rows(repeats: int) -> list[Row]:
    """Each part against half the stages, after one run of each that does not count."""
    pairs = [(measure(MANY), measure(FEW)) for _ in range(min(repeats, 3) + 1)][1:]
    found = []
    for number, part in enumerate(PARTS):
        many, few = (statistics.median(times[side][number] for times in pairs) for side in (0, 1))
        found.append(Row(_name(part), many, f"{FEW} stages", few))
    short, long = zip(*[[building(FEW, count, []) for count in MICRO_BATCHES] for _ in range(repeats)], strict=True)
    reference = f"{MICRO_BATCHES[0]:,} micro-batches"
    return [*found, Row(LONG, statistics.median(long), reference, statistics.median(short))]
