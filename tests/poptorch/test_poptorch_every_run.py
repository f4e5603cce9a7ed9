"""Small models run with options that change what a run costs: cycles, bytes, results and weights of each as a row."""

from typing import Any

import numpy as np
import pytest
from rows import Golden

torch = pytest.importorskip("torch")

from executorcases import BLOCKS, Network, batch, options, twins  # noqa: E402

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.testing import trace_of  # noqa: E402
from ipuperf.testing.record import record  # noqa: E402

OFF = "poptorch.TensorLocationSettings().useOnChipStorage(False)"
SHARDED = "setExecutionStrategy(poptorch.ShardedExecution(*BLOCKS))"
ALONE = "setExecutionStrategy(poptorch.ShardedExecution([*BLOCKS]))"
SERIAL = (
    "setExecutionStrategy(poptorch.SerialPhasedExecution(*(poptorch.Phase(poptorch.Stage(b).ipu(0)) for b in BLOCKS)))"
)
PARALLEL = (
    "setExecutionStrategy(poptorch.ParallelPhasedExecution("
    "*(poptorch.Phase(poptorch.Stage(b).ipu(n % 2)) for n, b in enumerate(BLOCKS))))"
)
CASES: dict[str, tuple[str, str]] = {
    "pipelined": ("autoRoundNumIPUs(True)", "SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)"),
    "pipelined, iterations": ("deviceIterations(2).outputMode(poptorch.OutputMode.EveryN, 2)", "SGD(p, lr=0.1)"),
    "pipelined, no recomputation": (
        "_Popart.set('autoRecomputation', 0)", "SGD(p, lr=0.1, dampening=0.5, momentum=0.5)"
    ),
    "pipelined, everything again": (
        "_Popart.set('autoRecomputation', 4); o._Popart.set('explicitRecomputation', True)", "SGD(p, lr=0.1)"
    ),
    "pipelined, half states": (
        "outputMode(poptorch.OutputMode.Sum)",
        "AdamW(p, lr=0.01, accum_type=torch.float16, first_order_momentum_accum_type=torch.float16)",
    ),
    "pipelined, one pattern of syncs": ("syncPattern(poptorch.SyncPattern.SinglePipeline)", "SGD(p, lr=0.1)"),
    "pipelined, stages off chip": (f"TensorLocations.setActivationLocation({OFF})", "SGD(p, lr=0.1)"),
    "pipelined, replicas": ("replicationFactor(2)", "Adam(p, lr=0.01, weight_decay=0.1)"),
    "alone": (ALONE, "SGD(p, lr=0.1, use_combined_accum=True, momentum=0.9)"),
    "alone, final": (f"{ALONE}.outputMode(poptorch.OutputMode.Final)", "RMSprop(p, lr=0.01, momentum=0.5)"),
    "alone, averages": (ALONE, "RMSprop(p, lr=0.01, centered=True, use_tf_variant=True, weight_decay=0.1)"),
    "alone, no accumulation": (f"{ALONE}.Training.gradientAccumulation(1)", "LAMB(p, lr=0.01)"),
    "alone, limited norm": (ALONE, "Adam(p, lr=0.01, max_grad_norm=0.1)"),
    "alone, loss scale": (f"{ALONE}.Training.setAutomaticLossScaling(True)", "SGD(p, lr=0.1, loss_scaling=8.0)"),
    "alone, synthetic": (f"{ALONE}.enableSyntheticData(True)", "SGD(p, lr=0.1)"),
    "alone, no outlining": (f"{ALONE}; o._Popart.set('enableOutlining', False)", "SGD(p, lr=0.1)"),
    "alone, half partials": (
        f"{ALONE}.setAvailableMemoryProportion({{'IPU0': 0.01}}).Precision.setPartialsType(torch.half)",
        "SGD(p, lr=0.1)",
    ),
    "alone, states off chip": (
        f"{ALONE}.TensorLocations.setOptimizerLocation({OFF}.minElementsForOffChip(20))", "AdamW(p, lr=0.01)"
    ),
    "alone, weights off chip": (
        f"{ALONE}.TensorLocations.setWeightLocation({OFF}); o.TensorLocations.setAccumulatorLocation({OFF})",
        "SGD(p, lr=0.1)",
    ),
    "sharded": (f"{SHARDED}; o._Popart.set('defaultBufferingDepth', 3)", "SGD(p, lr=0.1)"),
    "replicas": (
        f"{ALONE}.replicationFactor(2).Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)",
        "SGD(p, lr=0.01)",
    ),
    "replicas, merged": (
        f"{ALONE}.replicationFactor(4); o._Popart.set('replicatedCollectivesSettings.mergeAllReduceCollectives', True);"
        "o._Popart.set('replicatedCollectivesSettings.prepareScheduleForMergingCollectives', True)",
        "SGD(p, lr=0.1)",
    ),
    "replicas, shards": (
        f"{ALONE}.replicationFactor(2).TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings()"
        ".useReplicatedTensorSharding().minElementsForReplicatedTensorSharding(8))",
        "AdamW(p, lr=0.01)",
    ),
    "replicas, one input": (
        f"{ALONE}.replicationFactor(2).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)", "SGD(p, lr=0.1)"
    ),
    "replicas, buffers of their own": (f"{ALONE}.replicationFactor(2).broadcastBuffers(False)", "SGD(p, lr=0.1)"),
    "replicas, groups": (
        f"{ALONE}.replicationFactor(4).inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)", "SGD(p, lr=0.1)"
    ),
    "replicas, pipelined shards": (
        "replicationFactor(2).TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings()"
        ".useOnChipStorage(False).useReplicatedTensorSharding().minElementsForReplicatedTensorSharding(8))",
        "LAMB(p, lr=0.01, max_weight_norm=0.5)",
    ),
    "replicas, means while running": (
        f"{ALONE}.replicationFactor(2).deviceIterations(2)", "SGD(p, lr=0.1, accum_type=torch.float16)"
    ),
    **{f"alone, {made}": (ALONE, made) for made in (
        "SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)",
        "SGD(p, lr=0.1, momentum=0.9, velocity_scaling=2.0, use_combined_accum=True, loss_scaling=4.0)",
        "SGD(p, lr=0.1, momentum=0.9, max_grad_norm=0.05, velocity_accum_type=torch.float16)",
        "SGD([{'params': list(p)[:2], 'lr': 0.5}, {'params': list(p)[2:]}], lr=0.1)",
        "Adam(p, lr=0.01, betas=(0.5, 0.6), eps=0.1)",
        "Adam(p, lr=0.01, loss_scaling=16.0, second_order_momentum_accum_type=torch.float32)",
        "AdamW(p, lr=0.01, weight_decay=0.2, bias_correction=False)",
        "AdamW(p, lr=0.01, max_grad_norm=0.5, accum_type=torch.float16)",
        "RMSprop(p, lr=0.01, alpha=0.5, eps=0.1, momentum=0.9, use_tf_variant=True)",
        "RMSprop(p, lr=0.01, centered=True, accum_type=torch.float16)",
        "LAMB(p, lr=0.01, bias_correction=False, weight_decay=0.3)",
    )},
    "alone, three iterations": (f"{ALONE}.deviceIterations(3)", "SGD(p, lr=0.1)"),
    "alone, patterns off": (f"{ALONE}; o._Popart.set('patterns_level', 0)", "SGD(p, lr=0.1)"),
    "alone, threshold": (f"{ALONE}; o._Popart.set('outlineThreshold', 10.0)", "SGD(p, lr=0.1)"),
    "alone, I/O tiles": (f"{ALONE}; o.TensorLocations.numIOTiles(64)", "SGD(p, lr=0.1)"),
    "alone, sums": (f"{ALONE}.outputMode(poptorch.OutputMode.Sum)", "SGD(p, lr=0.1)"),
    "alone, threads": (
        f"{ALONE}.replicationFactor(2); o._Popart.set('engineOptions', {{"
        "'streamCallbacks.multiThreadMode': 'dedicated', 'streamCallbacks.numWorkerThreads': 'auto'})",
        "SGD(p, lr=0.1)",
    ),
    "two stages": ("setExecutionStrategy(poptorch.PipelinedExecution(['B0', 'B1'], 'B2'))", "SGD(p, lr=0.1)"),
    "two stages on one IPU": (
        "setExecutionStrategy(poptorch.PipelinedExecution("
        "poptorch.Stage('B0', 'B1').ipu(0), poptorch.Stage('B2').ipu(0)))",
        "SGD(p, lr=0.1)",
    ),
    "stages by themselves": (
        "setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))", "SGD(p, lr=0.1)"
    ),
    "sharded, by IPU": (
        "setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))", "SGD(p, lr=0.1)"
    ),
    "serial phases, off chip": (
        f"{SERIAL[:-1]}.setTensorsLiveness(poptorch.Liveness.OffChipAfterEachPhase))", "SGD(p, lr=0.1)"
    ),
    "serial phases, off chip after the forward pass": (
        f"{SERIAL[:-1]}.setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd).useSeparateBackwardPhase())",
        "AdamW(p, lr=0.01)",
    ),
    "parallel phases, off chip": (
        f"{PARALLEL[:-1]}.sendTensorsOffChipAfterFwd()).replicationFactor(2)", "SGD(p, lr=0.1, momentum=0.9)"
    ),
    "serial phases, on chip": (
        f"{SERIAL}; o.TensorLocations.setActivationLocation({OFF.replace('False', 'True')})", "SGD(p, lr=0.1)"
    ),
    **{f"inference, {text}": (text, "") for text in (
        "deviceIterations(4)",
        f"{ALONE}.deviceIterations(4).replicationFactor(2).outputMode(poptorch.OutputMode.Sum)",
        f"{ALONE}.deviceIterations(4).outputMode(poptorch.OutputMode.Final)",
        f"{ALONE}.deviceIterations(4).outputMode(poptorch.OutputMode.EveryN, 2).replicationFactor(2)",
        f"{SHARDED}.deviceIterations(2)",
        f"{SERIAL}.deviceIterations(2)",
        f"{PARALLEL}.deviceIterations(2)",
        f"{ALONE}; o._Popart.set('defaultPrefetchBufferingDepth', 4)",
        f"{ALONE}.enableSyntheticData(True)",
        f"{ALONE}.TensorLocations.setWeightLocation({OFF})",
    )},
    "serial phases": (SERIAL, "SGD(p, lr=0.1)"),
    "parallel phases": (PARALLEL, "Adam(p, lr=0.01)"),
}  # fmt: skip


