"""Overlapped and synthetic host I/O: numbers as without, time hidden, upstream's errors."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.machine import load_machine  # noqa: E402
from ipuperf.runtime.settings import RunSettings, use_settings  # noqa: E402
from ipuperf.simulation import simulate  # noqa: E402
from ipuperf.trace import check  # noqa: E402

Mode = poptorch.OverlapMode
INNER, OUTER = Mode.OverlapAccumulationLoop, Mode.OverlapDeviceIterationLoop


class Network(torch.nn.Module):
    """Two layers, all inputs and results marked; with labels a loss too."""

    def __init__(self, mode, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.mode = mode
        self.first, self.last = torch.nn.Linear(width, width), torch.nn.Linear(width, 5)

    def forward(self, x, y=None):
        x = poptorch.set_overlap_for_input(x, self.mode)
        scores = self.last(torch.relu(self.first(x)))
        if y is None:
            return poptorch.set_overlap_for_output(scores, self.mode)
        y = poptorch.set_overlap_for_input({"labels": [y]}, self.mode)["labels"][0]
        loss = torch.nn.functional.cross_entropy(scores, y)
        return poptorch.set_overlap_for_output((scores, loss), self.mode)


def options(mode=OUTER, tiles=32, iterations=1, accumulation=1, replicas=1, output=poptorch.OutputMode.All):
    made = poptorch.Options().showCompilationProgressBar(False)
    made.setExecutionStrategy(poptorch.ShardedExecution()).deviceIterations(iterations).replicationFactor(replicas)
    made.outputMode(output).Training.gradientAccumulation(accumulation)
    if mode is not Mode.NoOverlap and tiles:
        made.TensorLocations.numIOTiles(tiles)
    return made


def data(count, width=32):
    torch.manual_seed(1)
    return torch.randn(2 * count, width), torch.randint(0, 5, (2 * count,))


def infer(mode, iterations):
    model = poptorch.inferenceModel(Network(mode), options(mode, iterations=iterations))
    return model, [model(data(iterations)[0])]


def train(mode, iterations, accumulation, replicas=1):
    network = Network(mode)
    model = poptorch.trainingModel(
        network,
        options(mode, iterations=iterations, accumulation=accumulation, replicas=replicas),
        torch.optim.SGD(network.parameters(), lr=0.5),
    )
    scores, loss = model(*data(iterations * accumulation * replicas))
    return model, [scores, loss, network.first.weight.detach(), network.last.bias.detach()]


@pytest.mark.parametrize("iterations", [1, 5])
def test_inference_gives_the_same_numbers(iterations):
    _, plain = infer(Mode.NoOverlap, iterations)
    model, found = infer(OUTER, iterations)
    assert torch.equal(found[0], plain[0])
    assert check(model.compiled_model.executable.trace) == []


@pytest.mark.parametrize(("mode", "iterations", "accumulation"), [(INNER, 3, 1), (INNER, 2, 5), (OUTER, 3, 4)])
def test_training_gives_the_same_numbers(mode, iterations, accumulation):
    _, plain = train(Mode.NoOverlap, iterations, accumulation)
    _, found = train(mode, iterations, accumulation)
    for one, other in zip(found, plain, strict=True):
        assert torch.equal(one, other)


def test_replicas_give_the_same_numbers():
    _, plain = train(Mode.NoOverlap, 2, 2, replicas=2)
    model, found = train(OUTER, 2, 2, replicas=2)
    for one, other in zip(found, plain, strict=True):
        assert torch.equal(one, other)
    assert check(model.compiled_model.executable.trace) == []


def fast_host():
    """Without callbacks and fixed costs, so that transfers and compute are what takes time."""
    made = load_machine("gc200-1")
    times = ("run_seconds", "call_seconds", "sync_seconds", "callback_seconds", "stream_latency_seconds")
    return replace(made, host=replace(made.host, **dict.fromkeys(times, 0.0)))


def traced(mode, iterations, accumulation, width, training=True):
    """The trace of a call of the network without numbers."""
    with torch.device("meta"):
        network = Network(mode, width)
        x, y = torch.empty(2 * iterations * accumulation, width), torch.empty(2 * iterations * accumulation).long()
    arguments = (x, y) if training else (x,)
    found = poptorch.compile_offline(
        network,
        options(mode, iterations=iterations, accumulation=accumulation),
        *arguments,
        training=training,
        machine=fast_host(),
    )
    trace = simulate(found.executable.device_program, fast_host())
    assert check(trace) == []
    return trace


def total(trace):
    return int(trace.columns("runs")["dur"][0])


def steady(mode, short, training=True, width=512):
    """Cycles that one more device iteration takes, and the trace of a call with ten more than ``short`` says."""
    (few, many) = (traced(mode, *how, width, training) for how in (short, (short[0] + 10, 1)))
    return (total(many) - total(few)) / 10, many


@pytest.mark.heavy
def test_a_step_lasts_as_long_as_the_longer_of_io_and_compute():
    """step = max(compute, I/O) + copies, all taken from the trace of the same program."""
    step, trace = steady(OUTER, (10, 1), training=False)
    table = trace.expand()
    table = table[table.iteration == 5]
    io = table[(table.lane == 1) & table.kind.isin(["host_begin", "host_mid", "host_end", "sync_external"])].dur.sum()
    own = table[table.lane == 0]
    copied = own.op.str.contains("IoTileCopy")
    copies = own[copied & own.kind.isin(["sync", "exchange"])].dur.sum()
    compute = own[~copied & own.kind.isin(["compute", "exchange", "sync"])].dur.sum()
    assert io > 0 < compute
    assert step == max(io, compute) + copies
    plain, _ = steady(Mode.NoOverlap, (10, 1), training=False)
    assert step < plain


@pytest.mark.heavy
def test_the_outer_loop_is_hidden_only_where_that_is_asked_for():
    inner, outer = (total(traced(mode, 6, 3, 512)) for mode in (INNER, OUTER))
    plain = total(traced(Mode.NoOverlap, 6, 3, 512))
    assert outer < inner < plain


def test_tiles_set_aside_do_not_compute_even_without_marks():
    with torch.device("meta"):
        network, x = Network(Mode.NoOverlap, 512), torch.empty(64, 512)
    made = options(Mode.NoOverlap)
    made.TensorLocations.numIOTiles(192)
    program = poptorch.compile_offline(network, made, x, training=False, machine="gc200-1").executable.device_program
    assert program.io_tiles == 192
    assert max(int(step.cycles.tiles) for step in program.walk() if hasattr(step, "vertex")) == 1472 - 192


class WrongInput(torch.nn.Module):
    def forward(self, x):
        return poptorch.set_overlap_for_input(x + 1, OUTER)


class WrongOutput(torch.nn.Module):
    def forward(self, x):
        return poptorch.set_overlap_for_output(x + 1, OUTER) * 2


class Two(torch.nn.Module):
    def forward(self, x):
        with poptorch.Block("one", ipu_id=0):
            x = poptorch.set_overlap_for_input(x, OUTER) * 2
        with poptorch.Block("two", ipu_id=1):
            return x + 1


def pipelined():
    return poptorch.Options().showCompilationProgressBar(False)


def phased():
    made = options()
    return made.setExecutionStrategy(poptorch.ParallelPhasedExecution(poptorch.Phase("one"), poptorch.Phase("two")))


@pytest.mark.parametrize(
    ("network", "made", "message"),
    [
        (Network(OUTER), pipelined, "Overlapped IO is not supported with poptorch.PipelinedExecution"),
        (Network(OUTER), lambda: options(tiles=0), r"the options set none aside.*32 or more"),
        (
            Network(OUTER),
            lambda: options(output=poptorch.OutputMode.Final),
            r"Unsupported output mode for overlapped IO: Final",
        ),
        (WrongInput(), options, r"test_poptorch_overlap\.py:\d+.*set_overlap_for_input applied on a node which is not"),
        (WrongOutput(), options, r"set_overlap_for_output applied on a node which is not a tensor output to the model"),
        (Two(), phased, "overlapped I/O with ParallelPhasedExecution is not supported; allowed: poptorch.Sharded"),
    ],
)
def test_what_upstream_refuses(network, made, message):
    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(network, made())(torch.ones(2, 32))


def test_sharded_execution_on_two_ipus():
    made = options(iterations=5)
    plain = torch.arange(10.0).reshape(5, 2)
    with use_settings(RunSettings(machine="pod4")):
        model = poptorch.inferenceModel(Two(), made)
        assert torch.equal(model(plain), plain * 2 + 1)
        assert check(model.compiled_model.executable.trace) == []


def test_marks_natively_and_bad_arguments():
    x = torch.ones(2, requires_grad=True)
    assert torch.equal(poptorch.set_overlap_for_input(x, OUTER), x)
    assert poptorch.set_overlap_for_input(x, Mode.NoOverlap) is x
    (grad,) = torch.autograd.grad(poptorch.set_overlap_for_output((x, [x]), INNER)[1][0].sum(), x)
    assert torch.equal(grad, torch.ones(2))
    with pytest.raises(poptorch.Error, match="set_overlap_for_input must take a torch.tensor argument"):
        poptorch.set_overlap_for_input(1, OUTER)
    with pytest.raises(AssertionError, match="mode 'far' given"):
        poptorch.set_overlap_for_output(x, "far")


@pytest.mark.parametrize("training", [False, True])
def test_synthetic_data_has_no_host_io(training):
    network = Network(Mode.NoOverlap)
    made = options(Mode.NoOverlap, iterations=3, accumulation=2 if training else 1)
    made.enableSyntheticData(True)
    count = 6 if training else 3
    before = network.first.weight.detach().clone()
    if training:
        model = poptorch.trainingModel(network, made, torch.optim.SGD(network.parameters(), lr=0.5))
        scores, loss = model(*data(count))
        assert loss.shape == (6,)
    else:
        model = poptorch.inferenceModel(network, made)
        scores = model(data(count)[0])
    assert torch.equal(scores, torch.zeros(2 * count, 5))
    assert torch.equal(network.first.weight, before)
    trace = model.compiled_model.executable.trace
    assert not np.isin(trace.columns("steps")["kind"], ["host_begin", "host_mid", "host_end"]).any()
    assert len(trace.columns("transfers")["start"]) == 0
    assert list(trace.columns("host_events")["label"]) == ["session.run"]
    assert model.getLatency() == (0.0, 0.0, 0.0)
    assert check(trace) == []


def test_synthetic_modes():
    made = poptorch.Options()
    assert not made._Popart.synthetic_data
    made.enableSyntheticData(True)
    assert made._Popart.synthetic_data
    assert made.effects() == []
    with pytest.raises(AssertionError, match="expected one of 0 Off, 1 Zeros, 2 RandomNormal, 3 RandomUniform"):
        made._Popart.set("syntheticDataMode", 4)
