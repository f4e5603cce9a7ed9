"""Arguments of TensorFlow's interface: their kinds, those that do nothing here or are refused, all of ``IPUConfig``.

See :mod:`ipuperf.kinds` and :mod:`ipuperf.runtime.effects`. What upstream does with them: ``tensorflow:
python/ipu/config.py`` and the docstrings beside it. What becomes a tensor, a data set or a type of elements, TensorFlow
says itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ipuperf.kinds import ANYTHING, WHOLE, Kinds, checked
from ipuperf.runtime.effects import NO_DIFFERENCE, NO_EFFECT, UNSUPPORTED, Effect, Effects

from .config_options import COMPILER, OPTIONS, SLICES

_DEVICE = Effect(NO_EFFECT, "a queue belongs to the program that uses it", (None, 0))
_ONE_REPLICA_COUNT = Effect(NO_EFFECT, "the program's replicas use the queue", (None,))
_LATENCY = Effect(NO_EFFECT, "streams are simulated one way", (False,))
_WHILE = Effect(NO_DIFFERENCE, "it chooses between two ways to write the same loop")
_HOST_DEVICE = Effect(NO_EFFECT, "the host is one process", ("cpu", "/device:CPU:0"))
_PLAN_KEYS = Effect(NO_EFFECT, "plans take availableMemoryProportion and partialsType")
_DEPRECATED = Effect(NO_EFFECT, "deprecated upstream", (None,))
_STATISTICS = Effect(NO_DIFFERENCE, "statistics are those of the batch either way")
_CAPTURE = Effect(UNSUPPORTED, "gradients cannot be captured", (None,))

_FUNCTIONS: dict[str, Effect] = {
    "ipu.ipu_infeed_queue.IPUInfeedQueue(device_ordinal)": _DEVICE,
    "ipu.ipu_infeed_queue.IPUInfeedQueue(replication_factor)": _ONE_REPLICA_COUNT,
    "ipu.ipu_infeed_queue.IPUInfeedQueue(data_to_prefetch)": Effect(
        NO_EFFECT, "deprecated upstream; use prefetch_depth", (1,)
    ),
    "ipu.ipu_infeed_queue.IPUInfeedQueue(optimise_latency)": _LATENCY,
    "ipu.ipu_outfeed_queue.IPUOutfeedQueue(device_ordinal)": _DEVICE,
    "ipu.ipu_outfeed_queue.IPUOutfeedQueue(replication_factor)": _ONE_REPLICA_COUNT,
    "ipu.ipu_outfeed_queue.IPUOutfeedQueue(buffer_depth)": Effect(
        NO_EFFECT, "the host takes every element as it arrives", (3,)
    ),
    "ipu.ipu_outfeed_queue.IPUOutfeedQueue(optimise_latency)": _LATENCY,
    "ipu.ipu_outfeed_queue.IPUOutfeedQueue.dequeue(wait_for_completion)": Effect(
        NO_DIFFERENCE, "a run has ended when it returns"
    ),
    "ipu.optimizers.GradientAccumulationOptimizer(verify_usage)": Effect(
        NO_EFFECT, "the usage is always checked", (True,)
    ),
    "ipu.ipu_strategy.IPUStrategyV1(cpu_device)": _HOST_DEVICE,
    "ipu.ipu_strategy.IPUStrategyV1.run(options)": Effect(NO_EFFECT, "there are no options of a run", (None,)),
    "ipu.cross_replica_ops.assume_equal_across_replicas(inplace)": Effect(
        NO_DIFFERENCE, "it says whether the compiler copies"
    ),
    "ipu.utils.reset_ipu_seed(device)": Effect(NO_EFFECT, "there is one seed", ("/device:IPU:0",)),
    "ipu.utils.reset_ipu_seed(cpu_device)": _HOST_DEVICE,
    "ipu.utils.reset_ipu_seed(experimental_identical_replicas)": Effect(
        UNSUPPORTED, "replicas have random numbers of their own", (False,)
    ),
    "ipu.functional_ops.outlined_function(unique_sharding)": Effect(
        NO_EFFECT, "operands are copied between IPUs where they are needed", (False,)
    ),
    "ipu.functional_ops.outlined_function(keep_input_layouts)": COMPILER._replace(neutral=(None,)),
    "ipu.nn_ops.softmax(stable)": Effect(NO_DIFFERENCE, "the largest element is always subtracted"),
    "ipu.normalization_ops.group_norm(reduction_axes)": _DEPRECATED,
    "ipu.normalization_ops.group_norm(training)": _STATISTICS,
    "ipu.normalization_ops.layer_norm(reduction_axes)": _DEPRECATED,
    "ipu.normalization_ops.layer_norm(training)": _STATISTICS,
    "ipu.normalization_ops.instance_norm(reduction_axes)": _DEPRECATED,
    "ipu.normalization_ops.instance_norm(training)": _STATISTICS,
    "ipu.rand_ops.dropout(seed)": Effect(NO_EFFECT, "masks follow from the program's seed", (None,)),
    "ipu.rand_ops.dropout(ref)": Effect(NO_DIFFERENCE, "the backward pass has the same mask"),
    "ipu.keras.layers.LSTM(options, other keys)": _PLAN_KEYS,
    "ipu.embedding_ops.HostEmbedding(partition_strategy)": Effect(NO_DIFFERENCE, "the table is in one place"),
    "ipu.embedding_ops.embedding_lookup(serialization_factor)": Effect(NO_EFFECT, "a lookup is made at once", (1,)),
    "ipu.embedding_ops.embedding_lookup(one_hot_threshold)": _DEPRECATED._replace(neutral=(0,)),
    "ipu.embedding_ops.embedding_lookup(min_encoding_size)": _DEPRECATED._replace(neutral=(0,)),
    "ipu.embedding_ops.embedding_lookup(partition_strategy)": _DEPRECATED,
    "ipu.embedding_ops.embedding_lookup(indices_are_sorted)": Effect(NO_EFFECT, "lookups take any order", (False,)),
    "ipu.control_flow_ops.barrier(insert_barrier_for_gradient)": Effect(
        NO_EFFECT, "gradients follow their operands", (False,)
    ),
    "ipu.autoshard.automatic_sharding(frozen_inference)": Effect(NO_DIFFERENCE, "constants are not placed"),
    "ipu.scopes.ipu_jit_scope(ipu_scope)": Effect(NO_DIFFERENCE, "a program is compiled as a whole"),
    "ipu.scopes.partials_type(override_type)": Effect(
        NO_EFFECT, "give partialsType in `IPUConfig.matmuls.poplar_options` and `IPUConfig.convolutions.poplar_options`"
    ),
    "ipu.scopes.frontend_attribute(attribute_value)": Effect(NO_EFFECT, "a hint to the Poplar compiler"),
    "ipu.scopes.frontend_attribute(restore_to)": Effect(NO_EFFECT, "a hint to the Poplar compiler", (None,)),
    "ipu.scopes.stochastic_rounding(override)": Effect(
        NO_EFFECT, "float16 results are rounded to the nearest value", (False,)
    ),
    "ipu.ipu_strategy.IPUStrategyV1(enable_dataset_iterators)": Effect(
        NO_EFFECT, "data sets are given to queues or iterators", (True,)
    ),
    "ipu.distributed.popdist_strategy.PopDistStrategy(add_ipu_cross_replica_reductions)": Effect(
        UNSUPPORTED, "gradients are reduced over the replicas of the program; allowed: True", (True,)
    ),
    "ipu.config.configure_ipu_system(device)": _HOST_DEVICE,
    "ipu.config.configure_ipu_system(reset_configuration)": Effect(
        NO_EFFECT, "a new configuration always takes the place of the old one", (True,)
    ),
    "ipu.utils.get_num_of_ipus_in_device(device)": _HOST_DEVICE,
    "ipu.dataset_benchmark.dataset_benchmark(apply_debug_options)": Effect(
        NO_DIFFERENCE, "Poplar's debug options are not here"
    ),
    "ipu.loops.repeat(use_while_v1)": _WHILE,
    "ipu.loops.while_loop(use_while_v1)": _WHILE,
    "ipu.pipelining_ops.pipeline(gradient_accumulation_for_captured_grads)": Effect(
        NO_DIFFERENCE, "it concerns captured gradients, which are refused"
    ),
    "ipu.pipelining_ops.pipeline(weight_update_poplar_options)": Effect(
        NO_EFFECT, "weight updates have no products or convolutions", (None,)
    ),
    "ipu.pipelining_ops.pipeline(continuous_weight_updates)": Effect(
        UNSUPPORTED, "Continuous weight updates are currently not supported.", (False,)
    ),
    "ipu.pipelining_ops.pipeline(replicated_weight_sharding)": Effect(
        UNSUPPORTED, "use replicated_optimizer_state_sharding", (None, False)
    ),
    "ipu.pipelining_ops.pipeline(offload_weights)": Effect(
        UNSUPPORTED, "use offload_weight_update_variables", (None, False)
    ),
    "ipu.pipelining_ops.PipelineStageOptions(matmul_options, other keys)": _PLAN_KEYS,
    "ipu.pipelining_ops.PipelineStageOptions(convolution_options, other keys)": _PLAN_KEYS,
    "ipu.pipelining_ops.PipelineStageOptions(slice_options)": SLICES._replace(neutral=(None, {})),
    "ipu.pipelining_ops.OptimizerFunctionOutput(tape)": Effect(NO_DIFFERENCE, "stages are differentiated one by one"),
    "ipu.pipelining_ops.OptimizerFunctionOutput(gradient_capture_context)": _CAPTURE,
    "ipu.pipelining_ops.OptimizerFunctionOutput(captured_gradient_outfeed)": _CAPTURE,
}

_CONFIG = {
    **{name: option.effect for name, option in OPTIONS.items()},
    "convolutions.poplar_options (other keys)": _PLAN_KEYS,
    "matmuls.poplar_options (other keys)": _PLAN_KEYS,
}

EFFECTS = Effects(
    "tensorflow", {**_FUNCTIONS, **{f"ipu.config.IPUConfig.{name}": row for name, row in _CONFIG.items()}}
)


P = ParamSpec("P")
R = TypeVar("R")
_KINDS = Kinds({"int": WHOLE, **dict.fromkeys(("Tensor", "Dataset", "DType", "Variable", "ndarray"), ANYTHING)})


def checked_kinds(*unchecked: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of functions and constructors: arguments must be of the kinds that their annotations say, those aside
    that the function checks itself (``unchecked``)."""
    return checked(_KINDS, unchecked)
