"""One run of the IPU for each execution: a model's steps as a loop or a pipeline, with its queues.

It stands on the public interface alone: ``IPUStrategy.run``, ``compiling.repeat``, ``pipelines.pipeline``, queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tf_keras.src.engine import data_adapter

from ..importer.collectives import apart, mean_at_end
from . import scopes
from .data import DataFeed
from .optimizers import KerasOptimizer, UnscalingOptimizer, check_minimize, overridden, scaled_loss, scales_loss
from .options import Options
from .stages import KerasStages, StagedModel

Step = Callable[[Any], Any]
Finish = Callable[..., Any]


def train_step(model: Any, accumulation: int, options: dict[str, Any], reduction: Any) -> Step:
    """A step of training; gradients of ``accumulation`` steps are combined before the weights are updated."""
    if accumulation > 1:
        return _accumulating(model, accumulation, options, reduction)
    method = overridden(model.optimizer, "get_gradients", "compute_gradients")
    if method == "get_gradients" or (method and hasattr(model.optimizer, "get_grads")):
        tf.get_logger().warning(
            f"`{method}` of {type(model.optimizer).__name__} acts with gradient accumulation and in pipelines only: "
            "Keras' own training takes its gradients from a tape."
        )
    return model.train_step


def _accumulating(model: Any, accumulation: int, options: dict[str, Any], reduction: Any) -> Step:
    from ..pipelining.accumulation import GradientAccumulationOptimizerV2

    check_minimize(model.optimizer)
    optimizer = GradientAccumulationOptimizerV2(
        KerasOptimizer(model.optimizer), accumulation, reduction_method=reduction, **options
    )

    def step(data: Any) -> Any:
        x, y, weights = data_adapter.unpack_x_y_sample_weight(data)
        predictions = model(x, training=True)
        loss = model.compute_loss(x, y, predictions, weights)
        model._validate_target_and_loss(y, loss)
        pairs = optimizer.compute_gradients(loss, model.trainable_variables)
        # Metrics wait for the update, so that it is not dropped as something that no result needs.
        with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
            return tf.nest.map_structure(tf.identity, model.compute_metrics(x, y, predictions, weights))

    return step


def finishing(model: Any, share: float, *, trains: bool) -> Finish:
    """The end of the last stage: in training ``(loss, metrics)``, in evaluation the metrics, which are times
    ``share``."""
    check_losses(model)

    def finish(y: Any, predictions: Any, weights: Any, losses: Sequence[Any]) -> Any:
        loss = model.compiled_loss(y, predictions, weights, regularization_losses=list(losses))
        if trains:
            model._validate_target_and_loss(y, loss)
        model.compiled_metrics.update_state(y, predictions, weights)
        results = model.get_metrics_result()
        if share != 1:
            # The outfeed adds up all micro-batches, so each sends its share of the mean.
            results = tf.nest.map_structure(lambda metric: metric * share, results)
        return (loss, results) if trains else results

    return finish


def check_losses(model: Any) -> None:
    """A pipelined model computes its loss as Keras does, of what stages have. RuntimeError: it has a way of its own."""
    from tf_keras import Model

    for name in ("compute_loss", "compute_metrics"):
        if getattr(type(model), name) is not getattr(Model, name):
            raise RuntimeError(
                f"The function `{name}` for the model {model.name} has been overridden. This is not supported for "
                "pipelined Keras models."
            )
    for layer in [model, *model._flatten_layers(include_self=False)]:
        if isinstance(layer, Model) and layer._callable_losses:
            raise RuntimeError(
                f"The model {layer.name} has a loss that is a function (`add_loss(lambda: ...)`), which belongs to no "
                "pipeline stage: add it to the layer whose weights it reads, or add a tensor."
            )


@dataclass
class ModelExecution:
    """What a program does.

    Attributes:
        mode: train, test or predict.
        steps: batches of an execution, on each replica.
        accumulation: batches of a weight update, or of a pipeline without one.
        layout: stages of a pipelined model; None: one IPU.
        replicas: how many replicas there are.
    """

    model: Any
    mode: str
    steps: int
    accumulation: int
    options: Options
    layout: StagedModel | None
    replicas: int

    @property
    def accumulates_outfeed(self) -> bool:
        """Whether the IPU sums up results and sends them once for each weight update."""
        return self.layout is not None and self.options.accumulate_outfeed and self.mode != "predict"


class Results:
    """What an execution has sent.

    Args:
        structure: of the results of one step.
        flat: an array for each, ``[steps, ...]``, or ``[steps, replicas, ...]`` of several replicas.
        replicas: how many replicas there are.
        mean: logs are means over the replicas; otherwise those of the last one.
    """

    def __init__(self, structure: Any, flat: Sequence[np.ndarray], replicas: int, mean: bool) -> None:
        self._structure = structure
        self._flat = flat
        self._replicas = replicas
        self._mean = mean

    def last(self) -> Any:
        """Logs of the last step."""
        return self._log(-1)

    def each_log(self) -> Iterator[Any]:
        """Logs of each step."""
        return (self._log(step) for step in range(len(self._flat[0])))

    def merged(self) -> Any:
        """Predictions of all steps and replicas, ``[steps * replicas * batch, ...]``, in the order of the data."""
        # Axes in front: steps and batch, with the replicas between them where there are several.
        dimensions = 2 if self._replicas == 1 else 3
        return self._pack([a.reshape(-1, *a.shape[dimensions:]) for a in self._flat])

    def each(self) -> Iterator[Any]:
        """Predictions of each step, ``[replicas * batch, ...]``."""
        dimensions = 1 if self._replicas == 1 else 2
        for step in range(len(self._flat[0])):
            yield self._pack([a[step].reshape(-1, *a[step].shape[dimensions:]) for a in self._flat])

    def _log(self, step: int) -> Any:
        values = [a[step] for a in self._flat]
        if self._replicas > 1 and not self._mean:
            # Upstream shows the last replica's logs, unless the mean is asked for.
            values = [value[-1] for value in values]
        elif self._replicas > 1:
            # The mean is taken in float64: a float16 sum over replicas would round.
            values = [value.mean(axis=0, dtype=np.float64).astype(value.dtype) for value in values]
        return self._pack(values)

    def _pack(self, values: Sequence[np.ndarray]) -> Any:
        return tf.nest.pack_sequence_as(self._structure, [tf.constant(value) for value in values])


class Program:
    """A program for data like those of ``feed``, compiled at its first run.

    Simplification: where a pipeline sums up its results, each weight update is a run of its own.
    """

    def __init__(self, work: ModelExecution, feed: DataFeed) -> None:
        from ..programs.infeed import IPUInfeedQueue
        from ..programs.outfeed import IPUOutfeedQueue

        self._work = work
        self._element = feed.element
        self._feed: DataFeed | None = feed
        self._infeed = IPUInfeedQueue(feed.dataset, **work.options.infeed)
        self._outfeed = IPUOutfeedQueue(**work.options.outfeed)
        self._structure: Any = None
        self._runs = work.steps // work.accumulation if work.accumulates_outfeed else 1
        self._function = tf.function(
            self._named(self._loop if work.layout is None else self._pipeline), jit_compile=True
        )

    def run(self, feed: DataFeed) -> Results:
        """One execution on the next batches of ``feed``."""
        # A new dataset takes the place of the old one, and the compiled program stays.
        if feed is not self._feed:
            self._infeed.replace_dataset(feed.dataset)
            self._feed = feed
        # With summed results one run is one weight update (see the class).
        for _ in range(self._runs):
            self._work.model.distribute_strategy.run(self._function)
        flat = [np.asarray(array) for array in self._outfeed.dequeue()]
        return Results(self._structure, flat, self._work.replicas, self._work.options.mean_metrics)

    def stop(self, feed: DataFeed) -> None:
        """End the reading of ``feed``, if it is this program's: its threads would last as long as the process."""
        if feed is self._feed:
            self._infeed.stop()
            self._feed = None

    def _named(self, build: Callable[[], None]) -> Callable[[], None]:
        """``build`` under the name of the program in reports: of the model and what is done with it."""

        def program() -> None:
            with scopes.program():
                build()

        # tf.function takes the name of the program from here.
        program.__name__ = f"{self._work.model.name}_{self._work.mode}"
        return program

    # -- one IPU -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        from ..facade import compiling

        step = self._step()

        def body(*tensors: Any) -> Any:
            results = step(self._element.pack(tensors))
            # The structure shows only while the step is traced, so it is noted here.
            self._structure = tf.nest.map_structure(lambda tensor: None, results)
            return self._outfeed.enqueue(tuple(tf.nest.flatten(results)))

        compiling.repeat(self._work.steps, body, [], self._infeed)
        self._merge_metrics()

    def _merge_metrics(self) -> None:
        """Each replica goes on with the metrics' state that it has, or all with the mean, which the host has too."""
        if self._work.replicas > 1 and self._work.mode != "predict":
            states = [variable for metric in self._work.model.metrics for variable in metric.variables]
            if self._work.options.mean_metrics:
                mean_at_end([variable for variable in states if variable.dtype.is_floating])
            else:
                apart(states)

    def _step(self) -> Step:
        work = self._work
        if work.mode == "train":
            options = work.options
            return train_step(work.model, work.accumulation, options.accumulation_options, options.reduction)
        return work.model.test_step if work.mode == "test" else work.model.predict_step

    # -- several IPUs ------------------------------------------------------------------------------------------------

    def _pipeline(self) -> None:
        from ..facade import pipelines
        from ..pipelining.model import OptimizerFunctionOutput

        work, options = self._work, self._work.options
        training = work.mode == "train"
        if training:
            check_minimize(work.model.optimizer)

        def optimizer_function(loss: Any, *_: Any) -> Any:
            variables, optimizer = work.model.trainable_variables, work.model.optimizer
            applied = UnscalingOptimizer(optimizer) if scales_loss(optimizer) else optimizer
            scaled = scaled_loss(optimizer, loss)
            return OptimizerFunctionOutput(applied, scaled, variables=variables)

        pipelines.pipeline(
            self._stages(),
            gradient_accumulation_count=work.accumulation,
            # Where each update is a run of its own, the pipeline repeats nothing.
            repeat_count=work.steps // work.accumulation // self._runs,
            inputs=[],
            infeed_queue=self._infeed,
            outfeed_queue=self._outfeed,
            optimizer_function=optimizer_function if training else None,
            device_mapping=options.device_mapping,
            accumulate_outfeed=work.accumulates_outfeed,
            # The loss is for the optimiser only; the metrics are sent.
            outfeed_mask=[True, False] if training else None,
            reduction_method=options.reduction,
            **options.pipeline_options,
        )
        self._merge_metrics()

    def _stages(self) -> Any:
        work = self._work
        assert work.layout is not None
        share = 1 / work.accumulation if work.accumulates_outfeed else 1
        end = None
        if work.mode != "predict":
            end = finishing(work.model, share, trains=work.mode == "train")
        functions = KerasStages(work.model, work.layout, self._element, work.mode == "train", end).functions()
        return [*functions[:-1], self._noting(functions[-1])]

    def _noting(self, final: Callable[..., Any]) -> Callable[..., Any]:
        """The ``final`` stage, with the structure of what is sent noted."""

        def stage(*tensors: Any) -> Any:
            results = final(*tensors)
            loss, sent = results if self._work.mode == "train" else (None, results)
            self._structure = tf.nest.map_structure(lambda tensor: None, sent)
            flat = tuple(tf.nest.flatten(sent))
            return flat if loss is None else (loss, flat)

        return stage
