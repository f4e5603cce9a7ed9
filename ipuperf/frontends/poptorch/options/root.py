"""``poptorch.Options``: everything about how a model is compiled and run."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from ..errors import require, require_bool, require_int, require_member, require_path, require_texts
from ..log import logger
from . import strategies
from .effects import Ledger
from .from_file import load_environment, load_options
from .groups import (
    TensorLocationSettings,
    _DistributedOptions,
    _JitOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)
from .popart import _PopartOptions
from .store import OptionsDict
from .strategies import ExecutionStrategy, PipelinedExecution

_GROUPS = ("Distributed", "Jit", "Precision", "TensorLocations", "Training", "_Popart")
_FILE_CLASSES = {
    "Stage": strategies.Stage,
    "Phase": strategies.Phase,
    "PipelinedExecution": strategies.PipelinedExecution,
    "ShardedExecution": strategies.ShardedExecution,
    "ParallelPhasedExecution": strategies.ParallelPhasedExecution,
    "SerialPhasedExecution": strategies.SerialPhasedExecution,
    "TensorLocationSettings": TensorLocationSettings,
}


class ReadOptions(OptionsDict):
    """What the executor and the data loader read of options."""

    _ledger: Ledger
    _popart: _PopartOptions
    _jit: _JitOptions
    _precision: _PrecisionOptions
    _training: _TrainingOptions
    _distributed: _DistributedOptions
    _tensor_locations: _TensorLocationOptions
    _execution_strategy: ExecutionStrategy
    _show_compilation_progress_bar: bool
    _updatable_named_buffers: tuple[str, ...]

    @property
    def Training(self) -> _TrainingOptions:
        """Options of training."""
        return self._training

    @property
    def Precision(self) -> _PrecisionOptions:
        """Options of number formats."""
        return self._precision

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Options of where tensors live."""
        return self._tensor_locations

    @property
    def Distributed(self) -> _DistributedOptions:
        """Options of several host processes."""
        return self._distributed

    @property
    def Jit(self) -> _JitOptions:
        """Options of how the model is captured."""
        return self._jit

    @property
    def _Popart(self) -> _PopartOptions:
        """Keys of PopART's session options."""
        return self._popart

    @property
    def cache_dir(self) -> str | None:
        """Folder of kept exports and lowered programs, None for none."""
        return self._popart.options.get("cachePath") if self._popart.options.get("enableEngineCaching") else None

    @property
    def execution_strategy(self) -> ExecutionStrategy:
        """The strategy set, else ``PipelinedExecution(AutoStage.SameAsIpu)``."""
        return self._execution_strategy

    @property
    def random_seed(self) -> int | None:
        """The seed set, or None."""
        return self._values.get("random_seed")

    @property
    def input_group_size(self) -> int:
        """Replicas that get the same input."""
        return int(self._values.get("input_group_size", 1))

    @property
    def input_group_type(self) -> CommGroupType:
        """How those replicas are chosen."""
        return CommGroupType(self._values.get("input_group_type", CommGroupType.NoGrouping))

    @property
    def model_name(self) -> str | None:
        """The name set, or None."""
        return self._values.get("model_name")

    @property
    def profiling_dir(self) -> str | None:
        """Folder for reports, from :meth:`enableProfiling` or ``autoReport.all`` among the engine options."""
        engine = self._popart.engine_options
        enabled = str(engine.get("autoReport.all", "false")).lower() == "true"
        return engine.get("autoReport.directory", ".") if enabled else None

    @property
    def show_compilation_progress_bar(self) -> bool:
        """Whether to show a progress bar."""
        return self._show_compilation_progress_bar

    @property
    def updatable_named_buffers(self) -> tuple[str, ...]:
        """Names of buffers that may be replaced."""
        return self._updatable_named_buffers

    @property
    def samples_factor(self) -> int:
        """Micro-batches in one call: ``device_iterations * replication_factor / input_group_size *
        gradient_accumulation``. ``AssertionError`` if the groups do not divide the replicas."""
        groups, remainder = divmod(self.replication_factor, self.input_group_size)
        require(
            remainder == 0,
            f"inputReplicaGrouping: groups of {self.input_group_size} do not divide {self.replication_factor} replicas",
        )
        return int(self.device_iterations * groups * self.Training.gradient_accumulation)

    def resolved_output_mode(self, training: bool) -> OutputMode:
        """The output mode, with ``Default`` replaced: ``Final`` for training, ``All`` for inference."""
        mode = OutputMode(self.output_mode)
        return mode if mode is not OutputMode.Default else (OutputMode.Final if training else OutputMode.All)

    def effects(self) -> list[str]:
        """One sentence for each option that was set and is without effect."""
        return self._ledger.notes()


