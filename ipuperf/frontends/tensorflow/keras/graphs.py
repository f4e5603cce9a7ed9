"""Models as functional graphs: what a pipelined model is split by.

A ``Functional`` model is its own graph, a ``Sequential`` one is when its input's shape is known. A subclass of
``Model`` is called once with Keras inputs; what its ``call`` does becomes the graph, with the model's own layers.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.engine import base_layer_utils, functional, input_layer, input_spec

_ATTRIBUTE = "_ipu_graph"


def is_functional(model: Any) -> bool:
    """Whether ``model`` is a graph by itself."""
    return isinstance(model, functional.Functional) and not is_sequential(model)


def is_sequential(model: Any) -> bool:
    """Whether ``model`` is a list of layers."""
    return isinstance(model, tf_keras.Sequential)


def graph_of(model: Any) -> Any:
    """The functional graph of ``model``.

    Raises:
        RuntimeError: the shapes of its inputs are not known yet, or it is no graph.
    """
    if is_functional(model):
        return model
    if is_sequential(model):
        if not model._graph_initialized:
            raise RuntimeError(
                f"The Sequential model {model.name} cannot be represented as a graph network, this could be because:\n"
                " * The shape of its input is not known: give its first layer `input_shape`, or call `model.build`.\n"
                " * A layer in your model failed to evaluate.\n * The layer is dynamic and therefore not graph "
                "compatible."
            )
        return model
    graph = vars(model).get(_ATTRIBUTE)
    if graph is None:
        raise RuntimeError(
            f"The pipeline stages of model `{model.name}` are not known, as it has not been built yet. Please call "
            "`model.build()` first, or assign pipeline stages in its `call` with PipelineStage scopes."
        )
    return graph


def check_calls(model: Any) -> None:
    """A pipeline calls the layers of a model with a graph, never its ``call``. RuntimeError: it has one of its own."""
    for layer in [model, *model._flatten_layers(include_self=False)]:
        known = tf_keras.Sequential if is_sequential(layer) else functional.Functional if is_functional(layer) else None
        if known is not None and type(layer).call is not known.call:
            raise RuntimeError(
                f"model {layer.name} has a `call` of its own, which its pipeline would leave out: stages call the "
                f"layers of a {known.__name__} model one by one; put what it does into a layer"
            )


def has_graph(model: Any) -> bool:
    """Whether :func:`graph_of` has an answer."""
    return is_functional(model) or bool(
        model._graph_initialized if is_sequential(model) else vars(model).get(_ATTRIBUTE)
    )


def trace(model: Any, inputs: Any) -> Any:
    """Call a subclassed ``model`` with Keras inputs and keep the graph of what it does.

    Raises:
        NotImplementedError: the model has no ``call``.
    """
    if getattr(model.call, "__func__", None) is tf_keras.Model.call:
        raise NotImplementedError(
            f"The function `call` for the model {model.name} has not been implemented. When subclassing the `Model` "
            "class you must implement the `call` function."
        )
    _forget_calls(model)
    flat = tf.nest.map_structure(lambda tensor: tensor, inputs)
    arguments = {"training": None} if model._call_spec.expects_training_arg else {}
    with within_call(model, flat, None):
        outputs = model.call(flat, **arguments)
    graph = functional.Functional(inputs, outputs, name=f"{model.name}_graph")
    vars(model)[_ATTRIBUTE] = graph
    return graph


def within_call(model: Any, inputs: Any, training: bool | None) -> contextlib.AbstractContextManager[Any]:
    """In the block ``model`` is being called, so that its layers know the phase."""
    context = base_layer_utils.call_context()
    newer = "call_context_args" in inspect.signature(context.enter).parameters  # older: training
    phase = {"call_context_args": {"training": training}} if newer else {"training": training}
    entered: contextlib.AbstractContextManager[Any] = context.enter(model, inputs=inputs, build_graph=True, **phase)
    return entered


def _forget_calls(model: Any) -> None:
    """The calls of a graph that is made anew are counted from 0 again."""
    for layer in model._flatten_layers(include_self=False):
        if not isinstance(layer, input_layer.InputLayer) and not is_functional(layer) and not is_sequential(layer):
            layer._inbound_nodes.clear()
            layer._outbound_nodes.clear()


def keras_inputs(shapes: Any, types: Any = None) -> Any:
    """Keras inputs of ``shapes``: one, or a list or dictionary of them; a shape is a tuple with the batch size first,
    or a Keras input, which stays."""

    def one(shape: Any, dtype: Any) -> Any:
        return shape if hasattr(shape, "_keras_history") else tf_keras.Input(batch_shape=tuple(shape), dtype=dtype)

    if isinstance(shapes, dict):
        return {name: one(shapes[name], types[name] if types else None) for name in sorted(shapes)}
    if isinstance(shapes, (list, tuple)) and not all(d is None or isinstance(d, int) for d in shapes):
        return [one(shape, types[i] if types else None) for i, shape in enumerate(shapes)]
    return one(tuple(shapes) if isinstance(shapes, tf.TensorShape) else shapes, types)


def build_for(model: Any, specification: Any) -> None:
    """Build ``model`` for data of ``specification`` (``tf.TensorSpec`` in a structure) if it is not built yet."""
    shapes = tf.nest.map_structure(_shape, specification)
    types = tf.nest.map_structure(lambda spec: spec.dtype, specification)
    if is_functional(model):
        return
    if is_sequential(model):
        if not model._graph_initialized:
            if not isinstance(specification, tf.TensorSpec):
                raise RuntimeError(
                    f"Layers in a Sequential model should only have a single input, but we received a "
                    f"{type(specification).__name__}: {shapes}. Consider rewriting this model with the Functional API."
                )
            model._build_graph_network_for_inferred_shape(shapes, types)
        if not model.built:
            model.build(shapes)
    elif not has_graph(model):
        with contextlib.suppress(_NotAGraph):
            _trace_or_leave(model, shapes, types)


class _NotAGraph(Exception):
    """A model whose ``call`` works with tensors, but not with Keras inputs: it cannot be pipelined."""


def _trace_or_leave(model: Any, shapes: Any, types: Any) -> None:
    try:
        trace(model, keras_inputs(shapes, types))
    except NotImplementedError:
        raise
    except Exception as error:
        raise _NotAGraph from error


def _shape(specification: Any) -> tuple[int | None, ...]:
    """The shape of a tensor of a batch of any size."""
    return (None, *specification.shape.as_list()[1:])


def assert_compatible(graph: Any, inputs: Any) -> None:
    """The data suit the graph's inputs. ValueError: they do not."""
    input_spec.assert_input_compatibility(graph.input_spec, inputs, graph.name)
