"""The effect of PopART's session options here: one table for PopXL (``ir._pb_ir.getSessionOptions()``).

PopTorch's ``_Popart.set`` shares its common rows. Source of names, defaults and meanings: popart:
willow/include/popart/sessionoptions.hpp. Source of the options that PopXL reads:
python/popxl/python_files/session.py and the ops. PopXL lowers its graphs as they are; the transforms of PopART's ONNX
interface do not run.
"""

from __future__ import annotations

from ipuperf.runtime.effects import APPLIED, NO_DIFFERENCE, NO_EFFECT, UNSUPPORTED, Effect, rows

SHARED: dict[str, Effect] = {
    "outlineSequenceBreakCost": Effect(NO_EFFECT, "ops are outlined one by one, no sequence is broken", (10000.0,)),
    "enableOutliningCopyCostPruning": Effect(NO_EFFECT, "functions are made whatever their copies cost", (True,)),
    "instrumentWithHardwareCycleCounter": Effect(NO_EFFECT, "the simulated cycles of each run are known", (False,)),
    "enableStochasticRounding": Effect(NO_EFFECT, "float16 results are rounded to the nearest value", (False,)),
    "enableFloatingPointChecks": Effect(NO_EFFECT, "NaN and infinity are passed on", (False,)),
    "enableStableNorm": Effect(APPLIED),
    "enableEngineCaching": Effect(NO_EFFECT, "nothing is kept between processes", (False,)),
}
"""Rows that every front end shares."""

_APPLIED = Effect(APPLIED)
_TRANSFORM = Effect(NO_DIFFERENCE, "a transform of PopART's ONNX interface, which PopXL does not run")
_GRAPHS = Effect(NO_DIFFERENCE, "a PopXL program says it with its graphs and calls")
_ALWAYS = Effect(UNSUPPORTED, "PopXL programs need it; allowed: True", (True,))
_PLANNING = Effect(NO_EFFECT, "ops are ordered by one rule, which takes no options")
_CHECKS = Effect(NO_DIFFERENCE, "a check of PopART's own code")
_HOST = Effect(NO_EFFECT, "host exchanges need no rearranging")
_LIBRARY = Effect(
    NO_EFFECT, "an option of Poplar's libraries; plans take availableMemoryProportion and partialsType", ({},)
)
_CODELETS = Effect(UNSUPPORTED, "there is no C++ compiler; describe the op to ipuperf in Python")
_LOCATIONS = Effect(NO_DIFFERENCE, "variables of PopXL say where they are by how they are made")