def figures(model: Any) -> str:
    """What a run costs."""
    kept = record(trace_of(model))
    memory = {name: value for name, value in kept.figures["memory"].items() if "fullest" in name or "always" in name}
    named = {**kept.figures["system"], **kept.figures["cycles"], **memory, **kept.figures["transfers"]}
    return "; ".join([f"ops {len(kept.operations)}", *(f"{name} {value}" for name, value in named.items())])


def latencies(model: Any) -> str:
    """What the executor tells of the last call, in microseconds: the least, greatest and mean latencies, and events."""
    spans = (model.getHostIpuLatency(), model.getComputeLatency(), model.getIpuHostLatency(), model.getLatency())
    told = " ".join("/".join(f"{1e6 * value:.2f}" for value in span) for span in spans)
    events = {name: [sum(map(sum, times)), sum(map(len, times))] for name, times in model.getPerfCounters().items()}
    counted = " ".join(f"{name} {1e6 * total:.2f}/{count}" for name, (total, count) in events.items())
    return f"latencies {told}; {counted}"


def numbers(tensors: Any) -> str:
    """The sum and the weighted sum of numbers, to four digits."""
    flat = np.concatenate([t.detach().double().reshape(-1).numpy() for t in tensors])
    return f"{flat.size}: {flat.sum():.4g}, {(flat * np.linspace(-1, 2, flat.size)).sum():.4g}"


