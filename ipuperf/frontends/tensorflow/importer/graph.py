"""The import of TensorFlow graphs: each op of a ``FuncGraph`` becomes ops of the IR.

How a front end calls it::

    graph = func_graph_from_py_func(name, function, args, kwargs)   # or a ConcreteFunction's .graph
    with CONTEXT.building(place):                                   # place: a Place (a frame of the front end)
        arguments = [..., *captured_values(graph)]                  # one value for each of graph.inputs
        values = import_graph(graph, arguments, place)              # one value for each of graph.outputs

``captured_values`` gives what an outermost graph captures: a :class:`Resource` for the handle of a variable (the place
says what it is: :meth:`Place.read`, :meth:`Place.assign`), an array for an eager tensor. Values are NumPy arrays where
they are known when the program is compiled, and tensors of the IR otherwise (:mod:`.values`); :meth:`Node.tensor` and
:func:`tensor_of` make a tensor of either.

Only what outputs and effects need is imported, in the graph's order. Ops without a counterpart, dynamic shapes and
callbacks of the host are one :class:`GraphError` with the op's name, type and the user's line. What only an IPU has
stands in a graph as a marker (:mod:`.markers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf.functions.arithmetic import identity
from ipuperf.ir import CONTEXT, DType, IrError, Tensor

from .arranged import Values, plain
from .counting import fold
from .errors import GraphError, hint
from .needed import PASSED_ON, SideEffects, needed_operations, passes_apart, reads_to_copy
from .node import Node
from .operations import OPERATIONS
from .origins import Origins
from .place import Place
from .sharing import EqualOps, storage_of
from .values import Resource, Value, resource_of

_EFFECTS = SideEffects(OPERATIONS)
_NEVER_CUSTOM = {"Const", "PartitionedCall", "StatefulPartitionedCall"}
"""Ops without gradients of the program's own; TensorFlow registers those of calls for each call."""


