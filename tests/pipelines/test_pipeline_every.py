"""Results of every n-th micro-batch: only those are sent, in every schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pipelinecases import ROWS, WIDTH, network

from ipuperf.numerics import Evaluator
from ipuperf.pipelines import PipelineError, build_pipeline
from ipuperf.schedules import Timetable, grouped, popart_pipeline, sharded

SCHEDULES = {
    "pipeline": lambda: (popart_pipeline(3, 12), "every step"),
    "recomputing": lambda: (popart_pipeline(3, 12, recompute=True), "every step"),
    "grouped": lambda: (grouped(3, 12), "every step"),
    "sharded": lambda: (sharded(3, 12, devices=[0, 1, 2]), "when needed"),
}


def losses(table: Timetable, copies: str, every: int, repeats: int = 2) -> tuple[np.ndarray, Any]:
    """What one run sends, and the pipeline."""
    net = network(3)
    outputs = [replace(net.outputs[0], every=every)]
    made = build_pipeline(
        net.ir, net.parts, table, outputs=outputs, training=net.training, repeats=repeats, copies=copies
    )
    rng = np.random.default_rng(3)
    shape = (12 * repeats, 1, ROWS, WIDTH)
    data = {stream: rng.normal(size=shape).astype(np.float32) for stream in (net.inputs, net.targets)}
    evaluator = Evaluator(net.ir)
    evaluator.load_variables()
    found = evaluator.run(data)[net.losses]
    assert net.losses.transfers == len(found)
    return found, made


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_nth_micro_batch_is_sent(name: str) -> None:
    everything, _ = losses(*SCHEDULES[name](), 1)
    assert len(everything) == 24
    for every in (2, 3, 12):
        found, made = losses(*SCHEDULES[name](), every)
        np.testing.assert_array_equal(found, everything[every - 1 :: every])
        assert made.program.trips in ((0,) if every == 12 else (2, 3, 4, 5, 6))


@pytest.mark.parametrize(("every", "returned"), [(5, "all"), (0, "all"), (2, "final"), (24, "all")])
def test_what_does_not_divide_the_micro_batches(every: int, returned: str) -> None:
    net = network(3)
    outputs = [replace(net.outputs[0], every=every, returned=returned)]
    with pytest.raises(PipelineError, match=f"every={every} of 12 micro-batches with returned='{returned}'; allowed"):
        build_pipeline(net.ir, net.parts, popart_pipeline(3, 12), outputs=outputs, training=net.training)
