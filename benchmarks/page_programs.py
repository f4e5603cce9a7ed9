"""The four programs whose report pages are measured: their traces, simulated once and kept in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ipuperf
from ipuperf.trace import Trace, TraceError


def remote_variables() -> Trace:
    """An MNIST network on four replicas, Adam's state in Streaming Memory (``scenarios/rts_mnist.py``)."""
    from ipuperf.scenarios.rts_mnist import PLACEMENTS, simulate_placement

    return simulate_placement(PLACEMENTS[0])[1]


def pipeline() -> Trace:
    """The network of the PopTorch tutorial on pipelines, four stages (``scenarios/pipeline_mnist.py``)."""
    from ipuperf.scenarios.pipeline_mnist import simulate

    ipuperf.install()
    from ipuperf.models.mnist_cnn import PipelineOptions

    return simulate(PipelineOptions())[0]


def bert_large() -> Trace:
    """A training step of BERT-Large on 16 IPUs: four replicas of four stages, gradient accumulation 2,048."""
    return _case("GPP-BL1-A", "bert")


def overlapped() -> Trace:
    """An inference of ResNet-50 with overlapped I/O on I/O tiles."""
    return _case("PRT-RNTAB-FP16-real_overlapIO-bs2", "resnet50")


def _case(name: str, model: str) -> Trace:
    """The program of a published measurement."""
    import importlib

    from ipuperf.runtime.settings import RunSettings, use_settings
    from ipuperf.validation import problem, read_cases

    (case,) = [case for case in read_cases(known=problem).cases if case.id == name]
    ipuperf.install()
    with use_settings(RunSettings(machine=case.machine)):
        trace: Trace = importlib.import_module(f"ipuperf.models.{model}").validation_program(case).executable.trace
    return trace


PROGRAMS: dict[str, Callable[[], Trace]] = {
    "remote-variables": remote_variables,
    "pipeline": pipeline,
    "overlapped": overlapped,
    "bert-large": bert_large,
}


def trace_of(name: str, kept: Path | None) -> Trace:
    """The trace of a program; from the folder ``kept`` where it is there and readable, else simulated and put there."""
    file = kept / f"{name}.ipt" if kept else None
    if file and file.exists():
        try:
            return Trace.load(file)
        except TraceError:
            file.unlink()  # of another version
    trace = PROGRAMS[name]()
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        trace.save(file)
    return trace