class Importer:
    """The import of one graph into one place.

    Attributes:
        place: where new ops go.
        graph: TensorFlow's.
        values: by the identity of TensorFlow's tensors.
        called: another graph calls this one, where its ops go.
        first: by the identity of the numbers that a ``Unique`` op gives: which of them are not repetitions.
        copied: identities of ops that read a variable whose value is used after the variable has changed.
        known: values of further tensors, which are not computed.
        equal: what has been made already, for equal ops.
        live: tensors that are a variable where it is, not a copy of its value.
    """

    def __init__(self, graph: tf.Graph, place: Place, *, called: bool = False) -> None:
        self.graph = graph
        self.called = called
        self.place = place
        self.values = Values()
        self.first: dict[int, Tensor] = {}
        self.copied: set[int] = set()
        self.known: dict[int, Value] = {}
        self._constants: dict[tuple[Any, ...], Tensor] = {}
        self.equal = EqualOps()
        self.live: set[Tensor] = set()
        self._origins = Origins()

    def run(
        self,
        inputs: Sequence[tf.Tensor],
        arguments: Sequence[Value],
        outputs: Sequence[tf.Tensor],
        targets: Sequence[Any],
        alone: bool = False,
    ) -> list[Value]:
        """Import what ``outputs`` and the effects among ``targets`` need; the values of ``outputs``."""
        if len(inputs) != len(arguments):
            raise ValueError(f"graph {self.graph!r} has {len(inputs)} inputs, {len(arguments)} values were given")
        self.values.update((id(t), value) for t, value in zip(inputs, arguments))
        self.values.update(self.known)
        operations = self._needed(outputs, targets, alone, self.known)
        self.copied = reads_to_copy(operations, outputs, _EFFECTS, called=self.called)
        names_before, start = (self.place.naming, self.place.location), len(self.place.graph.ops)
        try:
            for op in operations:
                if not op.outputs or any(id(t) not in self.values for t in op.outputs):
                    self._import(op)
        finally:
            self.place.naming, self.place.location = names_before
        self.place.imported(self.graph, start)
        look_up = self.values.arranged if self.called else self.values.__getitem__
        return [look_up(id(t)) for t in outputs]

    def value(self, tensor: tf.Tensor) -> Value:
        """The value of a tensor of this graph, imported now if nothing else has needed it so far.

        Raises:
            LookupError: the tensor belongs to another graph.
        """
        if id(tensor) not in self.values:
            if tensor.graph is not self.graph:
                raise LookupError(f"{tensor.name} is a tensor of another graph")
            for op in self._needed([tensor], [], True, self.values):
                self._import(op)
        return self.values[id(tensor)]

    def _needed(
        self, outputs: Sequence[tf.Tensor], targets: Sequence[Any], alone: bool, known: Mapping[int, Value]
    ) -> list[tf.Operation]:
        return needed_operations(
            self.graph, outputs, targets, _EFFECTS, alone=alone, known=known, differentiated=self.place.differentiated
        )

    def _import(self, op: tf.Operation) -> None:
        if passes_apart(op, self.place.differentiated):
            # Operands that nothing needs have no values.
            passed = [(id(t), id(u)) for t, u in zip(op.outputs, op.inputs) if id(u) in self.values]
            self.values.update((key, self.values.arranged(of)) for key, of in passed if key not in self.values)
            return
        operands = [self.values.arranged(id(t)) for t in op.inputs]
        node = Node(self, op)
        kind = op.type
        if operands and OPERATIONS.folds(kind) and all(type(v) is np.ndarray for v in operands):
            results = fold(op, operands)
        else:
            handler = OPERATIONS[kind]
            if handler is None:
                raise _unknown(node)
            self.place.naming = op.name.rpartition("/")[2]
            scope, self.place.location = self._origins.of(op)
            if not OPERATIONS.takes_arranged(kind):
                operands = [plain(v) for v in operands]
            with CONTEXT.scope(scope) if scope else nullcontext(), self.place.surroundings(op, operands):
                results = self._equal_or_made(node, handler, operands)
                # Only stages are differentiated here; elsewhere TensorFlow has written the gradients into the graph.
                if self.place.differentiated and kind not in _NEVER_CUSTOM and "_gradient_op_type" in op.node_def.attr:
                    results = self.place.custom_gradient(node, [plain(v) for v in operands], results)
        if len(results) != len(op.outputs):
            raise node.error(f"its import gave {len(results)} values for {len(op.outputs)} outputs")
        self.values.update((id(t), value) for t, value in zip(op.outputs, results))

    def _equal_or_made(self, node: Node, handler: Any, operands: Sequence[Value]) -> list[Value]:
        """What an equal op has given, or what the handler makes."""
        # An op that can be folded depends on its operands alone, so equal ones give equal results.
        op, graph, shared = node.op, self.place.graph, OPERATIONS.folds(node.op.type)
        equal = self.equal.find(op, operands) if shared else None
        if equal is not None:
            return equal
        start = len(graph.ops)
        results = [self._own(value, op.type) for value in _made(node, handler, operands)]
        self.equal.ran(graph.ops[start:])
        if shared:
            self.equal.add(op, operands, results)
        return results

    def _own(self, value: Value, kind: str) -> Value:
        """The result of an op, or a copy of it where the op changes nothing (``v * 1``, ``v[:]``) and the result is the
        variable itself, which may change before the result is used."""
        if kind in PASSED_ON or kind == "ReadVariableOp" or not isinstance(value, Tensor):
            return value
        return identity(value) if storage_of(value) in self.live else value

    def constant(self, value: np.ndarray, dtype: DType) -> Tensor:
        """An array as a constant of the place's graph; equal small ones are made once."""
        # Only small arrays are worth a comparison of their contents.
        if value.size > 64:
            return self.place.graph.constant(np.asarray(value, dtype.numpy), dtype, "constant")
        array = np.array(value, dtype.numpy)
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.place.graph.constant(array, dtype, "constant")
        return self._constants[key]

    def inside(self, place: Place) -> Importer:
        """An importer of the same graph's calls into a place inside of this one."""
        return Importer(self.graph, place, called=self.called)

    def uses(self, graph: FuncGraph, index: int, results: Sequence[int]) -> bool:
        """Whether the results of these numbers, or effects, of a function use its input ``index``."""
        outputs = [graph.outputs[i] for i in results]
        needed = needed_operations(graph, outputs, graph.control_outputs, _EFFECTS)
        argument = graph.inputs[index]
        return any(t is argument for op in needed for t in op.inputs) or any(t is argument for t in outputs)

    def call(self, graph: FuncGraph, arguments: Sequence[Value], results: int | None = None) -> list[Value]:
        """Import the body of a function where its call stands; the values that it returns.

        Args:
            results: how many values the call has, the first of the function's (default: all). TensorFlow appends what a
                backward pass reads to the outputs of a graph, also where a call made without a tape shares the graph.
        """
        importer = Importer(graph, self.place, called=True)
        # The body becomes part of the caller's graph, so both share what has been made there.
        importer._constants, importer.equal, importer.live = self._constants, self.equal, self.live
        return importer.run(graph.inputs, arguments, graph.outputs[:results], graph.control_outputs)


