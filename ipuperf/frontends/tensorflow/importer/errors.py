"""What an import of a graph raises: one error with the op, its type, the user's line and what would help."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf


class GraphError(tf.errors.InvalidArgumentError):
    """A TensorFlow graph that cannot become a program of the IPU (upstream's compiler raises ``InvalidArgumentError``,
    too)."""

    def __init__(self, message: str) -> None:
        super().__init__(None, None, message)


GENERAL = "compute it on the host, in the input pipeline (Dataset.map) or between runs, or of ops that are there"

_VARIABLE = (
    "the variable is no resource variable: call tf.compat.v1.enable_resource_variables() or use ipu.scopes.ipu_scope"
)
_DATASET = "a dataset is read through an infeed: IPUInfeedQueue(dataset), or an iterator made under the IPUStrategy"
_TEXT = "the IPU has no strings: compute it on the host, in the input pipeline (Dataset.map) or between runs"
_PRINT = "to see a tensor use ipu.ops.internal_ops.print_tensor, or enqueue it to an outfeed"
_LOOP = "the loop is TensorFlow 1's: call tf.compat.v1.enable_control_flow_v2()"
_SPARSE = "the IPU has dense tensors only: tf.sparse.to_dense in the input pipeline, or tf.gather"
_CALLBACK = (
    "a callback of the host cannot run in a program of the IPU: compute it in the input pipeline or between runs"
)

#: By the beginning of an op's type.
BY_TYPE: Mapping[str, str] = {
    name: reason
    for reason, names in {
        _VARIABLE: "VariableV2 Variable Assign",
        _DATASET: "Iterator OptionalIterator AnonymousIterator MultiDevice",
        _TEXT: "String AsString RegexReplace Lookup",
        _PRINT: "Print StringFormat",
        _LOOP: "Switch Merge Enter Exit NextIteration LoopCond",
        _SPARSE: "Sparse Ragged",
        _CALLBACK: "WriteSummary WriteScalarSummary WriteFile SaveV2 Restore",
    }.items()
    for name in names.split()
}


def hint(op_type: str) -> str:
    """What would help where an op of this type stands in a program."""
    known = max((name for name in BY_TYPE if op_type.startswith(name)), key=len, default=None)
    return GENERAL if known is None else BY_TYPE[known]
