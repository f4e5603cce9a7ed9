"""The methods that models have on the IPU, and ``tf.keras.ipu``.

Upstream: IPU TensorFlow User Guide, Keras Python API (``keras.ipu.extensions``).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from .extension import extension
from .staging import checked, print_summary, unassigned


class ModelExtension:
    """Methods of a model made inside an ``IPUStrategy``."""

    def set_gradient_accumulation_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
        **gradient_accumulation_optimizer_kwargs: Any,
    ) -> None:
        """How a model that is not pipelined accumulates gradients.

        Args:
            gradient_accumulation_steps_per_replica: batches for each weight update, on each replica; it has to divide
                ``steps_per_execution``.
            gradient_accumulation_reduction_method: sum, mean or running mean of the gradients of these batches.
            gradient_accumulation_optimizer_kwargs: arguments of ``GradientAccumulationOptimizerV2``.

        Raises:
            ValueError: a number, method or argument that is not allowed.
        """
        side = extension(self)
        side.options.set_accumulation(
            gradient_accumulation_steps_per_replica,
            gradient_accumulation_reduction_method,
            gradient_accumulation_optimizer_kwargs,
        )
        side.reset()

    def set_pipelining_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: list[int] | None = None,
        accumulate_outfeed: bool | None = None,
        gradient_accumulation_reduction_method: Any = "sum",
        **pipelining_kwargs: Any,
    ) -> None:
        """How a pipelined model runs.

        Args:
            gradient_accumulation_steps_per_replica: batches for each weight update, on each replica; it has to divide
                ``steps_per_execution``.
            device_mapping: the IPU of each stage.
            accumulate_outfeed: send the sum of the metrics of these batches, divided by their number, once.
            gradient_accumulation_reduction_method: sum, mean or running mean of the gradients of these batches.
            pipelining_kwargs: arguments of ``pipelining_ops.pipeline``.

        Raises:
            ValueError: a number, mapping, method or argument that is not allowed.
        """
        side = extension(self)
        side.options.set_pipelining(
            gradient_accumulation_steps_per_replica,
            device_mapping,
            accumulate_outfeed,
            gradient_accumulation_reduction_method,
            pipelining_kwargs,
        )
        side.reset()

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Whether callbacks are called for every batch, also when an execution has several."""
        extension(self).options.asynchronous = bool(asynchronous)

    def set_metrics_options(self, mean_over_replicas: bool = False) -> None:
        """Whether metrics are means over the replicas; otherwise those of the last one, as upstream (which has no such
        option). It is not saved with the model."""
        side = extension(self)
        side.options.mean_metrics = bool(mean_over_replicas)
        side.reset()

    def set_infeed_queue_options(self, **kwargs: Any) -> None:
        """Arguments of the ``IPUInfeedQueue`` of ``fit``, ``evaluate`` and ``predict``. ValueError: not allowed."""
        side = extension(self)
        side.options.set_infeed(kwargs)
        side.reset()

    def set_outfeed_queue_options(self, **kwargs: Any) -> None:
        """Arguments of their ``IPUOutfeedQueue``. ValueError: not allowed."""
        side = extension(self)
        side.options.set_outfeed(kwargs)
        side.reset()

    def export_for_ipu_serving(self, export_dir: str, batch_size: int | None = None, **arguments: Any) -> Any:
        """``serving.export_keras`` of this model; ``arguments`` are its other ones."""
        # The facade stands on pipelines, and these on Keras.
        from ..facade.serving import export_keras

        return export_keras(self, export_dir, batch_size, **arguments)

    def get_pipeline_stage_assignment(self) -> list[Any]:
        """The stage of each call of a layer, in order: what was set, or assignments without a stage.

        Raises:
            RuntimeError: a subclass of ``Model`` that has not been built.
        """
        side = extension(self)
        return list(side.assignments) if side.assignments else unassigned(self)

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: list[Any]) -> None:
        """Pipeline the model: an assignment for each call of a layer (``Sequential``: or a number for each layer).

        Raises:
            ValueError: no valid assignment; RuntimeError: a subclass of ``Model`` that has not been built.
        """
        extension(self).assign(checked(self, pipeline_stage_assignment))

    def reset_pipeline_stage_assignment(self) -> None:
        """The model is not pipelined any more."""
        extension(self).assign([])

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], Any] | None = None
    ) -> None:
        """Print the stage of each call of a layer; ``line_length``: characters of a line."""
        print_summary(self, self.get_pipeline_stage_assignment(), line_length, print_fn)


class FunctionalExtension(ModelExtension):
    """Methods of a ``Functional`` model made inside an ``IPUStrategy``: those of :class:`ModelExtension`."""


class SequentialExtension(ModelExtension):
    """Methods of a ``Sequential`` model made inside an ``IPUStrategy``: those of :class:`ModelExtension`."""


def public() -> dict[str, Any]:
    """The methods by name."""
    return {name: value for name, value in vars(ModelExtension).items() if not name.startswith("_")}


def namespace() -> ModuleType:
    """``tf.keras.ipu``."""
    from .. import keras

    return keras
