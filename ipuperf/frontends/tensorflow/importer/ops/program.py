"""Constants, variables, calls of functions, markers, and ops that only order others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ipuperf.functions import arithmetic
from ipuperf.ir import Tensor

from ..arranged import plain
from ..markers import is_marker, meaning_of
from ..needed import function_of
from ..node import Node
from ..sharing import storage_of
from ..table import Family
from ..values import Value, resource_of

FAMILY = Family("Constants, variables, functions")
op = FAMILY.op


@op("Const")
def const(node: Node) -> np.ndarray:
    """An array, known when the program is compiled."""
    return tf.make_ndarray(node.op.get_attr("value"))


@op("Placeholder", "PlaceholderV2")
def placeholder(node: Node) -> Value:
    """Only graph inputs, whose values are given."""
    raise node.error("the placeholder is no argument of the program: pass it among the inputs of the compiled function")


@op("PlaceholderWithDefault")
def placeholder_with_default(_node: Node, value: Value) -> Value:
    """The default."""
    return value


@op("Identity", "Snapshot", "PreventGradient", "ReadVariableXlaSplitND", arranged=True)
def identity(_node: Node, value: Value) -> Value:
    """The value itself."""
    return value


@op("IdentityN", "OptionalFromValue", "OptionalGetValue", folds=False, arranged=True)
def identities(_node: Node, *values: Value) -> list[Value]:
    """The values themselves."""
    return list(values)


@op("StopGradient")
def stop_gradient(node: Node, value: Value) -> Value:
    """The value, through which no gradient of the program's own differentiation flows."""
    if isinstance(value, Tensor) and node.place.differentiated:
        return arithmetic.detach(value)
    return value


@op("EnsureShape")
def ensure_shape(node: Node, value: Value) -> Value:
    """The value; TensorFlow has compared the shapes."""
    node.shape()
    return value


@op("NoOp", "Assert", "ControlTrigger")
def nothing(_node: Node) -> None:
    """No op: what an assertion is computed from is not known when the program is compiled (as with XLA)."""
    return None


# -- variables ---------------------------------------------------------------------------------------------------------


@op("VarHandleOp")
def var_handle(node: Node) -> Value:
    """The handle of a variable that was made inside of the graph."""
    return resource_of(node.op.outputs[0])


@op("ReadVariableOp")
def read_variable(node: Node, handle: Value) -> Value:
    """The present value; a copy where it is used after the variable has changed."""
    value = node.place.read(node.resource(handle))
    if id(node.op) in node.importer.copied:
        return arithmetic.identity(value)
    node.importer.live.add(storage_of(value))
    return value


@op("AssignVariableOp", effect=True)
def assign_variable(node: Node, handle: Value, value: Value) -> None:
    """Another value."""
    node.place.assign(node.resource(handle), node.tensor(value))


@op("AssignAddVariableOp", effect=True)
def assign_add_variable(node: Node, handle: Value, value: Value) -> None:
    """The sum."""
    resource, added = node.resource(handle), node.tensor(value)
    target = node.place.in_place(resource)
    if target is None:
        node.place.assign(resource, arithmetic.add(node.place.read(resource), added))
    else:
        arithmetic.add_(target, added)


@op("AssignSubVariableOp", effect=True)
def assign_sub_variable(node: Node, handle: Value, value: Value) -> None:
    """The difference."""
    resource, taken = node.resource(handle), node.tensor(value)
    target = node.place.in_place(resource)
    if target is None or taken.dtype.is_integer:
        node.place.assign(resource, arithmetic.sub(node.place.read(resource), taken))
    else:
        arithmetic.scaled_add_(target, taken, 1.0, -1.0)


@op("VarIsInitializedOp")
def is_initialized(_node: Node, _handle: Value) -> np.ndarray:
    """True: the host has given every variable a value before a program runs."""
    return np.asarray(True)


@op("VariableShape")
def variable_shape(node: Node, handle: Value) -> np.ndarray:
    """The shape of a variable."""
    return np.array(node.place.read(node.resource(handle)).shape, node.attr("out_type").as_numpy_dtype)


@op("IteratorGetNext", "IteratorGetNextSync", effect=True)
def iterator_get_next(node: Node, handle: Value) -> Sequence[Value]:
    """The next element of a dataset's iterator, which the host feeds."""
    specs = [tf.TensorSpec(node.shape(i), t.dtype) for i, t in enumerate(node.op.outputs)]
    return node.place.next_element(node.resource(handle), specs)


# -- functions and markers ---------------------------------------------------------------------------------------------


@op("PartitionedCall", "StatefulPartitionedCall", folds=False, arranged=True)
def call(node: Node, *operands: Value) -> Sequence[Value]:
    """The function's ops where its call stands."""
    return node.importer.call(function_of(node.op, "f"), operands, len(node.op.outputs))


@op("PyFuncStateless", folds=False, arranged=True)
@op("PyFunc", "EagerPyFunc", effect=True, arranged=True)
def py_func(node: Node, *operands: Value) -> Sequence[Any]:
    """What a marker means; a callback of the host is an error."""
    if not is_marker(node.op):
        raise node.error(
            "a Python function of the host (tf.py_function, tf.numpy_function) cannot run inside of a program of the "
            "IPU; compute it in the input pipeline (Dataset.map) or between runs"
        )
    meaning = meaning_of(node.op)
    taken = operands if getattr(meaning, "arranged", False) else [plain(value) for value in operands]
    return meaning.build(node.importer, taken)
