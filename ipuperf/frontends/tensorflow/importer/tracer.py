"""The user's functions as TensorFlow graphs of their own: bodies of loops, stages, weight updates, whole programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import lift_to_graph
from tensorflow.python.framework import auto_control_deps, ops
from tensorflow.python.framework.func_graph import FuncGraph

from . import Place, Value, import_graph, resource_of
from .markers import is_marker, meaning_of
from .needed import functions_of


@dataclass
class TracedFunction:
    """A function in a graph of its own.

    Attributes:
        graph: the graph.
        arguments: its placeholders, in the order of the arguments' tensors.
        structure: what the function returned: tensors of the graph, operations, None.
        tensors: the tensors of it, in order.
        operations: the operations of it, in order.
    """

    graph: FuncGraph
    arguments: list[tf.Tensor]
    structure: Any = None
    tensors: list[tf.Tensor] = field(default_factory=list)
    operations: list[tf.Operation] = field(default_factory=list)

    @property
    def captured(self) -> list[tf.Tensor]:
        """Tensors and handles from outside that the function uses."""
        return [outside for outside, _ in self.graph.captures]

    @property
    def captures(self) -> list[tf.Tensor]:
        """What stands in the graph for :attr:`captured`."""
        return [inside for _, inside in self.graph.captures]

    @property
    def variables(self) -> list[Any]:
        """The variables that it uses, in the order of their first use."""
        known = {resource_of(v.handle): v for v in [*self.graph.variables, *self.graph._watched_variables]}
        used = [resource_of(t) for t in self.captured if t.dtype == tf.resource]
        return [known[resource] for resource in used if resource in known]

    @property
    def automatic(self) -> bool:
        """Whether effects take place without being returned (``tf.function``); in graphs of version 1 they do not."""
        return bool(self.graph._add_control_dependencies)

    @property
    def targets(self) -> list[tf.Operation]:
        """Ops whose effects take place."""
        return list(self.graph.control_outputs) if self.automatic else self.operations

    def build(
        self,
        place: Place,
        values: Sequence[Value],
        captured: Sequence[Value],
        outputs: Sequence[tf.Tensor] | None = None,
        only: Sequence[tf.Operation] | None = None,
        known: Mapping[int, Value] | None = None,
    ) -> list[Value]:
        """Import it: ``values`` for the arguments, ``captured`` for the captures; the values of its tensors.

        ``only``: these ops with effects instead of all; ``known``: values of tensors within, by their identity.
        """
        self.graph.inputs = [*self.arguments, *self.captures]
        tensors = self.tensors if outputs is None else list(outputs)
        effects = self.targets if only is None else list(only)
        return import_graph(
            self.graph, [*values, *captured], place, tensors, effects, alone=only is not None, known=known
        )


def trace(
    name: str,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    named: Mapping[str, Any] | None = None,
    *,
    automatic: bool | None = None,
) -> TracedFunction:
    """Call ``function`` in a new graph with placeholders.

    Args:
        arguments, named: tensors or specs, nested: the function gets placeholders of their shapes and types.
        automatic: whether effects keep their order and take place without being returned; default: as in the graph
            around this one.
    """
    outer = ops.get_default_graph()
    automatic = bool(outer._add_control_dependencies) if automatic is None else automatic
    graph = FuncGraph(name)
    with graph.as_default(), resource_variables():
        holders: list[tf.Tensor] = []

        def holder(value: Any) -> tf.Tensor:
            holders.append(tf.compat.v1.placeholder(value.dtype.base_dtype, value.shape, f"arg{len(holders)}"))
            return holders[-1]

        positional = [tf.nest.map_structure(holder, a) for a in arguments]
        keywords = {key: tf.nest.map_structure(holder, a) for key, a in (named or {}).items()}
        traced = TracedFunction(graph, holders)
        if not automatic:
            traced.structure = tf.nest.map_structure(_result, function(*positional, **keywords))
        else:
            with auto_control_deps.AutomaticControlDependencies() as control:
                returned = tf.nest.map_structure(_result, function(*positional, **keywords))
                traced.structure = tf.nest.map_structure(
                    lambda r: control.mark_as_return(r) if isinstance(r, tf.Tensor) else r, returned
                )
            graph.control_outputs.extend(control.ops_which_must_run)
            graph._add_control_dependencies = True
    flat = tf.nest.flatten(traced.structure)
    traced.tensors = [r for r in flat if isinstance(r, tf.Tensor)]
    traced.operations = [r for r in flat if isinstance(r, tf.Operation)]
    return traced


def _result(value: Any) -> Any:
    """A tensor of the active graph, an operation, or None."""
    if value is None or isinstance(value, tf.Operation):
        return value
    if isinstance(value, tf.IndexedSlices):
        value = tf.convert_to_tensor(value)
    graph = ops.get_default_graph()
    tensor = tf.convert_to_tensor(value)
    return graph.capture(tensor) if getattr(tensor, "graph", None) is not graph else tensor


@contextmanager
def resource_variables() -> Iterator[None]:
    """Variables made in the block are resource variables outside of the graph that is traced."""

    def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        arguments["use_resource"] = True
        arguments["caching_device"] = None  # a cached value would be read once, before the program's loops
        value = arguments.get("initial_value")
        if isinstance(value, tf.Tensor) and isinstance(getattr(value, "graph", None), FuncGraph):
            with ops.init_scope():
                if not tf.executing_eagerly():
                    lifted = lift_to_graph.lift_to_graph([value], ops.get_default_graph())
                    arguments["initial_value"] = lifted[value]
        return next_creator(**arguments)

    with tf.variable_creator_scope(create):
        yield


_READS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp", "Identity"}
)


def changed_handles(traced: TracedFunction) -> list[tf.Tensor]:
    """Of the handles that a function captures, those that it may change."""
    changed = _changed(traced.graph)
    return [outside for outside, inside in traced.graph.captures if id(inside) in changed]


def _changed(graph: tf.Graph) -> set[int]:
    """Identities of tensors of a graph that are handles of variables which its ops may change."""
    changed: set[int] = set()
    for op in graph.get_operations():
        handles = [t for t in op.inputs if t.dtype == tf.resource]
        if not handles or op.type in _READS:
            continue
        changed.update(id(op.inputs[i]) for i in _changed_inputs(op))
    return changed


def _changed_inputs(op: tf.Operation) -> Sequence[int]:
    """Which inputs of an op are handles that it may change."""
    everything = [i for i, t in enumerate(op.inputs) if t.dtype == tf.resource]
    if is_marker(op):
        known = getattr(meaning_of(op), "changed", None)
        return everything if known is None else known()
    graphs = functions_of(op)
    if not graphs:
        return everything
    offset = {"If": 1, "StatelessIf": 1, "Case": 1, "StatelessCase": 1}.get(op.type, 0)
    changed = set()
    for graph in graphs:
        inside = _changed(graph)
        changed |= {i + offset for i, t in enumerate(graph.inputs) if id(t) in inside}
    return [i for i in everything if i in changed]


def changed_by(op: tf.Operation) -> list[tf.Tensor]:
    """The handles that an op may change."""
    if op.type in _READS:
        return []
    return [op.inputs[i] for i in _changed_inputs(op)]


def changed_captures(traced: TracedFunction, start: int) -> list[int]:
    """Inputs of a marker that may change, where the captures of ``traced`` begin at input ``start``."""
    changed = _changed(traced.graph)
    return [start + i for i, t in enumerate(traced.captures) if id(t) in changed]
