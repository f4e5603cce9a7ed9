"""What an executor tells of simulated time: cycles, performance counters, latencies, reports."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from executorcases import Network, adamw, batch, inference, options, twins  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402

Mode = poptorch.OutputMode


@pytest.fixture(scope="module")
def trained() -> Any:
    """A pipelined training model of two replicas under the default sync pattern."""
    module, _ = twins(Network)
    model = poptorch.trainingModel(module, options(iterations=2, replicas=2), adamw(module.parameters()))
    model(*batch(24))
    return model


def test_cycles_of_a_call(trained: Any) -> None:
    """What the trace says the IPUs did, without the host's fixed cost before and the outputs it handles after."""
    predicting = poptorch.inferenceModel(twins(Network)[0], inference(replicas=2))  # nothing follows its last outputs
    predicting(batch(8)[0])
    for model, handled in ((trained, False), (predicting, True)):
        rows = model.simulated_trace.expand()
        of_host = rows.kind == "host_run"
        first = int(rows[of_host].dur.iloc[0])
        assert model.cycleCount() == int((rows.start + rows.dur)[~of_host].max()) - first
        assert (model.cycleCount() < int((rows.start + rows.dur).max()) - first) is handled
    assert isinstance(trained.compilationTime(), datetime.timedelta)
    assert trained.compilationTime().total_seconds() > 0


COUNTS = [(Mode.All, None, 24), (Mode.Final, None, 2), (Mode.Sum, None, 2), (Mode.EveryN, 2, 12)]


@pytest.mark.parametrize("mode", COUNTS)
@pytest.mark.parametrize("pattern", ["Full", "SinglePipeline"])
def test_perf_counters(pattern: str, mode: tuple[Any, int | None, int]) -> None:
    """Counts as in ``poptorch:tests/perf_counters_test.py``: slices times replicas. Every input is complete before the
    output of its micro-batch is asked for."""
    module, _ = twins(Network)
    opts = options(iterations=2, replicas=2, mode=mode[0], period=mode[1]).syncPattern(poptorch.SyncPattern[pattern])
    model = poptorch.trainingModel(module, opts)
    model.compile(*batch(24))
    counters = model.getPerfCounters()
    sizes = {event: [len(times) for times in lists] for event, lists in counters.items()}
    assert sizes == {
        "input": [24] * 2,
        "input_complete": [24] * 2,
        "output": [mode[2]] * 2,
        "output_complete": [mode[2]] * 2,
    }
    asked, complete = (np.array(counters[f"input{end}"]) for end in ("", "_complete"))
    ready, left = (np.array(counters[f"output{end}"]) for end in ("", "_complete"))
    assert (asked <= complete).all()
    assert (ready < left).all()
    assert left.max() <= model.compiled_model.executable.simulated_run_seconds
    inputs = complete.reshape(2, 12, 2).max(axis=0)
    if mode[0] is Mode.All:
        assert (inputs < ready.reshape(2, 12, 2)).all()
    for replica in range(2):
        assert (np.diff(complete[0, replica::2]) > 0).all(), "slices of a replica come one after the other"


def test_latencies_follow_from_the_counters(trained: Any) -> None:
    counters = {event: np.array(times) for event, times in trained.getPerfCounters().items()}
    asked, complete = counters["input"].min(axis=0), counters["input_complete"].max(axis=0)
    ready, left = counters["output"], counters["output_complete"].max(axis=0)
    for found, spans in [
        (trained.getHostIpuLatency(), complete - asked),
        (trained.getComputeLatency(), ready.max(axis=0) - complete),
        (trained.getIpuHostLatency(), left - ready.min(axis=0)),
        (trained.getLatency(), left - asked),
    ]:
        np.testing.assert_allclose(found, (spans.min(), spans.max(), spans.mean()), rtol=1e-6, atol=2e-9)
        assert 0 < found[0] <= found[2] <= found[1]


def test_a_slice_crosses_a_pipeline_in_as_many_cycles_as_stages(trained: Any) -> None:
    """An output leaves two pipeline cycles after its input came: between them the inputs of two further slices."""
    counters = trained.getPerfCounters()
    x = np.array(counters["input_complete"][0])[0::2]
    out = np.array(counters["output"][0])[0::2]
    for number in range(3, 6):
        assert x[number] < out[number]
        between = ((x > x[number]) & (x < out[number])).sum()
        assert between == min(2, 5 - number)


@pytest.mark.heavy
def test_profiling_writes_a_report(tmp_path: Path) -> None:
    class Double(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return 2 * x

    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.enableProfiling(str(tmp_path / "profile")).modelName("doubling")
    poptorch.inferenceModel(Double(), opts)(torch.ones(3))
    text = (tmp_path / "profile" / "inference" / "summary.txt").read_text(encoding="utf-8")
    assert "doubling" in text


def test_prefetch_hides_the_host() -> None:
    """The only other option of time: how far the host may be ahead of the IPUs."""
    cycles = []
    for depth in (1, 4):
        module, _ = twins(Network)
        opts = options(iterations=2)
        opts._Popart.set("defaultPrefetchBufferingDepth", depth)
        model = poptorch.trainingModel(module, opts)
        model.compile(*batch(12))
        cycles.append(model.cycleCount())
    assert cycles[1] < cycles[0]
