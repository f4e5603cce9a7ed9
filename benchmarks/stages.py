"""Many pipeline stages: an encoder with as many layers as stages and twice as many micro-batches, no numerics.

Twice the stages are twice the layers, so what is linear takes twice as long. Both sizes are measured in turns.
"""

from __future__ import annotations

import statistics
from types import MappingProxyType

from bounds import Row, cpu_seconds

FEW, MANY = 16, 32
MACHINE = "pod64"
PARTS = ("build", "lower", "simulate")


def _name(part: str) -> str:
    return f"{MANY} stages: {part}"


BOUNDS = MappingProxyType(dict(zip(map(_name, PARTS), (3.6, 3.8, 3.8), strict=True)))


def measure(stages: int) -> tuple[float, ...]:
    """CPU seconds of each part."""
    from ipuperf import schedules
    from ipuperf.lowering import lower
    from ipuperf.machine import load_machine
    from ipuperf.models.encoder import EncoderOptions, encoder
    from ipuperf.pipelines import build_pipeline
    from ipuperf.simulation import simulate

    model, machine, programs = (
        encoder(EncoderOptions(layers=stages, stages=stages), seed=None),
        load_machine(MACHINE),
        [],
    )
    timetable = schedules.popart_pipeline(stages, 2 * stages)
    building = cpu_seconds(
        lambda: build_pipeline(model.ir, model.parts, timetable, outputs=model.outputs, training=model.training)
    )
    lowering = cpu_seconds(lambda: programs.append(lower(model.ir, machine)))
    return building, lowering, cpu_seconds(lambda: simulate(programs[0], machine))


def rows(repeats: int) -> list[Row]:
    """Each part against half the stages, after one run of each that does not count."""
    pairs = [(measure(MANY), measure(FEW)) for _ in range(min(repeats, 3) + 1)][1:]
    found = []
    for number, part in enumerate(PARTS):
        many, few = (statistics.median(times[side][number] for times in pairs) for side in (0, 1))
        found.append(Row(_name(part), many, f"{FEW} stages", few))
    return found
