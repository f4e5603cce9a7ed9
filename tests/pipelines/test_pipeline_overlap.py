"""Overlapped I/O against plain gradient accumulation, for one and two IPUs, updates and micro-batches; slices are
counted, and each micro-batch is loaded while another one is computed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelinecases import ROWS, WIDTH, network, plain, run_once

from ipuperf.lowering import lower
from ipuperf.machine import load_machine
from ipuperf.pipelines import HostIo, PipelineError, build_pipeline
from ipuperf.schedules import popart_pipeline, sharded
from ipuperf.simulation import simulate
from ipuperf.trace import check


def overlapped(net, across, stages):
    """All streams overlapped; ``across`` for each input and the result."""
    return HostIo(32 * stages, {net.inputs: across[0], net.targets: across[1]}, {net.losses: across[2]})


@pytest.mark.heavy
@settings(max_examples=25)
@given(st.integers(1, 2), st.integers(1, 6), st.integers(1, 4), st.tuples(*[st.booleans()] * 3), st.integers(1, 2))
def test_values_are_those_of_gradient_accumulation(stages, micro_batches, updates, across, replicas):
    net = network(stages, replicas=replicas)
    build_pipeline(
        net.ir, net.parts, sharded(stages, micro_batches), outputs=net.outputs, training=net.training, repeats=updates,
        copies="when needed", host_io=overlapped(net, across, stages),
    )  # fmt: skip
    count, before = updates * micro_batches, [w.data.copy() for w in net.weights]
    rng = np.random.default_rng(3)
    x, target = rng.normal(size=(2, count, replicas, ROWS, WIDTH)).astype(np.float32)
    found = run_once(net, x, target)
    flat = [a.reshape(count * replicas, ROWS, WIDTH) for a in (x, target)]
    weights, losses = plain(before, (), *flat, updates, factor=1 / (micro_batches * replicas))
    np.testing.assert_allclose(found.reshape(-1), losses, rtol=2e-5, atol=1e-6)
    for variable, expected in zip(net.weights, weights, strict=True):
        np.testing.assert_allclose(variable.data, expected, rtol=1e-4, atol=1e-6)
    trace = simulate(lower(net.ir, load_machine("pod4")), load_machine("pod4"))
    assert check(trace) == []
    labels = trace.columns("host_events")["label"]
    assert sum(label == "prepare x" for label in labels) == count  # for all replicas at once
    assert sum(label == "handle loss" for label in labels) == count


def test_what_cannot_overlap():
    net = network(2)
    for options, message in (
        ({"host_io": overlapped(net, (True,) * 3, 1)}, r"32 I/O tiles and copies='every step'; it needs"),
        ({"host_io": HostIo(0, {net.inputs: True}), "copies": "when needed"}, "overlapped I/O with 0 I/O tiles"),
    ):
        with pytest.raises(PipelineError, match=message):
            build_pipeline(
                net.ir, net.parts, popart_pipeline(2, 4), outputs=net.outputs, training=net.training, **options
            )
