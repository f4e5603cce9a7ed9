"""Every session option with values of every kind, devices, enumerations and PopDist's questions: what each gives."""

from typing import Any

import pytest
from outcomes import outcome
from rows import Golden

from ipuperf import popart, popdist
from ipuperf.popart import engine_options, locations
from ipuperf.popart.session_options import ROWS as EFFECTS
from ipuperf.runtime.settings import RunSettings, use_settings

VALUES = """True False -1 0 1 2 3 0.5 None '' 'text' [] ['a'] {} {'a':1} {'a':'b'} {'availableMemoryProportion':'0.5'}
{'streamCallbacks.multiThreadMode':'all'} {'streamCallbacks.numWorkerThreads':'2'} {'debug.allowOutOfMemory':'true'}
popart.RecomputationType.Standard popart.VirtualGraphMode.Auto popart.SyntheticDataMode.Zeros
popart.MergeVarUpdateType.All popart.ReductionType.Mean popart.MeanReductionStrategy.Running
popart.SubgraphCopyingStrategy.JustInTime""".split()
NAMES = {"popart": popart, "popdist": popdist, "engine_options": engine_options, "locations": locations}


def kept(name: str, value: str) -> str:
    """What an option is after a value is given to it."""
    options = popart.SessionOptions()
    before = {each: repr(getattr(options, each)) for each in dir(options)}
    setattr(options, name, eval(value, NAMES))
    more = {each: repr(getattr(options, each)) for each in dir(options)} | {
        "replicas": str(options.getGlobalReplicationFactor()),
        "prefetch": str(options.prefetch_depth),
        "threads": str(options.callback_threads),
    }
    before |= {"replicas": "1", "prefetch": "1", "threads": "1"}
    return "; ".join(f"{each}={text}" for each, text in more.items() if before[each] != text) or "nothing"


def seen(name: str, value: str) -> str:
    """What comes of it, without the value itself."""
    text, printed = outcome(lambda: kept(name, value), str), repr(eval(value, NAMES))
    return text.replace(printed, "…") if len(printed) > 4 else text


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (popdist.TOTAL, popdist.LOCAL, popdist.IPUS, *popdist.INSTANCES, *popdist.INDEX)
    for name in ("POPXL_CACHE_DIR", "POPART_CACHE_DIR", *names):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", sorted(EFFECTS))
def test_what_every_session_option_does(name: str, golden: Golden) -> None:
    first = (name, "at first", repr(getattr(popart.SessionOptions(), name)))
    found = [(name, value, seen(name, value)) for value in VALUES]
    golden([" ".join(each) for each in (first, *found)])


CALLS = """
    popart.SessionOptions().noSuchOption
    popart.SessionOptions().enableOutlinin
    popart.SessionOptions().executionPhaseSettings
    popart.SessionOptions().engineOptions.setdefault('debug.allowOutOfMemory', 'true')
    popart.SessionOptions().engineOptions.setdefault('other')
    popart.SessionOptions().engineOptions.update(a='b')
    popart.SessionOptions().matmulOptions.update({'partialsType': 'half'}, availableMemoryProportion='0.1')
    popart.SessionOptions().accumulateOuterFragmentSettings
    popart.SessionOptions().replicatedCollectivesSettings
    popart.SessionOptions().weightTensorLocationSettings
    engine_options.callback_threads({})
    engine_options.callback_threads({'streamCallbacks.numWorkerThreads': '3'})
    engine_options.callback_threads({'streamCallbacks.multiThreadMode': 'dedicated'})
    engine_options.callback_threads({engine_options.MODE: 'single', engine_options.THREADS: '3'})
    engine_options.callback_threads({engine_options.MODE: 'collaborative', engine_options.THREADS: '3'})
    engine_options.callback_threads({engine_options.MODE: 'dedicated', engine_options.THREADS: 'auto'})
    engine_options.check_callback_option('streamCallbacks.numWorkerThreads', '-1')
    engine_options.check_callback_option('streamCallbacks.numWorkerThreads', '0')
    engine_options.check_callback_option('other', '-1')
    locations.TensorLocation()
    locations.TensorLocation(locations.TensorStorage.OffChip, locations.TileSet.IO)
    locations.TensorLocation(1)
    locations.TensorLocation(replicatedTensorSharding=True)
    popart.DeviceManager().acquireAvailableDevice()
    popart.DeviceManager().acquireAvailableDevice(4, popart.DeviceConnectionType.OnDemand)
    popart.DeviceManager().acquireAvailableDevice(5)
    popart.DeviceManager().acquireAvailableDevice(-1)
    popart.DeviceManager().acquireAvailableDevice('2')
    popart.DeviceManager().acquireAvailableDevice(1.5)
    popart.DeviceManager().tryAcquireAvailableDevice()
    popart.DeviceManager().tryAcquireAvailableDevice(5)
    popart.DeviceManager().tryAcquireAvailableDevice(0)
    popart.DeviceManager().createIpuModelDevice({})
    popart.DeviceManager().createIpuModelDevice({'numIPUs': 2, 'tilesPerIPU': 4, 'other': 1})
    popart.DeviceManager().createOfflineIPUDevice({'numIPUs': '0'})
    popart.DeviceManager().createOfflineIPUDevice({'numIPUs': 2})
    popart.DeviceManager().createCpuDevice()
    popart.DeviceManager().createCpuDevice().attach()
    popart.DeviceManager().createCpuDevice().tryAttachUntilTimeout()
    popart.DeviceManager().createCpuDevice().__enter__().isAttached
"""