def state_of(optimizer: Any) -> str:
    """The state of the optimiser and its numbers on the IPUs, by kind."""
    state, kinds = optimizer.state_dict(), {}
    for name, tensor in {**state["ipu_state"], **state["ipu_param"]}.items():
        kinds.setdefault(name.partition("___")[0], []).append(tensor)
    return "; ".join(f"{kind} {numbers(tensors)}" for kind, tensors in kinds.items())


@pytest.mark.parametrize("name", CASES)
def test_what_a_run_costs(name: str, golden: Golden) -> None:
    change, made = CASES[name]
    module, _ = twins(Network)
    o = options()
    exec(f"o.{change}", {"o": o, "poptorch": poptorch, "torch": torch, "BLOCKS": BLOCKS})
    if made:
        optimizer = eval(f"poptorch.optim.{made}", {"poptorch": poptorch, "torch": torch, "p": module.parameters()})
        model = poptorch.trainingModel(module, o, optimizer)
    else:
        o.Training.gradientAccumulation(1)
        model = poptorch.inferenceModel(module, o)
    results = [model(*batch(o.samples_factor, seed=call)) for call in range(2)]
    seen = numbers(t for result in results for t in result)
    weights = numbers(module.state_dict().values())
    kept = f"; {state_of(optimizer)}" if made else ""
    text = f"{figures(model)}; {latencies(model)}; results {seen}; weights {weights}{kept}"
    golden([f"{change} {made}", text])
    model.destroy()
