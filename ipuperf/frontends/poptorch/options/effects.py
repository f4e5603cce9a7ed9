"""What each option does here: one table, option -> applied | no effect | unsupported, and why.

The words are those of :mod:`ipuperf.runtime.effects`. Options are set long before they matter and may be set again, so
a :class:`Ledger` remembers which are set in vain, and the executor tells it when it compiles.
"""

from __future__ import annotations

from typing import Any

from ipuperf.frontends.popart.effects import SHARED
from ipuperf.frontends.popart.engine_options import CALLBACK_OPTIONS
from ipuperf.runtime.effects import APPLIED, NO_EFFECT, UNSUPPORTED, Effect, rows

from ..enums import ConnectionType, HalfFloatCastingBehavior, MeanReductionStrategy
from ..errors import UnsupportedError

_APPLIED = Effect(APPLIED)

#: The options by their names below ``poptorch.Options()``; those of ``_Popart.set`` are in :data:`POPART_EFFECTS`.
EFFECTS: dict[str, Effect] = {
    **rows(
        _APPLIED,
        """
        deviceIterations replicationFactor inputReplicaGrouping outputMode setExecutionStrategy autoRoundNumIPUs
        setAvailableMemoryProportion syncPattern randomSeed anchorTensor modelName enableProfiling
        updatableNamedBuffers showCompilationProgressBar enableExecutableCaching enableSyntheticData broadcastBuffers
        Training.gradientAccumulation Training.accumulationAndReplicationReductionType
        Training.setAutomaticLossScaling Precision.setPartialsType Precision.enableFloatingPointExceptions
        TensorLocations.setOptimizerLocation TensorLocations.setWeightLocation TensorLocations.setActivationLocation
        TensorLocations.setAccumulatorLocation TensorLocations.numIOTiles Distributed.configureProcessId
    """,
    ),
    "logDir": Effect(NO_EFFECT, "messages go to standard error, reports to enableProfiling()'s folder", (".",)),
    "connectionType": Effect(
        NO_EFFECT, "the simulated machine is always there", (ConnectionType.Always, ConnectionType.OnDemand)
    ),
    "useOfflineIpuTarget": Effect(NO_EFFECT, "the simulated machine is always there"),
    "useIpuModel": Effect(NO_EFFECT, "the machine is always the simulated one of `ipuperf run --machine`", (True,)),
    "useIpuId": Effect(NO_EFFECT, "a simulated machine has no device ids"),
    "enableStableNorm": SHARED["enableStableNorm"],
    "logCycleCount": Effect(NO_EFFECT, "the executor's cycleCount() tells the simulated cycles of each run", (False,)),
    "relaxOptimizerAttributesChecks": Effect(
        NO_EFFECT, "unknown attributes of an optimiser are not looked at", (True, False)
    ),
    "sourceLocationExcludes": Effect(NO_EFFECT, "there is no PopART IR to print"),
    "appendToLocationExcludes": Effect(NO_EFFECT, "there is no PopART IR to print"),
    "disableModuleNamescope": Effect(NO_EFFECT, "ops are named by the export"),
    "maxRepeatLogs": Effect(NO_EFFECT, "messages are not repeated"),
    "Jit.traceModel": Effect(NO_EFFECT, "models are exported with torch.export", (False,)),
    "Training.setMeanAccumulationAndReplicationReductionStrategy": Effect(
        NO_EFFECT,
        "gradients are summed and then divided; other orders differ in rounding only",
        (MeanReductionStrategy.Post,),
    ),
    "Training.setConvolutionDithering": Effect(NO_EFFECT, "the tile mapping does not dither", (False,)),
    "Precision.enableStochasticRounding": SHARED["enableStochasticRounding"],
    "Precision.runningStatisticsAlwaysFloat": Effect(
        NO_EFFECT, "statistics are computed in float32 and kept in the type of the module's buffers", (True,)
    ),
    "Precision.halfFloatCasting": Effect(
        UNSUPPORTED,
        "mixed operands follow PyTorch's rule; allowed are HalfUpcastToFloat and Default",
        (HalfFloatCastingBehavior.HalfUpcastToFloat, HalfFloatCastingBehavior.Default),
    ),
    "Precision.autocastEnabled": Effect(NO_EFFECT, "only torch.autocast regions of the model are cast", (True, False)),
}