class Options(ReadOptions):
    """Options of a model. Every setter returns the options; the values set are readable as attributes:

    ``replication_factor``, ``broadcast_buffers``, ``device_iterations``, ``log_dir``, ``auto_round_num_ipus``,
    ``anchored_tensors``, ``output_mode``, ``output_return_period``, ``connection_type``, ``sync_pattern``,
    ``available_memory_proportion`` (enumerations as plain ints, as upstream), and the properties below.
    New options begin with what the environment variable ``POPTORCH_DEFAULT_OPTIONS`` says
    (:func:`.from_file.load_environment`). What an option does here is said in :data:`.effects.EFFECTS`; :meth:`effects`
    tells what was set in vain.
    """

    def __init__(self) -> None:
        self._ledger = ledger = Ledger()
        self._popart = _PopartOptions(ledger)
        self._jit = _JitOptions(ledger)
        self._precision = _PrecisionOptions(self._popart, ledger)
        self._training = _TrainingOptions(self._popart, ledger)
        self._distributed = _DistributedOptions(ledger)
        self._tensor_locations = _TensorLocationOptions(ledger)
        self._execution_strategy: ExecutionStrategy = PipelinedExecution()
        self._show_compilation_progress_bar = True
        self._source_location_excludes: list[str] = []
        self._updatable_named_buffers: tuple[str, ...] = ()
        self._host_processes = 1
        self._norm_replicas = 1  # PopTorch has no such option: for programs of TensorFlow that are written down for it
        super().__init__(
            replication_factor=1,
            broadcast_buffers=True,
            device_iterations=1,
            log_dir=".",
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=OutputMode.Default.value,
            output_return_period=1,
            connection_type=ConnectionType.Always.value,
            sync_pattern=SyncPattern.Full.value,
            available_memory_proportion={},
        )
        if os.environ.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(os.environ["POPTORCH_CACHE_DIR"])
        load_environment(self, _FILE_CLASSES)

    # -- applied -----------------------------------------------------------------------------------------------------

    def deviceIterations(self, device_iterations: int) -> Options:
        """Iterations (in training: weight updates) per call of the model."""
        require_int("deviceIterations", device_iterations, 1)
        return self._put("deviceIterations", device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Options:
        """Number of replicas of the model."""
        require_int("replicationFactor", replication_factor, 1)
        return self._put("replicationFactor", replication_factor=replication_factor)

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> Options:
        """Replicas of a group get the same input: ``Consecutive`` or ``Orthogonal`` groups of ``input_group_size``."""
        require_int("inputReplicaGrouping", input_group_size, 1)
        allowed = (CommGroupType.Consecutive, CommGroupType.Orthogonal, CommGroupType.NoGrouping)
        require(
            isinstance(input_group_type, CommGroupType) and input_group_type in allowed,
            f"inputReplicaGrouping: {input_group_type!r} given, expected Consecutive, Orthogonal or NoGrouping",
        )
        self.checkIsFrozen()
        size = 1 if input_group_type is CommGroupType.NoGrouping else input_group_size
        self._ledger.record("inputReplicaGrouping", (input_group_size, input_group_type))
        self.createOrSet(input_group_size=size, input_group_type=input_group_type.value)
        return self

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Options:
        """Which micro-batches' outputs come back; ``EveryN`` needs ``output_return_period``."""
        require_member("outputMode", output_mode, OutputMode)
        period = _return_period(output_mode, output_return_period)
        self.set(output_mode=output_mode.value, output_return_period=period)
        self._ledger.record("outputMode", output_mode)
        return self

    def defaultOutputMode(self) -> bool:
        """Whether the output mode is still ``Default``."""
        return bool(self.output_mode == OutputMode.Default)

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> Options:
        """Keep the tensor ``long_name`` for ``getAnchoredTensor(short_name)``; None: the model's output mode."""
        require(
            isinstance(short_name, str) and isinstance(long_name, str),
            f"anchorTensor: names {short_name!r}, {long_name!r} given, expected strings",
        )
        if output_mode is not None:
            require_member("anchorTensor", output_mode, OutputMode)
        if output_return_period is not None:
            require_int("anchorTensor: output_return_period", output_return_period, 1)
        self.checkIsFrozen()
        period = 1 if output_mode != OutputMode.EveryN else _return_period(OutputMode.EveryN, output_return_period)
        self._ledger.record("anchorTensor", (short_name, long_name))
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]
        return self

    def setExecutionStrategy(self, strategy: ExecutionStrategy) -> Options:
        """How the blocks of the model are spread over IPUs and time."""
        require(
            isinstance(strategy, ExecutionStrategy),
            f"setExecutionStrategy: {type(strategy).__name__} given, expected poptorch.PipelinedExecution, "
            "ShardedExecution, ParallelPhasedExecution or SerialPhasedExecution",
        )
        self._execution_strategy = strategy
        self._ledger.record("setExecutionStrategy", strategy)
        return self

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Options:
        """Round the number of IPUs up to a power of two (True) or refuse other numbers (False)."""
        require_bool("autoRoundNumIPUs", auto_round_num_ipus)
        return self._put("autoRoundNumIPUs", auto_round_num_ipus=auto_round_num_ipus)

    def setAvailableMemoryProportion(self, available_memory_proportion: Mapping[str, float]) -> Options:
        """Temporary memory of products and convolutions per IPU, as ``{"IPU0": 0.5}``."""
        require(
            isinstance(available_memory_proportion, Mapping),
            f"setAvailableMemoryProportion: {available_memory_proportion!r} given, expected a dictionary",
        )
        shares: dict[int, float] = {}
        for key, share in available_memory_proportion.items():
            require(
                isinstance(key, str) and key.startswith("IPU") and key[3:].isdigit(),
                f"setAvailableMemoryProportion: key {key!r}; keys name an IPU by its number: {{'IPU0': 0.5}}",
            )
            number = isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1
            require(number, f"setAvailableMemoryProportion: {share!r} given for {key}, expected a number from 0 to 1")
            shares[int(key[3:])] = share
        return self._put("setAvailableMemoryProportion", available_memory_proportion=shares)

    def syncPattern(self, sync_pattern: SyncPattern) -> Options:
        """Which IPUs wait for each other at host I/O."""
        require_member("syncPattern", sync_pattern, SyncPattern)
        self.set(sync_pattern=sync_pattern.value)
        self._ledger.record("syncPattern", sync_pattern)
        return self

    def randomSeed(self, random_seed: int) -> Options:
        """Seed of the random numbers on the IPUs; also seeds PyTorch, as upstream."""
        require_int("randomSeed", random_seed, -(2**63))
        self.checkIsFrozen()
        torch.manual_seed(random_seed)
        return self._put("randomSeed", random_seed=random_seed)

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Options:
        """False: each replica keeps buffers of its own."""
        require_bool("broadcastBuffers", broadcast_buffers)
        return self._put("broadcastBuffers", broadcast_buffers=broadcast_buffers)

    def updatableNamedBuffers(self, buffers: Sequence[str]) -> Options:
        """Buffers that ``copyNamedBuffersToDevice`` may replace while the model runs."""
        require_texts("updatableNamedBuffers", buffers)
        self._updatable_named_buffers = tuple(buffers)
        self._ledger.record("updatableNamedBuffers", self._updatable_named_buffers)
        return self

    def logDir(self, log_dir: str) -> Options:
        """Folder of log files."""
        return self._put("logDir", log_dir=log_dir)

    def modelName(self, name: str) -> Options:
        """Name of the model in reports."""
        require(isinstance(name, str), f"modelName: {name!r} given, expected a string")
        return self._put("modelName", model_name=name)

    def enableProfiling(self, profile_dir: str | None = None) -> Options:
        """Write reports of each model into ``profile_dir`` (default: the current folder)."""
        if profile_dir is not None:
            require_path("enableProfiling", profile_dir)
        directory = str(profile_dir or ".")
        self._ledger.record("enableProfiling", directory)
        known = self._popart.engine_options
        report = {"debug.allowOutOfMemory": "true", "autoReport.directory": directory, "autoReport.all": "true"}
        self._popart.setEngineOptions({**known, **report})
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Options:
        """Show a progress bar while a model is compiled."""
        require_bool("showCompilationProgressBar", show)
        self._show_compilation_progress_bar = show
        self._ledger.record("showCompilationProgressBar", show)
        return self

    def loadFromFile(self, filepath: str | Path) -> Options:
        """Set the options listed in a file, one per line, such as ``deviceIterations(10)``."""
        require_path("loadFromFile", filepath)
        load_options(self, filepath, _FILE_CLASSES)
        return self

    # -- without effect ----------------------------------------------------------------------------------------------

    def connectionType(self, connection_type: ConnectionType) -> Options:
        """When to attach to a device; a model that never does can be compiled, but not called."""
        require_member("connectionType", connection_type, ConnectionType)
        self.set(connection_type=connection_type.value)
        self._ledger.record("connectionType", connection_type)
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Options:
        """Compile for an absent device: the model can then not be called (``ConnectionType.Never``)."""
        require_int("useOfflineIpuTarget", ipu_version, 1)
        self.set(connection_type=ConnectionType.Never.value)
        return self._put("useOfflineIpuTarget", ipu_version=ipu_version)

    def useIpuModel(self, use_model: bool) -> Options:
        """Poplar's IPU model instead of hardware. Without effect: the simulated machine is used anyway."""
        require_bool("useIpuModel", use_model)
        return self._put("useIpuModel", use_model=use_model)

    def useIpuId(self, ipu_id: int) -> Options:
        """Choose a device. Without effect."""
        require_int("useIpuId", ipu_id, 0)
        return self._put("useIpuId", ipu_id=ipu_id)

    def enableExecutableCaching(self, path: str | None) -> Options:
        """Keep exports of models and lowered programs in a folder, from which later compilations, in other processes
        too, begin; None: nowhere. Default: what the environment variable ``POPTORCH_CACHE_DIR`` says."""
        require(
            path is None or isinstance(path, str), f"enableExecutableCaching: {path!r} given, expected a path or None"
        )
        where = {} if path is None else {"cachePath": path}
        return self._put_popart("enableExecutableCaching", path, enableEngineCaching=path is not None, **where)

    def enableStableNorm(self, enabled: bool) -> Options:
        """The slower, more exact norms. Without effect: norms are exact anyway."""
        require_bool("enableStableNorm", enabled)
        return self._put_popart("enableStableNorm", enabled, enableStableNorm=enabled)

    def enableSyntheticData(self, enabled: bool) -> Options:
        """No host I/O: inputs are random numbers that lie on the IPUs, results are zeros, weights stay there.

        The inputs are normally distributed (PopART's ``RandomNormal``), integers are zeros; they are the same in each
        micro-batch. A call still has the fixed cost of a run of the host.
        """
        require_bool("enableSyntheticData", enabled)
        return self._put_popart("enableSyntheticData", enabled, syntheticDataMode=2 if enabled else 0)

    def logCycleCount(self, log_cycle_count: bool) -> Options:
        """Log the cycles of each run. Without effect: ``cycleCount()`` tells them."""
        require_bool("logCycleCount", log_cycle_count)
        return self._put_popart("logCycleCount", log_cycle_count, instrumentWithHardwareCycleCounter=log_cycle_count)

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Options:
        """Be silent about unknown attributes of optimisers; they are never looked at."""
        require_bool("relaxOptimizerAttributesChecks", relax)
        self.checkIsFrozen()
        self._ledger.record("relaxOptimizerAttributesChecks", relax)
        return self

    def sourceLocationExcludes(self, excludes: Sequence[str]) -> Options:
        """Frames to leave out when PopART IR is printed. Without effect."""
        require_texts("sourceLocationExcludes", excludes)
        self._source_location_excludes = list(excludes)
        self._ledger.record("sourceLocationExcludes", excludes)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Options:
        """More frames to leave out. Without effect."""
        require_texts("appendToLocationExcludes", excludes)
        self._source_location_excludes = [*self._source_location_excludes, *excludes]
        self._ledger.record("appendToLocationExcludes", excludes)
        return self

    def disableModuleNamescope(self) -> Options:
        """Shorter names of ops. Without effect."""
        self.checkIsFrozen()
        self._ledger.record("disableModuleNamescope", ())
        return self

    def maxRepeatLogs(self, max_lines: int | None = None) -> Options:
        """How often a message may repeat. Without effect."""
        require(max_lines is None or isinstance(max_lines, int), f"maxRepeatLogs: {max_lines!r} given, expected an int")
        self.checkIsFrozen()
        self._ledger.record("maxRepeatLogs", max_lines)
        return self

    # -- whole -------------------------------------------------------------------------------------------------------

    def clone(self) -> Options:
        """A deep copy that can be changed."""
        return copy.deepcopy(self)

    def toDict(self) -> dict[str, Any]:
        """All options but those of ``Jit`` and ``Precision`` in one dictionary."""
        groups = (self._training, self._distributed, self._tensor_locations)
        merged = {**self._execution_strategy.backendOptions(), **self._popart.toDict(), **self._values}
        for group in groups:
            merged.update(group.toDict())
        return copy.deepcopy(merged)

    def _freeze(self) -> None:
        super()._freeze()
        for group in _GROUPS:
            getattr(self, group)._freeze()

    def _put_popart(self, option: str, value: Any, **keys: Any) -> Options:
        """Set an option by keys of PopART's."""
        self._ledger.record(option, value)
        for key, content in keys.items():
            self._popart.store(key, content)
        return self

    def _put(self, option: str, **value: Any) -> Options:
        self.checkIsFrozen()
        self._ledger.record(option, next(iter(value.values())))
        self.createOrSet(**value)
        return self

    def __repr__(self) -> str:
        values = [f"{name}={value!r}" for name, value in self._values.items()]
        return f"Options({', '.join([*values, *(f'{name}={getattr(self, name)!r}' for name in _GROUPS)])})"


def _return_period(output_mode: OutputMode, period: int | None) -> int:
    if output_mode == OutputMode.EveryN:
        require(
            isinstance(period, int) and period > 0,
            f"OutputMode.EveryN: output_return_period is {period!r}, expected an int above 0",
        )
    elif period:
        logger.info("The output return period is without effect in %s", output_mode)
        return period
    return period or 1