def lines_of(text: str) -> list[str]:
    """A call on each line."""
    return [line.strip() for line in text.strip().splitlines()]


def test_what_calls_give(golden: Golden) -> None:
    with use_settings(RunSettings("pod4")):
        found = [(call, "", outcome(lambda call=call: eval(call, NAMES))) for call in lines_of(CALLS)]
    golden([" ".join(each) for each in found])


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "nothing": {},
    "total": {popdist.TOTAL: "8"},
    "local": {popdist.TOTAL: "8", popdist.LOCAL: "3"},
    "instances": {popdist.TOTAL: "8", popdist.INSTANCES[0]: "4", popdist.INSTANCES[1]: "5"},
    "mpi": {popdist.TOTAL: "8", popdist.INSTANCES[1]: "5", popdist.INDEX[1]: "0"},
    "second": {popdist.TOTAL: "8", popdist.INDEX[0]: "1"},
    "third": {popdist.TOTAL: "8", popdist.INDEX[1]: "2", popdist.INSTANCES[0]: "3"},
    "ipus": {popdist.TOTAL: "8", popdist.IPUS: "2"},
    "ipus alone": {popdist.IPUS: "2"},
    "wrong index": {popdist.INDEX[0]: "one"},
    "no ipus": {popdist.IPUS: "0"},
    "no replicas": {popdist.TOTAL: "0"},
    "empty": {popdist.TOTAL: "", popdist.INDEX[0]: ""},
}
QUESTIONS = """
    popdist.isPopdistEnvSet()
    popdist.init()
    popdist.getNumTotalReplicas()
    popdist.getNumLocalReplicas()
    popdist.getNumIpusPerReplica()
    popdist.getNumInstances()
    popdist.getInstanceIndex()
    popdist.getReplicaIndexOffset()
    popdist.getDeviceId()
    popdist.checkNumIpusPerReplica(1)
    popdist.checkNumIpusPerReplica(2)
    popdist.checkNumIpusPerReplica('2')
    popdist.execute_on_instances([0], max, 1, 2)
    popdist.execute_on_instances([1], max, 1, 2)
    popdist.execute_on_instances({0, 1}, dict, a=1)
    popdist.replicas_of_one_process('here')
    popdist.instances_stood_for()
    popdist_tensorflow.set_ipu_config(Config()).seen
    popdist_tensorflow.set_ipu_config(Config(), 2).seen
    popdist_tensorflow.set_ipu_config(Config(), configure_device=False).seen
    configured(popart.SessionOptions())
"""


class Config:
    """What PopDist asks of TensorFlow's configuration."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "seen":
            self.seen[name] = value
        super().__setattr__(name, value)

    def served_by(self, host_processes: int) -> None:
        self.seen["host_processes"] = host_processes


def configured(options: popart.SessionOptions) -> tuple[bool, int]:
    """What PopDist sets."""
    from ipuperf.popdist.popart import configureSessionOptions

    configureSessionOptions(options)
    return options.enableReplicatedGraphs, options.replicatedGraphCount


def test_what_popdist_answers(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipuperf.popdist import tensorflow as popdist_tensorflow

    names = {**NAMES, "Config": Config, "configured": configured, "popdist_tensorflow": popdist_tensorflow}
    found = []
    for environment, variables in ENVIRONMENTS.items():
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            for call in lines_of(QUESTIONS):
                found.append((f"popdist, {environment}", call, outcome(lambda call=call: eval(call, names))))
    golden([" ".join(each) for each in found])
