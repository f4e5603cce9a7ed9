"""More micro-batches, more device iterations: the simulated change takes what the program takes that is written so."""

from __future__ import annotations

from fractions import Fraction

import pytest
from levercases import ACCUMULATED, INFERENCE, LOOPED, PIPELINE, RTS, Case, cycles_of, levers_in

from ipuperf.levers.host import CallbackThreads, HostProcesses, PrefetchDepth, SyncPatterns
from ipuperf.levers.io_tiles import OverlappedIo
from ipuperf.levers.loops import CALLS, CallLength, MoreMicroBatches


@pytest.mark.heavy
def test_a_host_bound_inference_names_the_host_and_levers_on_it(case: Case) -> None:
    folder = case.run(INFERENCE, machine="gc200-1")
    text = case.why(folder)
    assert "bound by the host" in text
    assert (
        f"do {CALLS} calls in one: a loop on the device, {CALLS} batches in a call (host exchange" in levers_in(text)[0]
    )
    assert text == case.why(folder)  # the same each time
    trial = case.only(folder, CallLength())
    assert trial.change.work == CALLS
    assert trial.cycles < Fraction(cycles_of(folder), 2)
    assert "the program itself says on which tiles it loads and stores" in text


def test_batches_of_a_loop_are_doubled_as_in_the_program_with_twice_as_many(case: Case) -> None:
    trial = case.only(case.run(LOOPED, 8, machine="gc200-1"), CallLength())
    assert trial.what == "do 16 batches in a call instead of 8 (device iterations)"
    assert trial.cycles * trial.change.work == cycles_of(case.run(LOOPED, 16, machine="gc200-1"))


def test_micro_batches_of_a_popxl_loop_are_doubled_as_in_the_program_with_twice_as_many(case: Case) -> None:
    found = case.measured(case.run(ACCUMULATED, 8, machine="gc200-1"), MoreMicroBatches(), CallLength())
    trials = {trial.what: trial for trial in found.trials}
    trial = trials["raise gradient accumulation from 8 to 16"]
    assert trial.cycles * trial.change.work == cycles_of(case.run(ACCUMULATED, 16, machine="gc200-1"))
    assert f"do {CALLS} calls in one: a loop on the device, {CALLS} weight updates in a call" in trials


@pytest.mark.heavy
def test_accumulation_and_iterations_are_those_of_the_program_with_these_options(case: Case) -> None:
    pytest.importorskip("torch")
    found = case.measured(case.run(PIPELINE), MoreMicroBatches(), CallLength()).trials
    trial = next(trial for trial in found if "accumulation" in trial.what)
    assert trial.what == "raise gradient accumulation from 8 to 16"
    more = case.run(PIPELINE.replace("ACCUMULATION, ITERATIONS = 8, 2", "ACCUMULATION, ITERATIONS = 16, 2"))
    assert trial.cycles * trial.change.work == cycles_of(more)
    trial = next(trial for trial in found if "iterations" in trial.what)
    assert trial.what == "do 4 weight updates in a call instead of 2 (device iterations)"
    longer = case.run(PIPELINE.replace("ACCUMULATION, ITERATIONS = 8, 2", "ACCUMULATION, ITERATIONS = 8, 4"))
    assert trial.cycles * trial.change.work == cycles_of(longer)


@pytest.mark.heavy
def test_options_of_the_host_are_tried_as_far_as_the_program_has_replicas(case: Case) -> None:
    folder = case.run(RTS, 512)
    found = case.measured(folder, PrefetchDepth(), HostProcesses(), CallbackThreads(), SyncPatterns())
    assert [trial.what.split(" (")[0] for trial in found.trials] == [
        "run the host's callbacks in a thread per replica",
        "raise the prefetch depth from 1 to 2",
        "start 2 host processes instead of 1",  # which wait for the later one, longer than a call of 4 ms takes
    ]
    alone = case.measured(case.run(INFERENCE, machine="gc200-1"), HostProcesses(), CallbackThreads(), SyncPatterns())
    assert [(one.what, one.why) for one in alone.untried] == [("host processes", "every replica has one already")]
    assert not alone.trials


INSTANCES = """
import os
os.environ.update(POPDIST_NUM_TOTAL_REPLICAS="4", POPDIST_NUM_INSTANCES="2")
import numpy as np
import popxl

ir = popxl.Ir("popdist")
for name in ("POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_INSTANCES"):
    del os.environ[name]
with ir.main_graph:
    x = popxl.h2d_stream((8,), popxl.float32)
    popxl.ops.host_store(popxl.d2h_stream((8,), popxl.float32), popxl.ops.host_load(x))
with popxl.Session(ir, "ipu_hw") as session:
    session.run({x: np.zeros((4, 8), np.float32)})
"""


def test_fewer_host_processes_are_tried_where_there_are_several(case: Case) -> None:
    found = case.measured(case.run(INSTANCES), HostProcesses())
    assert [trial.what for trial in found.trials] == [
        "start 1 host process instead of 2 (poprun --num-instances 1)"  # four would begin later still
    ]


OVERLAPPING = """
import poptorch, torch

net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
options = poptorch.Options()
options.deviceIterations(16)
poptorch.inferenceModel(net, options=options)(torch.randn(16 * 64, 1024))
"""


@pytest.mark.heavy
def test_io_tiles_are_tried_where_a_front_end_says_where_io_happens(case: Case) -> None:
    pytest.importorskip("torch")
    trial = case.only(case.run(OVERLAPPING, machine="gc200-1"), OverlappedIo())
    assert trial.what.endswith("I/O tiles while the others compute")
    assert trial.fits
    refused = case.measured(case.run(PIPELINE), OverlappedIo())
    assert refused.untried[0].why == "a pipeline's stages cannot be overlapped with I/O"


def test_what_a_script_does_for_its_samples_stays_as_calls_get_longer(case: Case) -> None:
    folder = case.own(INFERENCE, options=("--between-calls", "5"))
    (trial,) = case.measured(folder, CallLength()).trials
    plain = case.only(case.run(INFERENCE, machine="gc200-1"), CallLength())
    script = 5 * 1_325_000  # five milliseconds of a GC200
    assert abs(trial.cycles - plain.cycles - script) < 1
    assert cycles_of(folder) - cycles_of(case.run(INFERENCE, machine="gc200-1")) == script
