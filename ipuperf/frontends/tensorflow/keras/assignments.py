"""Which pipeline stage each call of a layer runs in (``tf.keras.ipu.*PipelineStageAssignment``).

Upstream: ``keras: keras/ipu/extensions/pipeline_stage_assignment.py`` (IPU TensorFlow User Guide, Keras Python API).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class _OfOneCall:
    """The part of an assignment that says which call of a layer or an inner model it is of."""

    _called: Any
    _node_index: int

    @property
    def node_index(self) -> int:
        """Which call is assigned."""
        return self._node_index

    @property
    def inbound_layers(self) -> list[Any]:
        """The layers whose results this call reads."""
        return [node.layer for node in self._called._inbound_nodes[self._node_index].parent_nodes]


class SequentialLayerPipelineStageAssignment:
    """The stage of a layer of a ``Sequential`` model.

    Args:
        layer: the layer.
        pipeline_stage: number of its stage, from 0; None: not assigned yet.
    """

    is_nested_model = False

    def __init__(self, layer: Any, pipeline_stage: int | None = None) -> None:
        self._layer = layer
        self.pipeline_stage = pipeline_stage

    @property
    def layer(self) -> Any:
        """The layer that is assigned."""
        return self._layer

    def __str__(self) -> str:
        return f"Layer: {self.layer.name} is assigned to pipeline stage: {self.pipeline_stage}"


class ModelLayerPipelineStageAssignment(_OfOneCall, SequentialLayerPipelineStageAssignment):
    """The stage of one call of a layer in a subclass of ``Model``.

    Args:
        layer: the layer.
        node_index: which of its calls: 0 is the first one.
        pipeline_stage: number of its stage, from 0; None: not assigned yet.
    """

    def __init__(self, layer: Any, node_index: int, pipeline_stage: int | None = None) -> None:
        super().__init__(layer, pipeline_stage)
        self._called, self._node_index = layer, node_index

    def __str__(self) -> str:
        return (
            f"Layer: {self.layer.name} (node index {self.node_index}) is assigned to pipeline stage: "
            f"{self.pipeline_stage}"
        )


class FunctionalLayerPipelineStageAssignment(ModelLayerPipelineStageAssignment):
    """The stage of one call of a layer in a ``Functional`` model."""


class SequentialNestedModelPipelineStageAssignment:
    """The stages of the layers of a model that is a layer of a ``Sequential`` model.

    Args:
        nested_model: the inner model.
        pipeline_stage_assignments: one for each of its layers.
    """

    is_nested_model = True

    def __init__(self, nested_model: Any, pipeline_stage_assignments: Sequence[Any]) -> None:
        self._nested_model = nested_model
        self._assignments = list(pipeline_stage_assignments)

    @property
    def nested_model(self) -> Any:
        """The inner model."""
        return self._nested_model

    @property
    def pipeline_stage_assignments(self) -> list[Any]:
        """The assignments of its layers."""
        return list(self._assignments)

    def __str__(self) -> str:
        return f"Model: {self.nested_model.name} has the following pipeline stage assignments:" + self._lines()

    def _lines(self) -> str:
        return "".join(f"\n  {one}" for one in self._assignments)


class NestedModelPipelineStageAssignment(_OfOneCall, SequentialNestedModelPipelineStageAssignment):
    """The stages of the layers of one call of a model inside a subclass of ``Model``.

    Args:
        nested_model: the inner model.
        node_index: which of its calls: 0 is the first one.
        pipeline_stage_assignments: one for each call of its layers.
    """

    def __init__(self, nested_model: Any, node_index: int, pipeline_stage_assignments: Sequence[Any]) -> None:
        super().__init__(nested_model, pipeline_stage_assignments)
        self._called, self._node_index = nested_model, node_index

    def __str__(self) -> str:
        return (
            f"Model: {self.nested_model.name} (node index {self.node_index}) has the following pipeline stage "
            "assignments:" + self._lines()
        )


class FunctionalNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """The stages of the layers of one call of a model inside a ``Functional`` model."""
