"""The functions of a pipelined model's stages.

Stage 0 takes an element of the dataset, each later stage what the one before it hands on: the tensors that it or a
later stage reads (each once), their masks, targets and sample weights, and the losses of layers so far. The last stage
computes the losses and metrics, or returns the predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
from tf_keras.src.utils.losses_utils import cast_losses_to_common_dtype

from .data import Element
from .graphs import assert_compatible, within_call
from .layout import ADDITIONS, Call, Key, StagedModel


@dataclass
class StageState:
    """What a stage works on.

    Attributes:
        values: tensors by key.
        rest: targets and sample weights, flat.
        losses: of layers (activity and weight regularisation, ``add_loss``).
    """

    values: dict[Key, Any]
    rest: list[Any]
    losses: list[Any]


class KerasStages:
    """The stages of ``layout`` as functions of tensors.

    Args:
        model: the model that is trained.
        layout: its calls in stages.
        element: structure of the elements of the dataset.
        training: whether layers are called for training.
        finish: makes the results of the last stage of targets, predictions, sample weights and losses; None: they are
            the predictions.
    """

    def __init__(
        self,
        model: Any,
        layout: StagedModel,
        element: Element,
        training: bool,
        finish: Callable[..., Any] | None,
    ) -> None:
        self._model = model
        self._layout = layout
        self._element = element
        self._training = training
        self._finish = finish
        self._packing: list[Callable[[Sequence[Any]], StageState]] = []

    def functions(self) -> list[Callable[..., Any]]:
        """One function for each stage."""
        return [partial(self._run, stage) for stage in range(self._layout.stages)]

    def _run(self, stage: int, *arguments: Any) -> Any:
        del self._packing[stage:]
        with within_call(self._model, list(arguments), self._training):
            state = self._first(arguments) if stage == 0 else self._packing[stage - 1](arguments)
            for call in self._layout.calls:
                if call.stage == stage and not (self._finish is None and isinstance(call.layer, ADDITIONS)):
                    self._call(call, state)
            if stage == self._layout.stages - 1:
                return self._last(state)
            tensors, unpack = self._pack(stage, state)
            self._packing.append(unpack)
            return tensors

    def _first(self, arguments: Sequence[Any]) -> StageState:
        """The state of stage 0, from an element of the dataset."""
        x, y, weights = self._element.parts(arguments)
        graph = self._layout.graph
        inputs = graph._flatten_to_reference_inputs(x)
        assert_compatible(graph, inputs)
        values = {}
        for key, reference, tensor in zip(self._layout.inputs, graph.inputs, inputs):
            values[key] = graph._conform_to_reference_input(tensor, ref_input=reference)
        return StageState(values, [t for t in tf.nest.flatten((y, weights)) if t is not None], [])

    def _call(self, call: Call, state: StageState) -> None:
        reads = call.reads()
        values = {key[1]: [self._value(key, state)] * reads.count(key) for key in reads}
        arguments, named = call.node.map_arguments(values)
        call.layer._clear_losses()
        outputs = call.layer(*arguments, **named)
        if self._finish is not None:
            state.losses.extend(call.layer.losses)
        for key, tensor in zip(call.writes(), tf.nest.flatten(outputs)):
            state.values[key] = tensor

    def _value(self, key: Key, state: StageState) -> Any:
        alias = self._layout.aliases.get(key)
        if alias is None:
            return state.values[key]
        value = self._value(alias.of, state)
        if alias.model is None:
            return value
        mask = getattr(value, "_keras_mask", None)
        value = alias.model._conform_to_reference_input(value, ref_input=alias.reference)
        if mask is not None:
            value._keras_mask = mask
        return value

    def _pack(self, stage: int, state: StageState) -> tuple[list[Any], Callable[[Sequence[Any]], StageState]]:
        """The tensors for the next stage, and what makes them a state again there."""
        keys = self._layout.passed(stage)
        masked = [key for key in keys if getattr(state.values[key], "_keras_mask", None) is not None]
        losses = [tf.add_n(cast_losses_to_common_dtype(state.losses))] if state.losses else []
        groups = [
            [state.values[key] for key in keys],
            [state.values[key]._keras_mask for key in masked],
            state.rest,
            losses,
        ]
        return [t for group in groups for t in group], partial(_unpack, keys, masked, len(state.rest))

    def _last(self, state: StageState) -> Any:
        graph = self._layout.graph
        outputs = [self._value(key, state) for key in self._layout.outputs]
        predictions = tf.nest.pack_sequence_as(graph._nested_outputs, outputs)
        if self._finish is None:
            return predictions
        y, weights = self._element.targets(state.rest)
        return self._finish(y, predictions, weights, state.losses)


def _unpack(keys: Sequence[Key], masked: Sequence[Key], rest: int, tensors: Sequence[Any]) -> StageState:
    values = dict(zip(keys, tensors))
    for key, mask in zip(masked, tensors[len(keys) :]):
        values[key]._keras_mask = mask
    end = len(keys) + len(masked)
    return StageState(values, list(tensors[end : end + rest]), list(tensors[end + rest :]))
