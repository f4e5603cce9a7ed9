"""``pipeline``: computational stages on several IPUs, trained or not, in one of TensorFlow's schedules.

Facts: ``docs/reference/pipelines.md`` 2.2 to 2.5. Not supported, with an error that says so: batch serialisation, a
number of micro-batches that is known at run time only, replicated weight sharding, captured gradients, I/O tiles,
accumulated outfeeds over several repetitions, other options for backward stages than for forward stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf.pipelines.schedules import RecomputationMode

from ..effects import checked_kinds
from ..importer import Importer, MadeBy, Value, marker, tensor_of
from ..importer.origins import user_line
from ..pipelining.accumulation import GradientAccumulationReductionMethod
from ..pipelining.arguments import PipelineArguments, PipelineSchedule
from ..pipelining.build import PipelineMeaning
from ..pipelining.model import OptimizerFunctionOutput, PipelineStageOptions
from ..pipelining.trace import trace_pipeline
from ..programs.infeed import IPUInfeedQueue
from ..programs.outfeed import IPUOutfeedQueue


@checked_kinds(
    "pipeline_schedule", "recomputation_mode", "infeed_queue", "outfeed_queue", "weight_update_poplar_options"
)
def pipeline(
    computational_stages: Any,
    gradient_accumulation_count: Any = None,
    gradient_accumulation_dtype: Any = None,
    gradient_accumulation_for_captured_grads: bool = True,
    repeat_count: int = 1,
    batch_serialization_iterations: int = 1,
    inputs: Any = None,
    infeed_queue: IPUInfeedQueue | None = None,
    outfeed_queue: IPUOutfeedQueue | None = None,
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None = None,
    device_mapping: Any = None,
    pipeline_schedule: PipelineSchedule | None = None,
    recomputation_mode: RecomputationMode | None = None,
    forward_propagation_stages_poplar_options: Any = None,
    backward_propagation_stages_poplar_options: Any = None,
    weight_update_poplar_options: PipelineStageOptions | None = None,
    offload_weight_update_variables: bool | None = None,
    replicated_optimizer_state_sharding: bool = False,
    offload_activations: bool | None = None,
    offload_gradient_accumulation_buffers: bool | None = None,
    replicated_weight_sharding: bool | None = None,
    offload_weights: bool | None = None,
    continuous_weight_updates: bool = False,
    outfeed_loss: bool = False,
    accumulate_outfeed: bool = False,
    accumulate_outfeed_dtype: Any = None,
    outfeed_mask: Sequence[bool] | None = None,
    reduction_method: Any = GradientAccumulationReductionMethod.SUM,
    name: str | None = None,
) -> tf.Operation:
    """Build a pipeline in the program being traced; it runs when the program runs.

    Args:
        computational_stages: functions; each takes the results of the one before, the first ``inputs`` and an element
            of ``infeed_queue``. A list among them holds concurrent functions: they take the same arguments, and their
            results follow one another.
        gradient_accumulation_count: micro-batches per weight update (or per inference run). Multiple of twice the
            number of stages for Grouped training, of the number of stages for Interleaved and for inference.
        gradient_accumulation_dtype: type of accumulators: None (the variable's), a type, or a function of the variable.
        repeat_count: weight updates per run, each with its own ramp-up and ramp-down.
        inputs: arguments that are the same for all micro-batches: host data, arguments of the compiled function.
        outfeed_queue: takes the results of the last stage; required if there are any.
        optimizer_function: takes the results of the last stage, returns an :class:`OptimizerFunctionOutput`: training.
        device_mapping: shard of each stage (default 0, 1, 2 ...); for concurrent functions a list.
        pipeline_schedule: default Grouped.
        recomputation_mode: has an effect with ``IPUConfig.allow_recompute``.
        forward_propagation_stages_poplar_options, backward_...: a :class:`PipelineStageOptions` per stage.
        offload_weight_update_variables: optimiser state in Streaming Memory; None: where the machine has it.
        replicated_optimizer_state_sharding: that state is divided among the replicas.
        offload_activations, offload_gradient_accumulation_buffers: stashes, accumulators in Streaming Memory.
        outfeed_loss: enqueue the loss instead of the results.
        outfeed_mask: results not to enqueue (True).
        accumulate_outfeed: enqueue the sum over the micro-batches, once per run.
        reduction_method: of gradients over the micro-batches: SUM, MEAN, RUNNING_MEAN.

    Raises:
        ValueError, TypeError, NotImplementedError: an argument does not fit; the message says which and why.
    """
    return _placed(PipelineArguments(**locals()))


def _placed(arguments: PipelineArguments) -> tf.Operation:
    """The op of the traced graph that stands for the pipeline."""
    if not isinstance(ops.get_default_graph(), FuncGraph):
        raise RuntimeError(
            "pipeline: no IPU program is being traced: call it in a function that is given to ipu_compiler.compile or "
            "IPUStrategy.run"
        )
    meaning = PipelineMeaning(trace_pipeline(arguments))
    marker(arguments.name, meaning, [*arguments.inputs, *meaning.traced.outside], [])
    op = ops.get_default_graph().get_operations()[-1]
    meaning.line = user_line(op)
    return op


@checked_kinds()
def recomputation_checkpoint(tensors: Any, name: str | None = None) -> Any:
    """Keep ``tensors`` (a tensor or a structure of tensors) when the stage is recomputed.

    It has an effect with ``RecomputationMode.RecomputeAndBackpropagateInterleaved``; returns equal tensors.
    """

    def build(importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        checkpoints = getattr(importer.place, "checkpoints", None)
        if checkpoints is not None:
            checkpoints.append(tensor_of(inputs[0], importer.place))
        return list(inputs)

    def keep(value: Any) -> tf.Tensor:
        tensor = tf.convert_to_tensor(value)
        if not isinstance(ops.get_default_graph(), FuncGraph):
            return tf.identity(tensor, name=name)
        spec = tf.TensorSpec(tensor.shape, tensor.dtype)
        stem = name or "recomputation_checkpoint"
        return marker(stem, MadeBy(build), [tensor], [spec], effect=False, gradient=lambda op, grad: grad)[0]

    return tf.nest.map_structure(keep, tensors)
