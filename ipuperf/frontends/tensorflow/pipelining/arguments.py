"""The arguments of ``pipeline``, checked."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ipuperf.frontends.enumerations import NumberedEnum
from ipuperf.pipelines.schedules import RecomputationMode

from ..effects import EFFECTS
from ..programs.infeed import IPUInfeedQueue
from ..programs.outfeed import IPUOutfeedMode, IPUOutfeedQueue
from .accumulation import GradientAccumulationReductionMethod
from .model import PipelineStageOptions, StageFunctions, StageOptions


class PipelineSchedule(NumberedEnum):
    """How stages are interleaved.

    ``Grouped``: forwards together and backwards together; ``Interleaved``: forwards and backwards in turn, with smaller
    stashes; ``Sequential``: one stage at a time, as a sharded model.
    """

    Grouped = 0
    Interleaved = 1
    Sequential = 2


SAID = (
    "gradient_accumulation_for_captured_grads",
    "continuous_weight_updates",
    "weight_update_poplar_options",
    "replicated_weight_sharding",
    "offload_weights",
)
"""Arguments without effect here, or refused."""


_LARGEST = 2**31 - 2
"""Upstream counts micro-batches in int32."""


class PipelineArguments(SimpleNamespace):
    """The arguments of ``pipeline`` by their names there, checked, and what follows from them.

    Attributes:
        stages: functions and devices of each stage.
        default_mapping: stage ``i`` is on shard ``i``.
        micro_batches: for each weight update.
        options: PopLibs options of each stage.
    """

    stages: list[StageFunctions]
    default_mapping: bool
    micro_batches: int
    options: list[StageOptions]
    outfeed_mask: list[bool] | None
    inputs: list[tf.Tensor]
    pipeline_schedule: PipelineSchedule
    recomputation_mode: RecomputationMode
    reduction_method: GradientAccumulationReductionMethod
    infeed_queue: IPUInfeedQueue | None
    outfeed_queue: IPUOutfeedQueue | None
    repeat_count: int
    name: str

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        training, mapping = self.optimizer_function is not None, self.device_mapping
        serialization = self.batch_serialization_iterations
        self.reduction_method = GradientAccumulationReductionMethod.parse_reduction_method(self.reduction_method)
        _check_count(self.gradient_accumulation_count, serialization, self.reduction_method)
        for name in SAID:
            EFFECTS.given(f"ipu.pipelining_ops.pipeline({name})", getattr(self, name))
        # The schedule's default depends on serialisation, and the checks below depend on the schedule.
        self.pipeline_schedule = _schedule(self.pipeline_schedule, serialization)
        self.recomputation_mode = _recomputation(self.recomputation_mode)
        _check_parts(self.computational_stages, self.infeed_queue, self.outfeed_queue)
        functions = list(self.computational_stages)
        self.stages = _stages(functions, _mapping(functions, mapping, serialization))
        _check_devices(self.stages, self.pipeline_schedule, training, serialization)
        self.options = _stage_options(len(self.stages), self, training)
        _check_outfeed(self)
        count = self.gradient_accumulation_count
        self.micro_batches = _micro_batches(count, self.pipeline_schedule, len(self.stages), training)
        _check_repeats(self.repeat_count, serialization, self.accumulate_outfeed)
        in_order = [stage.devices for stage in self.stages] == [[i] for i in range(len(self.stages))]
        self.default_mapping = mapping is None or in_order
        self.inputs = _inputs(self.inputs)
        self.outfeed_mask = None if self.outfeed_mask is None else list(self.outfeed_mask)
        self.name = self.name or "pipeline"

    @property
    def executions(self) -> int:
        """Micro-batches of a run."""
        return self.micro_batches * self.repeat_count


def _inputs(inputs: Any) -> list[tf.Tensor]:
    listed = [] if inputs is None else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    return [tf.convert_to_tensor(value) for value in tf.nest.flatten(listed)]


def _check_count(count: Any, serialization: int, method: GradientAccumulationReductionMethod) -> None:
    """ValueError for no number of micro-batches, and for serialised batches whose gradients are not summed."""
    if count is None or (isinstance(count, int) and not count):
        raise ValueError("gradient_accumulation_count must be specified.")
    if serialization != 1 and method is not GradientAccumulationReductionMethod.SUM:
        raise ValueError(
            "batch_serialization_iterations != 1 is only supported when reduction_method is "
            "GradientAccumulationReductionMethod.SUM"
        )


def _recomputation(mode: Any) -> RecomputationMode:
    """The mode given, Auto where none is."""
    if mode is not None and not isinstance(mode, RecomputationMode):
        raise TypeError("The given recomputation_mode is not a member of the RecomputationMode enumeration.")
    return RecomputationMode.Auto if mode is None else mode


def _check_parts(stages: Any, infeed: Any, outfeed: Any) -> None:
    """TypeError or ValueError for stages and queues that are none."""
    if not isinstance(stages, (list, tuple)):
        raise TypeError("computational_stages argument needs to be a list or a tuple.")
    if infeed is not None and not isinstance(infeed, IPUInfeedQueue):
        raise TypeError("infeed_queue is not an instance of ipu_infeed_queue.IPUInfeedQueue")
    if outfeed is not None and not isinstance(outfeed, IPUOutfeedQueue):
        raise TypeError("outfeed_queue is not an instance of ipu_outfeed_queue.IPUOutfeedQueue")
    if len(stages) < 2:
        raise ValueError("Pipeline requires at least two computational stages.")


def _mapping(stages: Sequence[Any], mapping: Any, serialization: int) -> list[Any]:
    """The shard of each stage: as given, else one after the other, all on the first where batches are serialised."""
    if mapping is not None:
        if not isinstance(mapping, (list, tuple)):
            raise TypeError("device_mapping argument needs to be a list or a tuple.")
        return list(mapping)
    if any(isinstance(stage, (list, tuple)) for stage in stages):
        raise ValueError(
            "When the pipeline stage is a list of functions, the device mapping must also be a list of device IDs."
        )
    # Batch serialisation needs all stages on one IPU (`_check_devices`).
    return [0] * len(stages) if serialization > 1 else list(range(len(stages)))


def _check_repeats(repeats: Any, serialization: int, accumulated: bool) -> None:
    """Raise for repetitions that are no number, and for what is not modelled: serialised batches, sums of outfeeds
    over several repetitions."""
    if serialization > 1:
        raise NotImplementedError(
            f"pipeline: batch_serialization_iterations={serialization}: executing a stage several times on parts of a "
            "batch is not modelled; use smaller micro-batches and a larger gradient_accumulation_count"
        )
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"pipeline: repeat_count has to be an integer of at least 1, not {repeats!r}")
    if accumulated and repeats > 1:
        raise NotImplementedError(
            f"pipeline: accumulate_outfeed with repeat_count={repeats}: sums per repetition are not modelled; use "
            "repeat_count=1 and run the program several times"
        )


def _schedule(schedule: Any, serialization: int) -> PipelineSchedule:
    if schedule is None:
        schedule = PipelineSchedule.Sequential if serialization > 1 else PipelineSchedule.Grouped
    if not isinstance(schedule, PipelineSchedule):
        raise TypeError("The given pipeline_schedule is not a member of the PipelineSchedule enumeration.")
    if serialization > 1 and schedule is not PipelineSchedule.Sequential:
        raise NotImplementedError("Batch serialization is only supported with the `Sequential` schedule.")
    return schedule


def _stages(functions: list[Any], mapping: list[Any]) -> list[StageFunctions]:
    if len(mapping) != len(functions):
        raise ValueError(f"Each stage must be mapped to an IPU: {len(mapping)} mappings != {len(functions)} stages")
    stages = []
    for number, (entry, device) in enumerate(zip(functions, mapping)):
        if isinstance(entry, (list, tuple)):
            if not isinstance(device, (list, tuple)):
                raise ValueError(
                    "When the pipeline stage is a list of functions, the device mapping must also be a list of device "
                    "IDs."
                )
            if len(entry) != len(device) or not entry:
                raise ValueError("Pipeline stage list and device_id list must be the same length.")
            if any(isinstance(function, (list, tuple)) for function in entry):
                raise NotImplementedError("Multiple nested levels of pipeline stages is not supported.")
            stages.append(StageFunctions(list(entry), list(device)))
        else:
            stages.append(StageFunctions([entry], [device]))
        for shard in stages[-1].devices:
            if isinstance(shard, bool) or not isinstance(shard, int) or shard < 0:
                raise ValueError(
                    f"device_mapping: stage {number} is on {shard!r}; a shard number of 0 or more is needed"
                )
        if len(set(stages[-1].devices)) != len(stages[-1].devices):
            raise ValueError(f"device_mapping: concurrent stage {number} names an IPU twice: {stages[-1].devices}")
    return stages


def _check_devices(
    stages: Sequence[StageFunctions], schedule: PipelineSchedule, training: bool, serialization: int
) -> None:
    devices = [device for stage in stages for device in stage.devices]
    if schedule is PipelineSchedule.Interleaved and training and len(devices) != len(set(devices)):
        raise NotImplementedError(
            "The pipelining schedule 'Interleaved' does not currently support multiple pipeline stages on the same "
            "device for training graphs. Please use a different pipeline schedule."
        )
    if schedule is PipelineSchedule.Sequential and serialization > 1 and len(set(devices)) != 1:
        raise NotImplementedError(
            "When using batch serialization, all the pipeline stages need to be mapped to a single IPU."
        )


def _stage_options(count: int, arguments: PipelineArguments, training: bool) -> list[StageOptions]:
    """Options of each stage."""
    forward, backward = (
        arguments.forward_propagation_stages_poplar_options,
        arguments.backward_propagation_stages_poplar_options,
    )
    update = arguments.weight_update_poplar_options
    checked = _checked_options(count, forward, "forward_propagation_stages_poplar_options")
    if training:
        # Backward options are checked before they are compared, so that a wrong kind is named as such.
        backward_options = _checked_options(count, backward, "backward_propagation_stages_poplar_options")
        if update is not None and not isinstance(update, PipelineStageOptions):
            raise TypeError(
                f"weight_update_poplar_options to be of type PipelineStageOptions, but got {update} instead."
            )
        if backward is not None and [o.plans() for o in backward_options] != [o.plans() for o in checked]:
            raise NotImplementedError(
                "pipeline: backward_propagation_stages_poplar_options with other options than "
                "forward_propagation_stages_poplar_options: gradients take the options of their forward products"
            )
    return [o.plans() for o in checked]


def _checked_options(count: int, options: Any, name: str) -> list[PipelineStageOptions]:
    if options is None:
        return [PipelineStageOptions() for _ in range(count)]
    if not isinstance(options, (list, tuple)):
        raise TypeError(f"{name} must be a list or a tuple of PipelineStageOptions objects.")
    if len(options) != count:
        raise ValueError(
            f"{name} must be a list or a tuple of PipelineStageOptions objects of length {count} (same number as the "
            f"number of computational stages) but is {len(options)}."
        )
    for option in options:
        if not isinstance(option, PipelineStageOptions):
            raise TypeError(
                f"Expected all elements of {name} to be of type PipelineStageOptions, but got {option} instead."
            )
    return list(options)


def _check_outfeed(arguments: PipelineArguments) -> None:
    queue, loss, mask = arguments.outfeed_queue, arguments.outfeed_loss, arguments.outfeed_mask
    optimizer_function = arguments.optimizer_function
    if mask and not optimizer_function:
        raise ValueError("An optimizer_function must be provided when outfeed_mask is set.")
    if loss and not optimizer_function:
        raise ValueError("An optimizer_function must be provided when outfeed_loss is True.")
    if loss and mask:
        raise ValueError("Only one of `outfeed_loss` and `outfeed_mask` can be set.")
    if loss and not queue:
        raise ValueError("An outfeed_queue must be provided when outfeed_loss is True")
    if arguments.accumulate_outfeed:
        if not queue:
            raise ValueError("An outfeed_queue must be provided when accumulate_outfeed is True.")
        if queue._outfeed_mode is not IPUOutfeedMode.ALL:
            raise ValueError("To accumulate the outfeed, it must be in IPUOutfeedMode ALL.")


def _micro_batches(count: Any, schedule: PipelineSchedule, stages: int, training: bool) -> int:
    """The number of micro-batches, checked against the schedule (``pipeline_visitor.cc:588-650``)."""
    if tf.is_tensor(count) or isinstance(count, tf.Variable):
        known = tf.get_static_value(count) if tf.is_tensor(count) else None
        if known is None:
            raise NotImplementedError(
                "pipeline: gradient_accumulation_count as a tensor: the number of micro-batches has to be known when "
                "the program is built"
            )
        count = int(known)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _LARGEST:
        raise ValueError(f"gradient_accumulation_count has to be an integer from 1 to {_LARGEST}, not {count!r}")
    if schedule is PipelineSchedule.Sequential:
        return count
    multiple = 2 * stages if schedule is PipelineSchedule.Grouped and training else stages
    if count % multiple:
        raise ValueError(
            f"The number of iterations of the pipeline must be a multiple of {multiple}, but it is {count}. This "
            "number might be called gradient_accumulation_count, or steps_per_execution, depending on the interface."
        )
    return count
