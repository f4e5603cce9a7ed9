"""What a Keras model made inside an ``IPUStrategy`` has besides itself: options, stages, programs.

Upstream: ``keras: keras/ipu/extensions/extensions_base.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from . import scopes
from .data import DataFeed, IPUDataHandler
from .graphs import build_for, check_calls, graph_of, has_graph, is_sequential
from .options import Options
from .programs import ModelExecution, Program
from .stages import StagedModel, lay_out
from .staging import find_scoped

_ATTRIBUTE = "_ipu_extension"
_ARRAYS_SEEN: dict[str, int] = {}
_STEP = {"train": "train_step", "test": "test_step", "predict": "predict_step"}


class Extension:
    """The IPU's side of ``model``.

    Attributes:
        options: what ``set_..._options`` has set.
        assignments: stages of its layers; empty: it is not pipelined.
        valid: whether a ``Sequential`` model still has the layers that were assigned.
        handler: the data of the current ``fit``, ``evaluate`` or ``predict``.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.options = Options()
        self.assignments: list[Any] = []
        self.valid = True
        self.handler: IPUDataHandler | None = None
        self._programs: dict[Any, Program] = {}
        self._waiting: deque[Any] = deque()

    # -- stages ------------------------------------------------------------------------------------------------------

    def build(self, specification: Any) -> None:
        """Build the model for inputs of ``specification`` and take over the stages that scopes gave its layers."""
        build_for(self.model, specification)
        self.adopt_scopes()

    def adopt_scopes(self) -> None:
        """Take over the stages of ``PipelineStage`` blocks, if there are no assignments yet."""
        if not self.assignments and has_graph(self.model) and not is_sequential(self.model):
            self.assignments = find_scoped(self.model)

    def assign(self, assignments: Sequence[Any]) -> None:
        """New stages; the model is compiled anew."""
        self.assignments, self.valid = list(assignments), True
        self.reset()

    @property
    def pipelined(self) -> bool:
        """Whether layers have stages."""
        return bool(self.assignments)

    def layout(self) -> StagedModel:
        """The calls of the model in their stages.

        Raises:
            RuntimeError: the assignment does not belong to the model as it is now.
        """
        if not self.valid:
            raise RuntimeError(
                f"The pipeline stage assignment of {self.model.name} is not valid, as layers were added or removed. "
                "Call `set_pipeline_stage_assignment()` before executing again."
            )
        return lay_out(graph_of(self.model), self.assignments)

    def shards(self) -> int:
        """How many IPUs a replica has."""
        if not self.pipelined:
            return 1
        mapping = self.options.device_mapping
        return self.layout().stages if mapping is None else max(mapping) + 1

    def replicas(self) -> int:
        """How many replicas run. ValueError: the configured device has too few IPUs for one."""
        return scopes.replicas(self.shards())

    def reset(self) -> None:
        """Forget programs: options, stages or what was compiled have changed."""
        self._programs.clear()
        for mode in _STEP:
            setattr(self.model, f"{mode}_function", None)

    # -- steps -------------------------------------------------------------------------------------------------------

    def accumulation(self, steps_per_execution: int) -> int:
        """Batches for each weight update.

        Raises:
            ValueError: a pipelined model without the option; RuntimeError: it does not divide the steps.
        """
        options = self.options
        steps = options.pipeline_steps if self.pipelined else options.accumulation_steps
        if steps is None:
            if not self.pipelined:
                return 1
            if getattr(options.pipeline_options.get("pipeline_schedule"), "name", None) == "Sequential":
                return 1
            raise ValueError(
                "The model which you are attempting to train is pipelined, however "
                "`gradient_accumulation_steps_per_replica` has not been set through `set_pipelining_options()`. You "
                "need to set this value as pipelined models will perform gradient accumulation when training."
            )
        if steps_per_execution % steps:
            raise RuntimeError(
                f"The {'pipelined ' if self.pipelined else ''}model has been configured to use gradient accumulation "
                f"for training, however the current `steps_per_execution` value (set to {steps_per_execution}) is not "
                f"divisible by `gradient_accumulation_steps_per_replica` ({steps}). You need to adjust either "
                "`steps_per_execution` or `gradient_accumulation_steps_per_replica` to make sure that "
                "`steps_per_execution` is divisible by `gradient_accumulation_steps_per_replica`."
            )
        return steps

    def calls_every_step(self) -> bool:
        """Whether callbacks are called for every batch, not for every execution."""
        return self.options.asynchronous and not (self.pipelined and self.options.accumulate_outfeed)

    def function(self, mode: str) -> Any:
        """What Keras calls for one execution of ``mode``: train, test or predict.

        Raises:
            RuntimeError: the model runs eagerly, has a step or ``call`` of its own that cannot be, or steps do not fit;
            ValueError: as :meth:`accumulation`.
        """
        self._check(mode)
        if mode == "train" and self.handler is not None:
            self._tell_batch_size(self.handler)

        def execute(feed: Any) -> Any:
            return self._execute(mode, feed if isinstance(feed, DataFeed) else self._single(feed))

        return execute

    def _check(self, mode: str) -> None:
        model, step = self.model, _STEP[mode]
        if model.run_eagerly:
            raise RuntimeError(
                "Keras models cannot run eagerly when using `IPUStrategy`. Set `run_eagerly=False` when calling "
                "`compile`."
            )
        if self.pipelined:
            check_calls(model)
        overridden = getattr(type(model), step) is not getattr(tf_keras.Model, step)
        if overridden and self.pipelined:
            raise RuntimeError(
                f"The function `{step}` for the model {model.name} has been overridden. This is not supported for "
                "pipelined Keras models."
            )
        if overridden and mode == "train" and (self.options.accumulation_steps or 1) > 1:
            raise RuntimeError(
                f"The function `train_step` for the model {model.name} has been overridden. This is not supported for "
                "Keras models with gradient accumulation enabled."
            )

    def _single(self, iterator: Any) -> DataFeed:
        """The data of ``train_on_batch`` and its like.

        Raises:
            ValueError: there are several replicas.
        """
        self.handler = None
        element = next(iterator)
        dataset = tf.data.Dataset.from_tensors(element)
        self.build(DataFeed(dataset).element.parts_specification[0])
        if self.replicas() > 1:
            raise ValueError(
                f"One batch cannot be given to {self.replicas()} replicas; use `fit`, `evaluate` or `predict` with a "
                "dataset of several batches, or configure one IPU for each stage."
            )
        return DataFeed(dataset)

    def _execute(self, mode: str, feed: DataFeed) -> Any:
        """One run of the IPU's program; what Keras hands to the callbacks of its last batch."""
        # With asynchronous callbacks one execution answers as many calls of Keras as it has batches.
        if not self._waiting:
            steps = 1 if self.handler is None else self.handler.steps_per_execution
            results = self._program(mode, steps, feed).run(feed)
            getattr(self.model, f"_{mode}_counter").assign_add(steps)
            if not self.calls_every_step():
                return results.merged() if mode == "predict" else results.last()
            self._waiting.extend(results.each() if mode == "predict" else results.each_log())
        return self._waiting.popleft()

    def _program(self, mode: str, steps: int, feed: DataFeed) -> Program:
        accumulation = self.accumulation(steps) if mode == "train" else steps if self.pipelined else 1
        key = (mode, steps, accumulation, feed.signature())
        if key not in self._programs:
            layout = self.layout() if self.pipelined else None
            work = ModelExecution(self.model, mode, steps, accumulation, self.options, layout, self.replicas())
            self._programs[key] = Program(work, feed)
        return self._programs[key]

    def stop_feeding(self, feed: DataFeed) -> None:
        """The data are used up, or nobody asks for more of them."""
        for program in self._programs.values():
            program.stop(feed)

    # -- what is told ------------------------------------------------------------------------------------------------

    def before_epoch(self, handler: IPUDataHandler) -> None:
        """An epoch begins: nothing is left of an execution that was stopped."""
        self.handler = handler
        self._waiting.clear()
        if handler.steps_per_execution == 1:
            tf.get_logger().info(
                f"The model `{self.model.name}` makes 1 step in an execution; a larger `steps_per_execution` of "
                "`compile()` makes it faster."
            )

    def tell_of_arrays(self, x: Any, y: Any) -> None:
        """NumPy arrays that are given a second time could have been converted once."""
        calls = {"x": (x, "`fit()`, `predict()` and `evaluate()`"), "y": (y, "`fit()` and `evaluate()`")}
        for name, (value, functions) in calls.items():
            if isinstance(value, np.ndarray):
                _ARRAYS_SEEN[name] = _ARRAYS_SEEN.get(name, 0) + 1
                if _ARRAYS_SEEN[name] == 2:
                    tf.get_logger().warning(
                        f"{name} is of type `np.ndarray`, which every call of {functions} converts to `tf.Tensor`: "
                        "convert it once, before the calls."
                    )

    def _tell_batch_size(self, handler: IPUDataHandler) -> None:
        accumulation, replicas = self.accumulation(handler.steps_per_execution), handler.replicas
        parts = []
        if replicas > 1:
            parts.append(" distributed")
        if accumulation > 1:
            parts.append(f" and accumulating {accumulation} batches per optimizer step")
        if replicas > 1:
            parts.append(f" across {replicas} replicas")
        if parts:
            size = handler.batch_size * accumulation * replicas
            tf.get_logger().info(f"Training is{''.join(parts)}, your effective batch size is {size}.")


def extension(model: Any) -> Extension:
    """The extension of ``model``, made on first use.

    Raises:
        RuntimeError: the model was made outside an ``IPUStrategy``.
    """
    if not on_ipu(model):
        raise RuntimeError(
            f"Model {model.name} was not made inside `IPUStrategy.scope()`, so it has no IPU options. Make the model "
            "in the scope."
        )
    return vars(model).setdefault(_ATTRIBUTE, Extension(model))


def on_ipu(model: Any) -> bool:
    """Whether ``model`` was made inside an ``IPUStrategy``."""
    return scopes.is_ipu(getattr(model, "_distribution_strategy", None))
