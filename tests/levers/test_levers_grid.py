"""The advice, of at most three changes, against every configuration of a program with the same global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from ipuperf.levers import Rerun, measure
from ipuperf.levers.loops import CallLength, MoreMicroBatches
from ipuperf.levers.measure import LEVERS
from ipuperf.levers.precision import HalfModel, HalfPart
from ipuperf.machine import load_machine
from ipuperf.runtime.origin import origin_of
from ipuperf.runtime.reaching import NotReachedError, executable_of
from ipuperf.runtime.settings import RunSettings
from ipuperf.trace import Trace

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("adviceprogram.py")
SAME_WORK = [lever for lever in LEVERS if not isinstance(lever, CallLength | MoreMicroBatches | HalfModel | HalfPart)]
"""Levers that keep global batch, calls and types, as the configurations do."""


@dataclass(frozen=True)
class Start:
    """A program as its user has it, whose ``stages``, ``replicas`` and ``batch`` (of a micro-batch) can be better."""

    model: str
    size: int
    layers: int
    machine: str
    stages: int
    replicas: int
    batch: int
    samples: int

    def arguments(self, stages: int, replicas: int, batch: int, **options: object) -> list[str]:
        """The program with other places and batches."""
        values = {"model": self.model, "size": self.size, "layers": self.layers, "stages": stages, "replicas": replicas}
        values |= {"batch": batch, "accumulation": self.samples // replicas // batch, **options}
        return [f"--{name}={value}" for name, value in values.items()]

    def trace(self, arguments: list[str]) -> Trace:
        """The program with these arguments, simulated."""
        return executable_of(PROGRAM, arguments, RunSettings(self.machine), 0).trace

    def configurations(self) -> Iterator[list[str]]:
        """Every way to place and divide the same samples on as many IPUs, or on all of the machine's."""
        ipus = load_machine(self.machine).num_ipus
        for stages, replicas, batch in product((1, 2, 4, 8, 16), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64)):
            fits = stages * replicas in (self.stages * self.replicas, ipus) and stages <= self.layers + 2
            if not fits or self.samples % (replicas * batch):
                continue
            kinds, shorter = ((0, 3), (self.layers + 2) // stages - 1) if stages > 1 else ((0, 1), 0)
            # A first stage without layers would be as all others.
            places = [(0.1, 0), (0.6, 0), (1.0, 0)] + ([(0.6, shorter)] if shorter else [])
            for recompute, (proportion, first) in product(kinds, places):
                yield self.arguments(stages, replicas, batch, recompute=recompute, proportion=proportion, first=first)


def cycles_of(trace: Trace) -> int:
    """Cycles of the run."""
    return int(trace.columns("runs")["dur"][-1])


STARTS = [
    Start("mlp", 512, 2, "pod4", 2, 1, 8, 128), Start("mlp", 1024, 4, "pod4", 4, 1, 4, 256),
    Start("mlp", 2048, 6, "bow-pod4", 4, 1, 4, 128), Start("mlp", 1024, 6, "pod16", 4, 4, 2, 256),
    Start("gpt", 256, 4, "pod4", 4, 1, 1, 16), Start("gpt", 256, 6, "bow-pod4", 4, 1, 2, 32),
    Start("gpt", 128, 4, "pod16", 4, 1, 1, 16),
    Start("encoder", 512, 4, "pod4", 4, 1, 2, 64), Start("encoder", 256, 6, "pod4", 2, 2, 1, 32),
    Start("encoder", 256, 2, "pod4", 1, 1, 1, 16), Start("encoder", 256, 6, "pod16", 8, 2, 1, 64),
    Start("encoder", 128, 14, "pod4", 4, 1, 1, 32),
    Start("vit", 384, 4, "pod4", 4, 1, 1, 32), Start("vit", 256, 4, "pod4", 1, 4, 1, 32),
    Start("vit", 256, 6, "bow-pod4", 2, 1, 1, 16), Start("vit", 256, 2, "pod16", 4, 4, 1, 128),
    Start("cnn", 128, 4, "pod4", 4, 1, 1, 32), Start("cnn", 256, 4, "pod4", 2, 2, 1, 32),
    Start("cnn", 128, 2, "pod4", 1, 1, 2, 32), Start("cnn", 256, 6, "bow-pod4", 4, 1, 1, 16),
]  # fmt: skip
"""Five models on four machines, as pipelines, replicas, and on one IPU."""


@pytest.mark.slow(minutes=5)
@pytest.mark.parametrize(
    "start", STARTS, ids=lambda start: f"{start.model}-{start.size}-{start.machine}-{start.stages}"
)
def test_the_best_advice_is_near_the_best_configuration(
    start: Start, record_property: Callable[[str, object], None]
) -> None:
    arguments = start.arguments(start.stages, start.replicas, start.batch)
    run = Rerun(origin_of(PROGRAM, arguments, start.machine, "simulated"), start.trace(arguments))
    results = measure(run, SAME_WORK)
    advised = min(trial.cycles for trial in (*results.trials, *results.together) if not trial.change.training)
    best = results.cycles
    for configuration in start.configurations():
        try:
            trace = start.trace(configuration)
        except NotReachedError:
            continue  # the front end refuses it
        if not trace.meta["oom"]:
            best = min(best, cycles_of(trace))
    record_property("after / before", round(float(advised / results.cycles), 3))
    record_property("advice / best", round(float(advised / best), 3))
    assert advised <= 1.05 * best
