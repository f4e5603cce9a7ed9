"""New numbers of an optimiser between two calls: when the host brings them, what they are, and how long it takes.

The oracle is PopART's rule (``getOptimizerInputs`` of its optimisers), counted by hand, and the figures of the host.
"""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from executorcases import Network, adamw, batch, options  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.lowering import NewValues  # noqa: E402
from ipuperf.machine import load_machine  # noqa: E402
from ipuperf.poptorch.optimisers import classes as optim  # noqa: E402
from ipuperf.poptorch.optimisers.lars import LARS  # noqa: E402
from ipuperf.report.critical_path import critical_path, path_cycles  # noqa: E402
from ipuperf.runtime.clock import SimulatedClock, activate  # noqa: E402
from ipuperf.runtime.settings import RunSettings, use_settings  # noqa: E402
from ipuperf.trace import check  # noqa: E402

POD = load_machine("pod16")
PARAMETERS = (2, 4, 2)
"""Of each IPU."""
TIGHT = 1.5e-6
"""Seconds: some external syncs, and the bytes."""


def by_hand(streams: int) -> float:
    """Seconds of a run that copies so many scalars: the engine is called; one host sync with a callback for each stream
    before the copy and one after it, whose answers the IPUs await."""
    host = POD.host
    end = host.sync_seconds + streams * host.callback_seconds + host.answer_seconds
    return host.run_seconds + 2 * end + host.stream_latency_seconds


def model(optimizer: Any = adamw, replicas: int = 1, processes: int = 1) -> tuple[Any, Any]:
    module, given = Network(), options(replicas=replicas)
    given._host_processes = processes
    made = optimizer(module.parameters())
    return poptorch.trainingModel(module, given, made), made


def seconds_of(call: Any) -> float:
    clock = SimulatedClock()
    with activate(clock):
        call()
    return clock.now


def changed(optimizer: Any) -> Any:
    optimizer.param_groups[0]["lr"] *= 0.5
    return optimizer


@pytest.fixture(autouse=True)
def on_a_pod() -> Any:
    with use_settings(RunSettings(machine=POD)):
        yield


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_new_rate_is_a_run_of_its_own(replicas: int) -> None:
    """Native AdamW: the rate of each of eight parameters is variable, and its eps, which is not 1e-8."""
    trained, optimizer = model(lambda p: torch.optim.AdamW(p, lr=0.1, eps=1e-3), replicas)
    data = batch(6 * replicas)
    trained(*data)
    plain = seconds_of(lambda: trained(*data))
    assert seconds_of(lambda: trained.setOptimizer(changed(optimizer))) == pytest.approx(by_hand(16), abs=TIGHT)
    assert seconds_of(lambda: trained(*data)) == pytest.approx(plain, rel=1e-12)


def test_nothing_new_takes_no_time() -> None:
    trained, optimizer = model()
    assert seconds_of(lambda: trained.setOptimizer(changed(optimizer))) == 0  # not compiled
    trained.compile(*batch(6))
    assert seconds_of(lambda: trained.setOptimizer(changed(optimizer))) == 0  # loading brings it
    trained(*batch(6))
    assert seconds_of(lambda: trained.setOptimizer(optimizer)) == 0  # the same numbers
    assert seconds_of(lambda: trained.setOptimizer(changed(optimizer))) > 0
    trained.detachFromDevice()
    assert seconds_of(lambda: trained.setOptimizer(changed(optimizer))) == 0


