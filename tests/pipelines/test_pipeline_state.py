"""State that a stage's forward writes (running statistics): once for every micro-batch, recomputed or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pipelinecases import ROWS, WIDTH, network, run_once

from ipuperf.ir import Variable
from ipuperf.ops import Add
from ipuperf.pipelines import Data, build_pipeline
from ipuperf.schedules import RecomputationMode, grouped, popart_pipeline, sequential


@pytest.mark.parametrize(
    "timetable",
    [grouped(2, 4), grouped(2, 4, recompute=RecomputationMode.Auto), popart_pipeline(2, 4), sequential(2, 3)],
)
def test_a_running_sum_sees_every_micro_batch_once(timetable):
    net, updates = network(2), 2
    part = net.parts[0]
    spec = part.graph.inputs[0].spec
    seen = Variable("seen", spec, net.ir.main_graph, np.ones(spec.shape, np.float32), net.ir.grouping())
    before = part.graph.add_input(net.ir.main_graph.add(seen).spec, "seen")
    part.graph.add_output(part.graph.create(Add, [before, part.graph.inputs[0]], ["sum"]).outputs[0])
    net.parts[0] = replace(part, sources=[*part.sources, Data(seen)], updates={1: seen})
    build_pipeline(net.ir, net.parts, timetable, outputs=net.outputs, training=net.training, repeats=updates)
    x = np.random.default_rng(3).integers(-8, 8, (2, updates * timetable.micro_batches, 1, ROWS, WIDTH))
    run_once(net, *x.astype(np.float32))
    np.testing.assert_array_equal(seen.data, 1 + x[0].sum(axis=(0, 1)))