EFFECTS: dict[str, Effect] = {
    **SHARED,
    # what a program gets
    **rows(
        _APPLIED,
        """
        numIOTiles enableReplicatedGraphs replicatedGraphCount partialsTypeMatMuls defaultBufferingDepth
        defaultPrefetchBufferingDepth enablePrefetchDatastreams enableInplaceAmbiguityChecking dotChecks logDir
    """,
    ),
    "matmulOptions": _LIBRARY,
    "convolutionOptions": _LIBRARY,
    "throwIfLog2ScaleTensorNotInRange": Effect(NO_EFFECT, "a log2_scale out of range is always an error", (True,)),
    # refused
    "useHostCopyOps": _ALWAYS,
    "enableExplicitMainLoops": _ALWAYS,
    "customCodelets": _CODELETS,
    "customCodeletCompileFlags": _CODELETS,
    "enablePipelining": Effect(UNSUPPORTED, "use popxl_addons.pipelined_execution", (False,)),
    "syntheticDataMode": Effect(UNSUPPORTED, "give arrays to Session.run"),
    "groupNormStridedChannelGrouping": Effect(
        UNSUPPORTED, "groups are neighbouring channels, other groups would give other values", (False,)
    ),
    "enableDistributedReplicatedGraphs": Effect(
        UNSUPPORTED, "one process simulates all replicas; set replication_factor", (False,)
    ),
    "enableGradientAccumulation": Effect(UNSUPPORTED, "write the loop with ops.repeat", (False,)),
    "compileEngine": Effect(UNSUPPORTED, "build the Ir without a Session instead", (True,)),
    # without effect
    "cachePath": SHARED["enableEngineCaching"]._replace(neutral=()),
    "engineOptions": Effect(NO_EFFECT, "Poplar's engine is not here, but for streamCallbacks.*", ({},)),
    "reportOptions": Effect(NO_EFFECT, "reports are written by `ipuperf run --report`", ({},)),
    "gclOptions": Effect(NO_EFFECT, "collectives take the quickest algorithm", ({},)),
    "lstmOptions": _LIBRARY,
    "aliasZeroCopy": Effect(NO_EFFECT, "inputs that a called graph only reads are never copied", (True,)),
    "decomposeGradSum": Effect(NO_EFFECT, "gradients are added up one by one", (True,)),
    "enableVariablesCaching": Effect(NO_EFFECT, "nothing is kept between processes", (False,)),
    "enableFullyConnectedPass": Effect(NO_EFFECT, "joint plans follow from the graphs", (True,)),
    "enableNonStableSoftmax": Effect(NO_EFFECT, "softmax always subtracts the greatest value", (False,)),
    "enableSupportedDataTypeCasting": Effect(NO_EFFECT, "64-bit integers are refused or cast by the program", (True,)),
    "enableMergeExchange": Effect(NO_EFFECT, "use popxl.transforms.merge_exchange", (True,)),
    "bufferingDepthMap": Effect(NO_EFFECT, "all streams have defaultBufferingDepth", ({},)),
    "prefetchBufferingDepthMap": Effect(NO_EFFECT, "all streams have defaultBufferingDepth", ({},)),
    "rearrangeAnchorsOnHost": _HOST._replace(neutral=(True, False)),
    "rearrangeStreamsOnHost": _HOST._replace(neutral=(True, False)),
    "groupHostSync": Effect(NO_EFFECT, "host exchanges stand where the program puts them", (False,)),
    "enableLoadAndOffloadRNGState": Effect(NO_EFFECT, "random numbers follow from the program's seeds", (False,)),
    "_enableRngStateManagement": Effect(NO_EFFECT, "random numbers follow from the program's seeds", (False,)),
    **rows(_PLANNING, "timeLimitScheduler swapLimitScheduler kahnTieBreaker transitiveClosureOptimizationThreshold"),
    "firstDotOp": Effect(NO_EFFECT, "all ops are drawn", (0,)),
    "finalDotOp": Effect(NO_EFFECT, "all ops are drawn", (10000,)),
    "dotOpNames": Effect(NO_EFFECT, "the type of an op is drawn", (False,)),
    "exportPoplarComputationGraph": Effect(NO_EFFECT, "there is no Poplar graph", (False,)),
    "exportPoplarVertexGraph": Effect(NO_EFFECT, "there is no Poplar graph", (False,)),
    # no difference to PopXL programs, upstream neither (two rows of SHARED among them)
    **rows(
        _GRAPHS,
        """
        enableOutlining outlineThreshold outlineSequenceBreakCost enableOutliningCopyCostPruning
        subgraphCopyingStrategy virtualGraphMode autoRecomputation explicitRecomputation
    """,
    ),
    **rows(
        _TRANSFORM,
        """
        accumulateOuterFragmentSettings replicatedCollectivesSettings mergeVarUpdate
        mergeVarUpdateMemThreshold looseThresholdAtPeak accumulationFactor
        accumulationAndReplicationReductionType meanAccumulationAndReplicationReductionStrategy
        disableGradAccumulationTensorStreams disableOptimizerStateTensorStreams delayVarUpdates
        scheduleNonWeightUpdateGradientConsumersEarly enableSerializedMatmuls ensureFp32LossScaleTensor
        constantWeights
    """,
    ),
    "activationTensorLocationSettings": _LOCATIONS,
    "weightTensorLocationSettings": _LOCATIONS,
    "optimizerStateTensorLocationSettings": _LOCATIONS,
    "accumulatorTensorLocationSettings": _LOCATIONS,
    **rows(_CHECKS, "opxAliasChecking opxModifyChecking strictOpVersions separateCallOpPdfs"),
}
"""Effects by the name of the option in ``popart.SessionOptions``."""
