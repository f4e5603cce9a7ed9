"""``popart`` as far as it is here: exceptions, devices, enumerations, and a reason for the rest."""

import warnings

import pytest

from ipuperf import popart, popxl
from ipuperf.ir import IrError
from ipuperf.popxl import ops
from ipuperf.runtime.effects import WithoutEffectWarning
from ipuperf.runtime.settings import RunSettings, use_settings


def test_the_exception_is_that_of_programs() -> None:
    assert popart.popart_exception is IrError
    ir = popxl.Ir()
    with ir.main_graph, pytest.raises(popart.popart_exception):
        ops.concat([popxl.variable([[1.0]]), popxl.variable([1.0])])


@pytest.mark.parametrize("name", ["Builder", "TrainingSession", "InferenceSession", "Patterns", "DataFlow"])
def test_the_rest_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"popart\.{name} is not here: .*supported: "):
        getattr(popart, name)


@pytest.mark.parametrize("name", popart.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(popart, name) is not None


def test_numbers_of_enumerations_are_those_that_poptorch_takes() -> None:
    assert int(popart.RecomputationType.RecomputeAll) == 4
    assert int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized) == 3
    assert int(popart.SyntheticDataMode.RandomNormal) == 2
    assert int(popart.BatchSerializationBatchSchedule.Isomorphic) == 1


def test_devices_are_those_of_the_machine() -> None:
    manager = popart.DeviceManager()
    with use_settings(RunSettings("pod4")):
        assert manager.acquireAvailableDevice(4).isAttached
        assert manager.acquireAvailableDevice(2).numIpus == 2
        assert manager.tryAcquireAvailableDevice(8) is None
        with pytest.raises(popart.popart_exception, match="need 8 IPUs, there are 4"):
            manager.acquireAvailableDevice(8)
    with pytest.raises(popart.popart_exception, match="a whole number of at least 1"):
        manager.acquireAvailableDevice(0)
    later = manager.acquireAvailableDevice(1, popart.DeviceConnectionType.OnDemand)
    assert not later.isAttached
    with later:
        assert later.isAttached
    assert not later.isAttached


def test_described_devices_say_what_they_do_not_take() -> None:
    manager = popart.DeviceManager()
    with warnings.catch_warnings():
        warnings.simplefilter("error", WithoutEffectWarning)
        assert manager.createOfflineIPUDevice({"numIPUs": "2"}).numIpus == 2
        with pytest.raises(WithoutEffectWarning, match="tilesPerIPU"):
            manager.createIpuModelDevice({"numIPUs": 1, "tilesPerIPU": 4})


def test_a_session_takes_a_device() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(2.0)
        ops.add_(x, x)
    with popxl.Session(ir, popart.DeviceManager().createCpuDevice()) as session:
        session.run()
        assert session.get_tensor_data(x) == 4.0


def test_the_helper_beside_the_vendors_tests_runs_them_on_the_simulated_machine() -> None:
    from ipuperf.popart import test_util as helper

    @helper.requires_ipu
    def needs(numIPUs: int) -> int:
        return numIPUs

    @helper.requires_ipu_model
    def runs(value: int) -> int:
        return value

    with use_settings(RunSettings("pod4")):
        assert runs(3) == 3
        assert needs(numIPUs=4) == 4
        with helper.create_test_device(2) as device:
            assert (device.numIpus, device.isAttached) == (2, True)
        assert helper.ipu_available(4)
        assert not helper.ipu_available(8)
        with pytest.raises(IrError, match="8"):
            needs(numIPUs=8)
