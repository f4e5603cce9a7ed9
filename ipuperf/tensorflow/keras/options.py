"""The IPU options of a model: gradient accumulation, pipelining, callbacks, queues; checked as upstream checks them.

Upstream: ``keras: keras/ipu/extensions/extensions_base.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..reduction import GradientAccumulationReductionMethod as Method

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
            self.accumulate_outfeed = bool(accumulate_outfeed)
        self.pipeline_options = dict(options)

    def set_infeed(self, options: Mapping[str, Any]) -> None:
        """Arguments of ``set_infeed_queue_options``. ValueError: one that Keras sets itself."""
        for name in ("dataset", "infeed_spec", "element_spec"):
            if name in options:
                raise ValueError(f"Found `{name}` key in `kwargs`. This argument is automatically set by Keras.")
        self.infeed = dict(options)

    def set_outfeed(self, options: Mapping[str, Any]) -> None:
        """Arguments of ``set_outfeed_queue_options``. ValueError: one that Keras cannot use."""
        for name in ("outfeed_mode", "device_ordinal"):
            if name in options:
                raise ValueError(f"Found `{name}` key in `kwargs`. This argument is not compatible with Keras.")
        self.outfeed = dict(options)

    def saved(self) -> dict[str, Any]:
        """What a saved model keeps: plain values (keyword arguments of optimizer and pipeline are not kept)."""
        return {
            "gradient_accumulation_steps_per_replica": self.accumulation_steps,
            "gradient_accumulation_reduction_method": self.reduction.name,
            "pipelining_gradient_accumulation_steps_per_replica": self.pipeline_steps,
            "pipelining_device_mapping": self.device_mapping,
            "pipelining_accumulate_outfeed": self.accumulate_outfeed,
            "asynchronous_callbacks": self.asynchronous,
            "infeed_kwargs": self.infeed,
            "outfeed_kwargs": self.outfeed,
        }

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Options:
        """The options that :meth:`saved` has written."""
        return cls(
            accumulation_steps=saved["gradient_accumulation_steps_per_replica"],
            reduction=Method[saved["gradient_accumulation_reduction_method"]],
            pipeline_steps=saved["pipelining_gradient_accumulation_steps_per_replica"],
            device_mapping=saved["pipelining_device_mapping"],
            accumulate_outfeed=saved["pipelining_accumulate_outfeed"],
            asynchronous=saved["asynchronous_callbacks"],
            infeed=dict(saved["infeed_kwargs"]),
            outfeed=dict(saved["outfeed_kwargs"]),
        )


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
    for name in _SET_BY_KERAS:
        if name in options:
            raise ValueError(f"Found `{name}` key in `pipelining_kwargs`. This argument is automatically set by Keras.")
    for name in _NOT_WITH_KERAS:
        if name in options:
            raise ValueError(f"Found `{name}` key in `pipelining_kwargs`. This argument is not compatible with Keras.")
    _check_normalize(options, "set_pipelining_options")


def _check_normalize(options: Mapping[str, Any], function: str) -> None:
    if _NORMALIZE in options:
        raise ValueError(
            f"Found `{_NORMALIZE}` argument to `{function}`. This argument has now been removed, use "
            "`gradient_accumulation_reduction_method` instead."
        )