def _made(node: Node, handler: Any, operands: Sequence[Value]) -> list[Value]:
    try:
        results = handler(node, *operands)
    # These name the op and the user's line already.
    except GraphError:
        raise
    except (IrError, NotImplementedError) as error:
        raise node.error(str(error)) from error
    if results is None:
        return []
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _unknown(node: Node) -> GraphError:
    return node.error(
        f"this op has no counterpart on the IPU here (docs/reference/tensorflow-operations.md lists those that have); "
        f"{hint(node.op.type)}"
    )


def import_graph(
    graph: FuncGraph,
    arguments: Sequence[Value],
    place: Place,
    outputs: Sequence[tf.Tensor] | None = None,
    targets: Sequence[tf.Operation] | None = None,
    *,
    alone: bool = False,
    known: Mapping[int, Value] | None = None,
) -> list[Value]:
    """Import a graph.

    Args:
        graph: TensorFlow's.
        arguments: values of ``graph.inputs``, of which the last are those of its captures (:func:`captured_values`).
        place: where its ops go; the caller has made it the active builder.
        outputs: what is wanted; default: what the graph returns.
        targets: ops whose effects, and those of the ops that they wait for, are wanted; default: those that the graph
            returns.
        alone: without the ops that ``targets`` only wait for.
        known: values of tensors that are not computed then, by their identity.

    Returns:
        The values of ``outputs``.

    Raises:
        GraphError: an op without counterpart, a dynamic shape, a callback of the host.
    """
    tensors = graph.outputs if outputs is None else outputs
    effects = graph.control_outputs if targets is None else targets
    importer = Importer(graph, place)
    importer.known = dict(known or {})
    return importer.run(graph.inputs, arguments, list(tensors), list(effects), alone)


def captured_values(graph: FuncGraph) -> list[Value]:
    """Values of what an outermost graph captures, in the order of its captures.

    Raises:
        GraphError: it captures a tensor of another graph, which is an argument then.
    """
    values: list[Value] = []
    for outside, inside in graph.captures:
        if outside.dtype == tf.resource:
            values.append(resource_of(outside))
        elif hasattr(outside, "numpy"):
            values.append(np.asarray(outside.numpy()))
        else:
            raise GraphError(
                f"graph {graph.name!r} uses tensor {outside.name!r} of a graph around it ({inside.name!r}): pass it as "
                "an argument"
            )
    return values


def tensor_of(value: Value, place: Place) -> Tensor:
    """A value as a tensor of the place's graph.

    Raises:
        GraphError: it is the handle of a variable or a list.
    """
    value = plain(value)
    if isinstance(value, Tensor):
        return place.get(value)
    if isinstance(value, np.ndarray):
        return place.constant(value, None)
    raise GraphError(f"{'a variable' if isinstance(value, Resource) else value!r} is no tensor of numbers")
