"""The option groups: ``Jit``, ``Precision``, ``Training``, ``Distributed`` and ``TensorLocations``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from ipuperf.base.near_names import instead_of
from ipuperf.frontends.options import APPLIED, Option

from ..enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from ..errors import require, require_bool, require_int, require_member
from .effects import LOCATION_EFFECTS, Ledger
from .popart import _PopartOptions
from .store import OptionsDict


class _JitOptions(OptionsDict):
    """``Options.Jit``: how upstream captures a model; here it is exported."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        super().__init__(trace_model=False)

    def traceModel(self, trace_model: bool) -> _JitOptions:
        """Choose between tracing and the dispatcher; True is without effect."""
        self.set(trace_model=trace_model)
        self._ledger.record("Jit.traceModel", trace_model)
        return self


class _PrecisionOptions(OptionsDict):
    """``Options.Precision``: number formats."""

    _shown_members = ("_popart_options",)

    def __init__(self, popart_options: _PopartOptions, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        self._popart_options = popart_options
        super().__init__(autocast_enabled=True, half_float_casting=HalfFloatCastingBehavior.Default)

    def autocastEnabled(self, autocast_enabled: bool) -> _PrecisionOptions:
        """Upstream: whether ``poptorch.autocast`` regions are cast. There are none here (``torch.autocast`` works)."""
        if not isinstance(autocast_enabled, bool):
            raise ValueError("autocastEnabled must be set to either True or False")
        self.set(autocast_enabled=autocast_enabled)
        self._ledger.record("Precision.autocastEnabled", autocast_enabled)
        return self

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> _PrecisionOptions:
        """Rule for ops with half and float operands; ``FloatDowncastToHalf`` is not supported."""
        if not isinstance(half_float_casting, HalfFloatCastingBehavior):
            raise ValueError("halfFloatCasting must be set to a member of poptorch.HalfFloatCastingBehavior")
        self._ledger.record("Precision.halfFloatCasting", half_float_casting)
        self.set(half_float_casting=half_float_casting)
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> _PrecisionOptions:
        """Upstream: running statistics of norms in float32 whatever the input."""
        if not isinstance(value, bool):
            raise ValueError("runningStatisticsAlwaysFloat needs to be set to a bool")
        self._ledger.record("Precision.runningStatisticsAlwaysFloat", value)
        self.createOrSet(running_statistics_always_float=value)
        return self

    def enableFloatingPointExceptions(self, enabled: bool) -> _PrecisionOptions:
        """Stop with an ``Error`` at the first op that makes NaN or infinity of numbers."""
        require(isinstance(enabled, bool), "enableFloatingPointExceptions needs to be set to a bool")
        self._ledger.record("Precision.enableFloatingPointExceptions", enabled)
        self._popart_options.store("enableFloatingPointChecks", enabled)
        return self

    def enableStochasticRounding(self, enabled: bool) -> _PrecisionOptions:
        """Upstream: round to float16 at random. Without effect: rounding is to the nearest value."""
        require_bool("enableStochasticRounding", enabled)
        self._ledger.record("Precision.enableStochasticRounding", enabled)
        self._popart_options.store("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> _PrecisionOptions:
        """Type of the partial sums of matrix products and convolutions: ``torch.float`` or ``torch.half``."""
        if dtype not in (torch.float32, torch.float16):
            raise ValueError(f"parameter to setPartialsType should be either torch.float or torch.half, got {dtype!r}")
        self._ledger.record("Precision.setPartialsType", dtype)
        name = "float" if dtype == torch.float32 else "half"
        self._popart_options.store("partialsTypeMatMuls", name)
        self._popart_options.store("convolutionOptions", _joined(self._popart_options, partialsType=name))
        return self

    @property
    def partials_type(self) -> torch.dtype | None:
        """What :meth:`setPartialsType` was given; None if it was not called."""
        name = self._popart_options.options.get("partialsTypeMatMuls")
        return None if name is None else {"float": torch.float32, "half": torch.float16}[name]


class _TrainingOptions(OptionsDict):
    """``Options.Training``: gradient accumulation and the reduction of gradients."""

    _shown_members = ("_popart_options",)

    def __init__(self, popart_options: _PopartOptions, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        self._popart_options = popart_options
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> _TrainingOptions:
        """Micro-batches per weight update."""
        require_int("gradientAccumulation", gradient_accumulation, 1)
        self.set(gradient_accumulation=gradient_accumulation)
        self._ledger.record("Training.gradientAccumulation", gradient_accumulation)
        return self

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> _TrainingOptions:
        """``Mean`` (default) or ``Sum`` of the gradients of micro-batches and replicas."""
        if reduction_type not in (ReductionType.Mean, ReductionType.Sum) or not isinstance(
            reduction_type, ReductionType
        ):
            raise ValueError(
                "accumulationAndReplicationReductionType must be set to poptorch.ReductionType.Mean or "
                f"poptorch.ReductionType.Sum, got {reduction_type!r}"
            )
        self.set(accumulation_and_replication_reduction_type=reduction_type)
        self._ledger.record("Training.accumulationAndReplicationReductionType", reduction_type)
        return self

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> _TrainingOptions:
        """When a mean is divided by its count; anything but ``Post`` is without effect."""
        option = "setMeanAccumulationAndReplicationReductionStrategy"
        require_member(option, mean_reduction_strategy, MeanReductionStrategy)
        self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)
        self._ledger.record(f"Training.{option}", mean_reduction_strategy)
        return self

    def _divide_while_running(self, half: bool) -> None:
        """Upstream's choice with accumulators of float16: means are taken while gradients are accumulated. It is shown
        by the options and changes nothing that is computed here, as when a program sets it."""
        if half and self.accumulation_and_replication_reduction_type is ReductionType.Mean:
            self.set(meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Running)

    def setAutomaticLossScaling(self, enabled: bool) -> _TrainingOptions:
        """Let the loss scale follow the gradients, from the optimiser's ``loss_scaling`` on: halved where some are near
        the end of their type's range, else doubled (:mod:`ipuperf.pipelines.loss_scaling`)."""
        require_bool("setAutomaticLossScaling", enabled)
        self._ledger.record("Training.setAutomaticLossScaling", enabled)
        self._popart_options.store("automaticLossScalingSettings.enabled", enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> _TrainingOptions:
        """Upstream: spread convolutions over tiles. Without effect."""
        require_bool("setConvolutionDithering", enabled)
        self._ledger.record("Training.setConvolutionDithering", enabled)
        self._popart_options.store("convolutionOptions", _joined(self._popart_options, enableConvDithering=enabled))
        return self


class _DistributedOptions(OptionsDict):
    """``Options.Distributed``: several host processes. A ``DataLoader`` gives each its part of the data set; a model
    runs in one process only, which simulates all replicas."""

    _shown_members = ("_gcd_mappings",)

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        self._gcd_mappings: dict[int, int] = {}
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> _DistributedOptions:
        """Use one process."""
        self.set(num_distributed_processes=1, distributed_process_id=0)
        return self

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> _DistributedOptions:
        """Read the number of processes and the id of this one from the environment."""
        numbers: list[int] = []
        for name, otherwise in ((var_process_id, "0"), (var_num_processes, "1")):
            require(isinstance(name, str), f"setEnvVarNames: {name!r} given, expected the name of a variable")
            text = os.environ.get(name, otherwise)
            require(text.isdecimal(), f"setEnvVarNames: {name} is {text!r} in the environment, expected a whole number")
            numbers.append(int(text))
        return self.configureProcessId(*numbers)

    def configureProcessId(self, process_id: int, num_processes: int) -> _DistributedOptions:
        """This is process ``process_id`` (from 0) of ``num_processes``."""
        require_int("processId", process_id, 0)
        require_int("numProcesses", num_processes, 1)
        require(process_id < num_processes, f"processId: {process_id} given, expected less than {num_processes}")
        self._ledger.record("Distributed.configureProcessId", (process_id, num_processes))
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        """Id of this process, from 0."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return int(self.num_distributed_processes)


def _joined(popart: _PopartOptions, **additions: Any) -> dict[str, Any]:
    """The convolution options so far with ``additions``."""
    return {**popart.options.get("convolutionOptions", {}), **additions}


#: PopART's default: tensors with fewer elements stay on chip (``popart:willow/include/popart/sessionoptions.hpp``).
MIN_ELEMENTS_OFF_CHIP = 2

#: PopART's default: tensors with fewer elements are not sharded (same file).
MIN_ELEMENTS_SHARDING = 8192


class TensorLocationSettings(OptionsDict):
    """Where the tensors of one kind live; each setter returns the settings themselves."""

    def minElementsForOffChip(self, min_elements: int) -> TensorLocationSettings:
        """Tensors with fewer elements stay on chip."""
        require_int("minElementsForOffChip", min_elements, 0)
        self.createOrSet(minElementsForOffChip=min_elements)
        return self

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> TensorLocationSettings:
        """Tensors with fewer elements are not sharded over replicas."""
        require_int("minElementsForReplicatedTensorSharding", min_elements, 0)
        self.createOrSet(minElementsForReplicatedTensorSharding=min_elements)
        return self

    def useOnChipStorage(self, use: bool | None = True) -> TensorLocationSettings:
        """In-Processor-Memory (True), Streaming Memory (False), or the default (None)."""
        if use is None:
            self.deleteIfExists("onChip")
        else:
            require_bool("useOnChipStorage", use)
            self.createOrSet(onChip=int(use))
        return self

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        """Each replica holds one shard."""
        require_bool("useReplicatedTensorSharding", use)
        self.createOrSet(useReplicatedTensorSharding=int(use))
        return self

    def useIOTilesToLoad(self, use: bool = True) -> TensorLocationSettings:
        """Load from Streaming Memory through I/O tiles; without effect."""
        require_bool("useIOTilesToLoad", use)
        self.createOrSet(useIOTilesToLoad=int(use))
        return self

    def useIOTilesToStore(self, use: bool = True) -> TensorLocationSettings:
        """Store to Streaming Memory through I/O tiles; without effect."""
        require_bool("useIOTilesToStore", use)
        self.createOrSet(useIOTilesToStore=int(use))
        return self


@dataclass(frozen=True)
class TensorLocation:
    """The location of one kind of tensor, complete with PopART's defaults."""

    on_chip: bool
    sharded: bool = False
    min_elements_off_chip: int = MIN_ELEMENTS_OFF_CHIP
    min_elements_sharding: int = MIN_ELEMENTS_SHARDING


class _TensorLocationOptions(OptionsDict):
    """``Options.TensorLocations``."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        super().__init__()

    def numIOTiles(self, num_tiles: int) -> _TensorLocationOptions:
        """Tiles of each IPU set aside for I/O: an even number from 32 to 192. The others compute; what is marked with
        ``poptorch.set_overlap_for_input`` and ``set_overlap_for_output`` is loaded and stored on the I/O tiles."""
        good = isinstance(num_tiles, int) and 32 <= num_tiles <= 192 and num_tiles % 2 == 0
        require(good, f"numIOTiles must be an even number between 32 and 192, got {num_tiles!r}.")
        self._ledger.record("TensorLocations.numIOTiles", num_tiles)
        self.createOrSet(numIOTiles=num_tiles)
        return self

    @property
    def num_io_tiles(self) -> int:
        """What :meth:`numIOTiles` was given, 0 if nothing."""
        return int(self._values.get("numIOTiles", 0))

    def setActivationLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Where stashed activations live."""
        return self._set("activation", "setActivationLocation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Where weights live."""
        return self._set("weight", "setWeightLocation", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Where the optimiser's state lives."""
        return self._set("optimizer", "setOptimizerLocation", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Where gradient accumulators live."""
        return self._set("accumulator", "setAccumulatorLocation", location)

    def location(self, kind: str, on_chip_by_default: bool = True) -> TensorLocation:
        """Location of ``activation``, ``weight``, ``optimizer`` or ``accumulator`` tensors.

        Phased executions pass ``on_chip_by_default=False``: there PopTorch's default is Streaming Memory.
        """
        kinds = ("activation", "weight", "optimizer", "accumulator")
        require(kind in kinds, f"location: kind {kind!r}{instead_of(kind, kinds)}")
        settings: dict[str, Any] = self._values.get(f"location_{kind}", {})
        return TensorLocation(
            on_chip=bool(settings.get("onChip", on_chip_by_default)),
            sharded=bool(settings.get("useReplicatedTensorSharding", False)),
            min_elements_off_chip=settings.get("minElementsForOffChip", MIN_ELEMENTS_OFF_CHIP),
            min_elements_sharding=settings.get("minElementsForReplicatedTensorSharding", MIN_ELEMENTS_SHARDING),
        )

    def _set(self, kind: str, option: str, location: TensorLocationSettings) -> _TensorLocationOptions:
        require(
            isinstance(location, TensorLocationSettings),
            f"{option}: {type(location).__name__} given, expected poptorch.TensorLocationSettings",
        )
        self.createOrSet(**{f"location_{kind}": location.toDict()})
        self._ledger.record(f"TensorLocations.{option}", location)
        for member, value in location.toDict().items():
            self._ledger.record(f"TensorLocations.{option} {member}", value, _effect_of(kind, member))
        return self


def _effect_of(kind: str, member: str) -> Option:
    if kind == "optimizer" and member == "useReplicatedTensorSharding":
        return Option(APPLIED)
    return LOCATION_EFFECTS[member]
