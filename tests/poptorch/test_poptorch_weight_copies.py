"""When weights go between host and IPUs, and that it takes simulated time; how much: test_popxl_weight_copies.py."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from executorcases import Network, adamw, batch, options  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.machine import load_machine  # noqa: E402
from ipuperf.runtime.clock import SimulatedClock, activate  # noqa: E402
from ipuperf.runtime.settings import RunSettings, use_settings  # noqa: E402

HOST = load_machine("pod16").host


def seconds_of(call: Callable[[], Any]) -> float:
    clock = SimulatedClock()
    with activate(clock):
        call()
    return clock.now


@pytest.fixture(autouse=True)
def on_a_pod() -> Any:
    with use_settings(RunSettings(machine=load_machine("pod16"))):
        yield


def trained(**changes: Any) -> tuple[Any, Any, Any]:
    module, given = Network(), options(**changes)
    optimizer = adamw(module.parameters())
    return poptorch.trainingModel(module, given, optimizer), module, optimizer


def streams(model: Any, direction: str) -> int:
    """Streams of a copy, of the difference that another callback makes."""
    executable = model.compiled_model.executable
    seconds = seconds_of(lambda: model.compiled_model.copied_weights(direction))
    fixed = HOST.run_seconds + 2 * (HOST.sync_seconds + HOST.answer_seconds) + HOST.stream_latency_seconds
    assert executable.machine.host == HOST
    return round((seconds - fixed) / (2 * HOST.callback_seconds))


def test_all_weights_and_states_are_copied_and_no_numbers() -> None:
    """Eight parameters with two moments and a count of steps each."""
    model, _, _ = trained()
    model(*batch(6))
    assert (streams(model, "d2h"), streams(model, "h2d")) == (4 * 8, 4 * 8)


def test_copies_that_are_asked_for_take_time() -> None:
    model, module, optimizer = trained()
    data = batch(6)
    assert seconds_of(lambda: model.compile(*data)) == 0
    model(*data)
    plain = seconds_of(lambda: model(*data))
    own = seconds_of(model.copyWeightsToHost)
    assert own > HOST.run_seconds
    assert seconds_of(model.copyWeightsToHost) == pytest.approx(own)  # upstream copies whenever it is asked
    assert seconds_of(model.copyWeightsToHostIfNeeded) == 0
    assert seconds_of(lambda: [parameter.sum() for parameter in module.parameters()]) == 0
    assert seconds_of(lambda: model(*data)) == pytest.approx(plain)
    assert seconds_of(lambda: [parameter.sum() for parameter in module.parameters()]) == pytest.approx(own)  # once
    assert seconds_of(optimizer.state_dict) == pytest.approx(own)
    assert seconds_of(optimizer.state_dict) == 0  # kept
    assert seconds_of(model.copyWeightsToDevice) == pytest.approx(own, rel=0.01)


def test_inference_after_training_fetches_and_loads() -> None:
    model, module, _ = trained()
    given = options()
    given.Training.gradientAccumulation(1)
    given.deviceIterations(6)
    inference = poptorch.inferenceModel(module, given)
    data = batch(6)
    model(*data)
    inference(*data)
    plain = seconds_of(lambda: inference(*data))
    to_host = seconds_of(model.copyWeightsToHost)
    to_device = seconds_of(inference.copyWeightsToDevice)
    model(*data)
    assert seconds_of(lambda: inference(*data)) == pytest.approx(plain + to_host + to_device)
    assert seconds_of(lambda: inference(*data)) == pytest.approx(plain)


def test_a_device_that_is_given_back_is_read_once_and_loaded_for_nothing() -> None:
    model, *_ = trained()
    data = batch(6)
    model(*data)
    model(*data)
    own = seconds_of(model.copyWeightsToHost)
    assert seconds_of(model.detachFromDevice) == pytest.approx(own)  # the optimiser's state
    assert seconds_of(model.attachToDevice) == 0
    assert seconds_of(model.copyWeightsToHost) == 0  # nothing has run there yet


def test_synthetic_data_takes_no_copies() -> None:
    given = options()
    given.enableSyntheticData(True)
    module = Network()
    model = poptorch.trainingModel(module, given, adamw(module.parameters()))
    model(*batch(6))
    assert seconds_of(model.copyWeightsToHost) == 0
