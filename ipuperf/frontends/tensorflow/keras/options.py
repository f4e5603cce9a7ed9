"""The IPU options of a model: gradient accumulation, pipelining, callbacks, queues; checked as upstream checks them.

Upstream: ``keras: keras/ipu/extensions/extensions_base.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from ..pipelining.accumulation import GradientAccumulationReductionMethod as Method

_OF_PIPELINE = {
    "gradient_accumulation_count": "gradient_accumulation_steps_per_replica",
    "device_mapping": "device_mapping",
    "accumulate_outfeed": "accumulate_outfeed",
}
_SET_BY_KERAS = (
    "computational_stages",
    "repeat_count",
    "inputs",
    "infeed_queue",
    "outfeed_queue",
    "optimizer_function",
    "reduction_method",
)
_SAVED = {
    "gradient_accumulation_steps_per_replica": "accumulation_steps",
    "pipelining_gradient_accumulation_steps_per_replica": "pipeline_steps",
    "pipelining_device_mapping": "device_mapping",
    "pipelining_accumulate_outfeed": "accumulate_outfeed",
    "asynchronous_callbacks": "asynchronous",
    "infeed_kwargs": "infeed",
    "outfeed_kwargs": "outfeed",
}
"""What a saved model calls the options, besides the reduction."""
_BY_KERAS, _NOT_COMPATIBLE = "automatically set by Keras", "not compatible with Keras"
_NOT_WITH_KERAS = ("outfeed_loss", "outfeed_mask", "batch_serialization_iterations")
_NORMALIZE = "experimental_normalize_gradients"


@dataclass
class Options:
    """What ``set_..._options`` of a model has set.

    Attributes:
        accumulation_steps: batches for each weight update of a model on one IPU (per replica); None: 1.
        accumulation_options: arguments of ``GradientAccumulationOptimizerV2``.
        pipeline_steps: batches for each weight update of a pipelined model (per replica).
        device_mapping: IPU of each stage.
        accumulate_outfeed: metrics are summed on the IPU and sent once for each weight update.
        pipeline_options: arguments of ``pipelining_ops.pipeline``.
        reduction: how gradients of batches are combined.
        asynchronous: callbacks are called for every batch.
        mean_metrics: metrics are means over the replicas; otherwise those of the last one.
        infeed, outfeed: arguments of the queues.
    """

    accumulation_steps: int | None = None
    accumulation_options: dict[str, Any] = field(default_factory=dict)
    pipeline_steps: int | None = None
    device_mapping: list[int] | None = None
    accumulate_outfeed: bool = False
    pipeline_options: dict[str, Any] = field(default_factory=dict)
    reduction: Method = Method.SUM
    asynchronous: bool = False
    mean_metrics: bool = False
    infeed: dict[str, Any] = field(default_factory=dict)
    outfeed: dict[str, Any] = field(default_factory=dict)

    def set_accumulation(self, steps: int | None, reduction: Any, options: Mapping[str, Any]) -> None:
        """Arguments of ``set_gradient_accumulation_options``.

        Raises:
            ValueError: no positive number of steps, an unknown reduction, or an argument that Keras sets itself.
        """
        parsed = Method.parse_reduction_method(reduction)
        _check_steps(steps)
        if "opt" in options:
            raise ValueError(
                "Found `opt` key in `gradient_accumulation_optimizer_kwargs`. This is not supported as the optimizer "
                "which the model has been compiled with is automatically wrapped."
            )
        if "num_mini_batches" in options:
            raise ValueError(
                "Found `num_mini_batches` key in `gradient_accumulation_optimizer_kwargs`. Set the "
                "`gradient_accumulation_steps_per_replica` argument to `set_gradient_accumulation_options` instead."
            )
        _check_normalize(options, "set_gradient_accumulation_options")
        self.reduction = parsed
        self.accumulation_steps = self.accumulation_steps if steps is None else steps
        self.accumulation_options = dict(options)

    def set_pipelining(
        self,
        steps: int | None,
        device_mapping: list[int] | None,
        accumulate_outfeed: bool | None,
        reduction: Any,
        options: Mapping[str, Any],
    ) -> None:
        """Arguments of ``set_pipelining_options``.

        Raises:
            ValueError: no positive number of steps, a mapping that is no list of integers, an unknown reduction, or an
                argument of ``pipeline`` that Keras sets itself or cannot use.
        """
        parsed = Method.parse_reduction_method(reduction)
        _check_steps(steps)
        if device_mapping is not None and not (
            isinstance(device_mapping, list)
            and all(isinstance(ipu, int) and not isinstance(ipu, bool) for ipu in device_mapping)
        ):
            raise ValueError("Expected `device_mapping` to be a list of integers.")
        _check_pipeline_options(options)
        self.reduction = parsed
        self.pipeline_steps = self.pipeline_steps if steps is None else steps
        self.device_mapping = self.device_mapping if device_mapping is None else device_mapping
        if accumulate_outfeed is not None:
            if not isinstance(accumulate_outfeed, bool):
                raise ValueError(f"Expected `accumulate_outfeed` to be True or False, but got {accumulate_outfeed!r}.")
            self.accumulate_outfeed = accumulate_outfeed
        self.pipeline_options = dict(options)

    def set_infeed(self, options: Mapping[str, Any]) -> None:
        """Arguments of ``set_infeed_queue_options``. ValueError: one that Keras sets itself."""
        _refuse(options, "kwargs", ("dataset", "infeed_spec", "element_spec"), _BY_KERAS)
        self.infeed = dict(options)

    def set_outfeed(self, options: Mapping[str, Any]) -> None:
        """Arguments of ``set_outfeed_queue_options``. ValueError: one that Keras cannot use."""
        _refuse(options, "kwargs", ("outfeed_mode", "device_ordinal"), _NOT_COMPATIBLE)
        self.outfeed = dict(options)

    def saved(self) -> dict[str, Any]:
        """What a saved model keeps: plain values (keyword arguments of optimizer and pipeline are not kept)."""
        values = {key: getattr(self, name) for key, name in _SAVED.items()}
        return {**values, "gradient_accumulation_reduction_method": self.reduction.name}

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Options:
        """The options that :meth:`saved` has written."""
        values = {name: copy(saved[key]) for key, name in _SAVED.items()}
        return cls(**values, reduction=Method[saved["gradient_accumulation_reduction_method"]])


def _check_steps(steps: Any) -> None:
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise ValueError(
            f"Expected `gradient_accumulation_steps_per_replica` to be a positive integer, but got {steps} instead."
        )


def _check_pipeline_options(options: Mapping[str, Any]) -> None:
    for name, instead in _OF_PIPELINE.items():
        if name in options:
            raise ValueError(
                f"Found `{name}` key in `pipelining_kwargs`. Set the `{instead}` argument to `set_pipelining_options` "
                "instead."
            )
    _refuse(options, "pipelining_kwargs", _SET_BY_KERAS, _BY_KERAS)
    _refuse(options, "pipelining_kwargs", _NOT_WITH_KERAS, _NOT_COMPATIBLE)
    _check_normalize(options, "set_pipelining_options")


def _refuse(options: Mapping[str, Any], where: str, names: Iterable[str], reason: str) -> None:
    for name in names:
        if name in options:
            raise ValueError(f"Found `{name}` key in `{where}`. This argument is {reason}.")


def _check_normalize(options: Mapping[str, Any], function: str) -> None:
    if _NORMALIZE in options:
        raise ValueError(
            f"Found `{_NORMALIZE}` argument to `{function}`. This argument has now been removed, use "
            "`gradient_accumulation_reduction_method` instead."
        )
