"""What to do instead of an op that has no counterpart on the IPU here."""

from __future__ import annotations

from collections.abc import Mapping

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
    "VariableV2": _VARIABLE,
    "Variable": _VARIABLE,
    "Assign": _VARIABLE,
    "Iterator": _DATASET,
    "OptionalIterator": _DATASET,
    "AnonymousIterator": _DATASET,
    "MultiDevice": _DATASET,
    "String": _TEXT,
    "StringFormat": _PRINT,
    "AsString": _TEXT,
    "RegexReplace": _TEXT,
    "Lookup": _TEXT,
    "Print": _PRINT,
    "Switch": _LOOP,
    "Merge": _LOOP,
    "Enter": _LOOP,
    "Exit": _LOOP,
    "NextIteration": _LOOP,
    "LoopCond": _LOOP,
    "Sparse": _SPARSE,
    "Ragged": _SPARSE,
    "WriteSummary": _CALLBACK,
    "WriteScalarSummary": _CALLBACK,
    "WriteFile": _CALLBACK,
    "SaveV2": _CALLBACK,
    "Restore": _CALLBACK,
}


def hint(op_type: str) -> str:
    """What would help where an op of this type stands in a program."""
    known = max((name for name in BY_TYPE if op_type.startswith(name)), key=len, default=None)
    return GENERAL if known is None else BY_TYPE[known]