COUNTS = [
    (lambda p: torch.optim.SGD(p, lr=0.1), 2, 0),  # scaledLearningRate0, weightDecayScaleFactor0
    (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 2, 0),  # rate, momentum
    (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, dampening=0.1), 4, 0),
    (lambda p: optim.SGD(p, lr=0.1), 2, 0),
    (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, loss_scaling=2.0), 4, 1),  # velocities scale with the loss
    (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True), 2, 0),
    (lambda p: torch.optim.Adam(p, lr=0.1), 1, 0),
    (lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01), 1, 0),
    (lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1), 2, 0),
    (lambda p: optim.AdamW(p, lr=0.1), 1, 0),
    (lambda p: optim.AdamW(p, lr=0.1, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1, loss_scaling=2.0), 6, 1),
    (lambda p: optim.LAMB(p, lr=0.1, loss_scaling=2.0, max_weight_norm=1.0), 3, 1),
    (lambda p: optim.RMSprop(p, lr=0.1, alpha=0.9, momentum=0.9), 3, 0),
    (lambda p: torch.optim.RMSprop(p, lr=0.1), 1, 0),  # a momentum and weight decay of 0 and an eps of 1e-8 stay
    (lambda p: torch.optim.RMSprop(p, lr=0.1, weight_decay=0.1, eps=1e-6, momentum=0.9), 4, 0),
    (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), 3, 0),  # rate, momentum in both scalars of it
    (lambda p: LARS(p, lr=0.1, weight_decay=0.1), 5, 0),
]  # fmt: skip


@pytest.mark.parametrize(("optimizer", "each", "loss"), COUNTS)
def test_each_parameter_has_its_scalars(optimizer: Any, each: int, loss: int) -> None:
    """A loss scaling that can change has one more, at the loss."""
    trained, _ = model(optimizer)
    trained.compile(*batch(6))
    expected = tuple(each * count + loss * (ipu == 2) for ipu, count in enumerate(PARAMETERS))
    assert trained.compiled_model.executable.options.new_values == NewValues("OptimizerFromHost", expected)


def test_a_number_that_is_marked_constant_has_no_stream() -> None:
    def made(parameters: Any) -> Any:
        found = optim.AdamW(parameters, lr=0.1, weight_decay=0.1)
        found.variable_attrs.markAsConstant("weight_decay")
        return found

    trained, _ = model(made)
    trained.compile(*batch(6))
    assert trained.compiled_model.executable.options.new_values.streams == 8


def test_replicas_share_a_callback_and_processes_do_not_wait() -> None:
    found = []
    for replicas, processes in ((1, 1), (2, 1), (2, 2)):
        trained, _ = model(replicas=replicas, processes=processes)
        trained.compile(*batch(6 * replicas))
        found.append(trained.compiled_model.executable.value_run_seconds)
    assert found[0] == pytest.approx(found[1], abs=1e-7)
    assert found[2] == pytest.approx(found[1], abs=1e-7)


def test_the_trace_of_a_call_begins_with_it() -> None:
    trained, optimizer = model()
    for _ in range(3):
        trained(*batch(6))
        trained.setOptimizer(changed(optimizer))
    executable = trained.compiled_model.executable
    plain, trace = executable.trace, executable.as_called().trace
    cycles = executable.value_run_cycles
    assert int(trace.columns("runs")["dur"][0]) == int(plain.columns("runs")["dur"][0]) + cycles
    events = trace.table("host_events")
    assert events["label"].tolist()[:2] == ["OptimizerFromHost", "session.run"]
    assert (events["start"].tolist()[:2], events["dur"].tolist()[0]) == ([0, cycles], cycles)
    later = (plain.table("host_events")["start"] + cycles).tolist()[1:]
    assert events["start"].tolist()[2:] == later
    rows = trace.expand().query("start == 0")
    assert (set(rows["kind"]), set(rows["dur"])) == ({"host_run"}, {cycles})
    names = trace.table("programs").set_index("program_id")["name"]
    assert {names[number] for number in rows["program_id"]} == {"OptimizerFromHost"}
    assert check(trace) == []
    path = path_cycles(trace, critical_path(trace))
    assert path[path["op"] == "OptimizerFromHost"]["cycles"].tolist() == [cycles]


def test_a_report_is_of_a_call_as_most_were() -> None:
    trained, optimizer = model()
    executable = None
    for call in range(4):
        trained(*batch(6))
        executable = trained.compiled_model.executable
        if call == 2:
            trained.setOptimizer(changed(optimizer))
    assert executable is not None
    assert executable.as_called() is executable