#: The members of a ``TensorLocationSettings``; sharding is applied to optimiser state only.
LOCATION_EFFECTS: dict[str, Effect] = {
    "onChip": _APPLIED,
    "minElementsForOffChip": _APPLIED,
    "minElementsForReplicatedTensorSharding": _APPLIED,
    "useIOTilesToLoad": Effect(NO_EFFECT, "Streaming Memory is read and written by the compute tiles", (0,)),
    "useIOTilesToStore": Effect(NO_EFFECT, "Streaming Memory is read and written by the compute tiles", (0,)),
}

SHARDING_OF_OTHERS = Effect(NO_EFFECT, "replicated tensor sharding is applied to optimiser state only", (0,))

#: Known keys of ``_Popart.set``.
POPART_EFFECTS: dict[str, Effect] = {
    **rows(
        _APPLIED,
        """
        autoRecomputation explicitRecomputation defaultBufferingDepth defaultPrefetchBufferingDepth
        replicatedCollectivesSettings.prepareScheduleForMergingCollectives
        replicatedCollectivesSettings.mergeAllReduceCollectives
        replicatedCollectivesSettings.mergeReduceScatterCollectives
        replicatedCollectivesSettings.mergeAllGatherCollectives groupNormStridedChannelGrouping enableEngineCaching
        cachePath enableOutlining outlineThreshold engineOptions partialsTypeMatMuls
        automaticLossScalingSettings.binEdgeLocation automaticLossScalingSettings.thresholdUpperCountProportion
        syntheticDataMode
    """,
    ),
    "accumulateOuterFragmentSettings.schedule": Effect(
        NO_EFFECT, "the weight updates of the IPUs follow each other, as Serial says, whatever the schedule"
    ),
    "outlineSequenceBreakCost": SHARED["outlineSequenceBreakCost"],
    "enableOutliningCopyCostPruning": SHARED["enableOutliningCopyCostPruning"],
    "automaticLossScalingSettings.enabled": EFFECTS["Training.setAutomaticLossScaling"],
    "instrumentWithHardwareCycleCounter": EFFECTS["logCycleCount"],
    "rearrangeAnchorsOnHost": Effect(NO_EFFECT, "outputs need no rearranging", (False,)),
    "enableStochasticRounding": EFFECTS["Precision.enableStochasticRounding"],
    "enableFloatingPointChecks": EFFECTS["Precision.enableFloatingPointExceptions"],
}

OTHER_POPART_KEY = Effect(NO_EFFECT, "a setting of PopART's compiler, which is not here")

#: Engine options with a meaning here; ``debug.allowOutOfMemory`` asks for what happens anyway.
ENGINE_OPTIONS_APPLIED = ("autoReport.directory", "autoReport.all", *CALLBACK_OPTIONS)


class Ledger:
    """The options a program has set, and what is to be said about them. ``Options`` and its members share one."""

    def __init__(self) -> None:
        self._notes: dict[str, str] = {}

    def record(self, option: str, value: Any, effect: Effect | None = None) -> None:
        """Check ``option`` (a key of :data:`EFFECTS`, unless ``effect`` is given) and remember its note, if any.

        The last value counts. Raises :class:`~ipuperf.poptorch.errors.UnsupportedError`.
        """
        effect = EFFECTS[option] if effect is None else effect
        shown = _shown(option, value)
        if effect.status == UNSUPPORTED and effect.asked_for(value):
            raise UnsupportedError(f"poptorch.Options().{shown} is not supported: {effect.reason}")
        self._notes.pop(option, None)
        if effect.status == NO_EFFECT and effect.asked_for(value):
            self._notes[option] = f"poptorch.Options().{shown} is without effect: {effect.reason}"

    def notes(self) -> list[str]:
        """One sentence per option that was set and is without effect, in the order of setting."""
        return list(self._notes.values())


def _shown(option: str, value: Any) -> str:
    if option.startswith("_Popart.set "):
        return f"_Popart.set({option.removeprefix('_Popart.set ')!r}, {value!r})"
    values = value if isinstance(value, tuple) else (value,)
    return f"{option}({', '.join(str(v) if hasattr(v, 'name') else repr(v) for v in values)})"
