"""Speed of large pipelines: a transformer encoder of 24 layers in 4 stages, 4 replicas, 16 micro-batches, no numerics.

For each schedule the CPU seconds of building the model and its pipeline, and of lowering and simulating it. The loop
that they are compared with runs before and after, so that a slow phase of the machine hits both.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from bounds import LOOP, Row, loop_seconds

STAGES, MICRO_BATCHES, REPLICAS, LAYERS = 4, 16, 4, 24
MACHINE = "pod16"
BUILD, SIMULATE = "build", "lower + simulate"
_BOUNDS = MappingProxyType(
    {  # of building, of lowering and simulating
        "grouped": (2.0, 7.6),
        "grouped, recompute": (1.8, 6.8),
        "interleaved": (1.9, 7.4),
        "sequential": (1.5, 5.4),
        "popart": (1.9, 7.8),
        "popart, recompute": (1.8, 7.0),
        "sharded": (1.6, 5.6),
    }
)


def _name(schedule: str, part: str) -> str:
    return f"encoder {LAYERS} layers, {schedule}: {part}"


BOUNDS = {_name(s, part): bound for s, both in _BOUNDS.items() for part, bound in zip((BUILD, SIMULATE), both)}


def schedules() -> dict[str, Callable[[], Any]]:
    """A function that makes the timetable of each schedule."""
    from ipuperf import schedules as s

    size = (STAGES, MICRO_BATCHES)
    return {
        "grouped": lambda: s.grouped(*size),
        "grouped, recompute": lambda: s.grouped(*size, recompute=s.RecomputationMode.Auto),
        "interleaved": lambda: s.interleaved(*size),
        "sequential": lambda: s.sequential(*size),
        "popart": lambda: s.popart_pipeline(*size),
        "popart, recompute": lambda: s.popart_pipeline(*size, recompute=True),
        "sharded": lambda: s.sharded(*size),
    }


def measure(name: str) -> list[Row]:
    """The rows of one schedule."""
    from ipuperf.lowering import lower
    from ipuperf.machine import load_machine
    from ipuperf.models.encoder import EncoderOptions, encoder
    from ipuperf.pipelines import build_pipeline
    from ipuperf.simulation import simulate

    machine, timetable = load_machine(MACHINE), schedules()[name]()
    before, marks = loop_seconds(), [time.process_time()]
    model = encoder(EncoderOptions(layers=LAYERS, stages=STAGES, replicas=REPLICAS), seed=None)
    copies = "when needed" if name == "sharded" else "every step"
    build_pipeline(model.ir, model.parts, timetable, outputs=model.outputs, training=model.training, copies=copies)
    marks.append(time.process_time())
    simulate(lower(model.ir, machine), machine)
    marks.append(time.process_time())
    reference = (before + loop_seconds()) / 2
    took = (marks[1] - marks[0], marks[2] - marks[1])
    return [Row(_name(name, part), t, LOOP, reference) for part, t in zip((BUILD, SIMULATE), took, strict=True)]


def rows(repeats: int) -> list[Row]:
    """The rows of all schedules; the garbage of one is not collected in the time of the next."""
    measure("grouped")  # what the first one of a process loads and plans
    found = []
    for name in schedules():
        runs = []
        for _ in range(min(repeats, 3)):
            gc.collect()
            runs.append(measure(name))
        found += [sorted(same, key=lambda row: row.ratio)[len(same) // 2] for same in zip(*runs, strict=True)]
    return found
