"""What every lever gives for programs of each kind: in words, cycles and bytes (``tests/golden/levers``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from types import SimpleNamespace
from typing import Any

import digest
import programs
import pytest
from rows import Golden

from ipuperf import popxl
from ipuperf.levers import LeverResults, Rerun, Trial, levers_text
from ipuperf.levers.measure import LEVERS, measure
from ipuperf.levers.trial import Lever
from ipuperf.popxl import ops
from ipuperf.runtime.executable import Executable, LoweringOptions


class Made(Rerun):
    """A program that a function makes, in place of a script."""

    def __init__(self, build: Callable[[], Executable]) -> None:
        self._build, self.origin = build, SimpleNamespace(machine="pod4")
        self._start()
        self.trace = self.executable.trace

    def _reached(self) -> Executable:
        return self._build()


def streamed(times: int, update: bool, io_tiles: int = 0) -> Executable:
    """Slices of a stream in a loop, and a weight update after it or not."""
    ir = popxl.Ir()
    ir.num_host_transfers = times
    ir.num_io_tiles = io_tiles
    with ir.main_graph, popxl.in_sequence():
        source = popxl.h2d_stream((16, 64), popxl.float32, "x")
        weight, total = programs.weights(64, 64), programs.weights(64, 64, name="total")

        def batch(weight: popxl.Tensor, total: popxl.TensorByRef) -> None:
            x = ops.host_load(source)
            ops.var_updates.accumulate_(total, x.T @ (x @ weight))

        ops.repeat(ir.create_graph(batch, weight, total), times, weight, total)
        if update:
            ops.scaled_add_(weight, total, b=-0.01)
            ops.var_updates.accumulator_scale_(total, 0.0)
    return popxl.Session(ir, "ipu_hw").executable


def inference(times: int) -> Executable:
    """Batches of a stream in a loop, with results and without an update."""
    ir = popxl.Ir()
    ir.num_host_transfers = times
    with ir.main_graph, popxl.in_sequence():
        source, sink = popxl.h2d_stream((16, 64), popxl.float32, "x"), popxl.d2h_stream((16, 64), popxl.float32, "y")
        weight = programs.weights(64, 64)

        def batch(weight: popxl.Tensor) -> None:
            ops.host_store(sink, ops.host_load(source) @ weight)

        ops.repeat(ir.create_graph(batch, weight), times, weight)
    return popxl.Session(ir, "ipu_hw").executable


def synchronised() -> Executable:
    """A program in which all IPUs stand while one is at the host."""
    executable = programs.encoder("sharded", 2, 2, host_inputs=True, hidden=16)
    return executable.changed(lowering=LoweringOptions("full"))


PROGRAMS: Mapping[str, Callable[[], Executable]] = {
    "batches": partial(streamed, 3, False),
    "accumulation": partial(streamed, 4, True),
    "io-tiles": partial(streamed, 2, False, 32),
    "product": programs.POPXL["product"],
    "unsharded": partial(programs.perceptron, "pod4", replicas=4, threshold=float("inf")),
    "sharded": partial(programs.perceptron, "pod4", replicas=4, threshold=512),
    "pipeline": partial(programs.encoder, "grouped", 3, 6, host_inputs=True),
    "replicated-pipeline": partial(programs.encoder, "popart_pipeline", 2, 4, replicas=2, host_inputs=True),
    "stages-in-turn": partial(programs.encoder, "sharded", 2, 4, host_inputs=True),
    "one-stage": partial(programs.encoder, "grouped", 1, 4, host_inputs=True),
    "placed-by-hand": programs.ladder((0, 1)),
    "inference": partial(inference, 3),
    "synchronised": synchronised,
    "one-replica": partial(programs.perceptron, "pod4", replicas=1, threshold=float("inf")),
}
_made: dict[str, Made] = {}


def run_of(name: str, installed_front_ends: Callable) -> Made:
    if name not in _made:
        _made[name] = Made(PROGRAMS[name])
    return _made[name]


def told(found: Any) -> dict[str, Any]:
    """A trial or what was not tried, without its trace."""
    thing = found.change if isinstance(found, Trial) else found
    named = {field.name: getattr(thing, field.name) for field in fields(thing) if not field.name.startswith("of_")}
    if not isinstance(found, Trial):
        return named
    return {**named, "cycles": found.cycles, "fullest": found.fullest, "fits": found.fits}


ONLY = {
    "inference": ("MoreMicroBatches", "CallLength"),
    "synchronised": ("SyncPatterns", "PrefetchDepth"),
    "one-replica": ("Sharding", "OnChip"),
}
"""Programs that are about some levers."""
TRIED = [
    (name, lever)
    for name in PROGRAMS
    for lever in LEVERS
    if type(lever).__name__ in ONLY.get(name, [type(lever).__name__])
]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "lever"), TRIED, ids=lambda one: one if isinstance(one, str) else type(one).__name__)
def test_lever(name: str, lever: Lever, installed_front_ends: Callable, golden: Golden) -> None:
    with installed_front_ends():
        lines = digest.lines([told(one) for one in lever.tries(run_of(name, installed_front_ends))])
    golden(lines)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["accumulation", "unsharded", "pipeline"])
def test_all_levers_in_words(name: str, installed_front_ends: Callable, golden: Golden) -> None:
    with installed_front_ends():
        run = run_of(name, installed_front_ends)
        results: LeverResults = measure(run, LEVERS)
    golden(digest.lines(levers_text(run.trace, results)))
