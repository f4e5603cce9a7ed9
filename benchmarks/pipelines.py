"""Speed of large pipelines: a transformer encoder of 24 layers in 4 stages, 4 replicas, 16 micro-batches, no numerics.

    python benchmarks/pipelines.py [SCHEDULE ...]

For each schedule the CPU seconds of building the model and its pipeline, of lowering, and of simulating it, each as a
ratio to a plain Python loop that adds up the numbers below :data:`LOOP` in the same process; the loop is measured
before and after, so that a slow phase of the machine hits both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click

LOOP = 5_000_000
REFERENCE = f"Python loop of {LOOP:,} additions"
STAGES, MICRO_BATCHES, REPLICAS, LAYERS = 4, 16, 4, 24
MACHINE = "pod16"


def reference_seconds() -> float:
    """CPU seconds of the reference loop."""
    start, total = time.process_time(), 0
    for number in range(LOOP):
        total += number
    return time.process_time() - start


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


def measure(name: str, layers: int = LAYERS) -> list[dict[str, Any]]:
    """Rows for one schedule: build, lower, simulate, and the last two together."""
    from ipuperf.lowering import lower
    from ipuperf.machine import load_machine
    from ipuperf.models.encoder import EncoderOptions, encoder
    from ipuperf.pipelines import build_pipeline
    from ipuperf.simulation import simulate

    machine, timetable = load_machine(MACHINE), schedules()[name]()
    before, marks = reference_seconds(), [time.process_time()]
    model = encoder(EncoderOptions(layers=layers, stages=STAGES, replicas=REPLICAS), seed=None)
    copies = "when needed" if name == "sharded" else "every step"
    build_pipeline(model.ir, model.parts, timetable, outputs=model.outputs, training=model.training, copies=copies)
    marks.append(time.process_time())
    program = lower(model.ir, machine)
    marks.append(time.process_time())
    simulate(program, machine)
    marks.append(time.process_time())
    reference = (before + reference_seconds()) / 2
    build, lowering, simulation = (b - a for a, b in zip(marks, marks[1:], strict=False))
    return [
        {
            "name": f"encoder {layers} layers, {name}: {part}",
            "seconds": seconds,
            "reference": REFERENCE,
            "reference_seconds": reference,
            "ratio": seconds / reference,
        }
        for part, seconds in (
            ("build", build),
            ("lower", lowering),
            ("simulate", simulation),
            ("lower + simulate", lowering + simulation),
        )
    ]


def pipelines(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Rows for all schedules, or those of the given names."""
    return [row for name in names or schedules() for row in measure(name)]


@click.command(help="Measure how fast large pipelines are built, lowered and simulated.")
@click.argument("names", nargs=-1, metavar="[SCHEDULE]...")
def main(names: tuple[str, ...]) -> None:
    """Print the rows of each schedule as they come."""
    known = schedules()
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r} is no schedule, allowed: {', '.join(map(repr, known))}")
    for name in names or known:
        for row in measure(name):
            click.echo(f"{row['name']:55}  {row['seconds']:7.2f} s  {row['ratio']:6.2f} x {row['reference']}")


if __name__ == "__main__":
    main()
