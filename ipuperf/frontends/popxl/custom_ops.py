"""Ops that a program brings along, described in Python (``docs/how-to/adding-a-custom-op.md``).

On the device such an op is C++ (``cppimport``, ``popart::Op`` and ``Opx``); here it is a class with a shape rule, a
NumPy value, a gradient and a cost, and :func:`custom_op` adds it to the graph. The names that its class needs are here:
:class:`CustomOp`, ``TensorSpec``, kinds of attributes, works with the cycle formulas of PopLibs' vertices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipuperf.ir import TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, INTEGERS, NUMBER, Attribute, choice, optional
from ipuperf.ops import vertices
from ipuperf.ops.custom import CustomOp
from ipuperf.ops.work import Copy, MatMul, Reduction, Vertices

from .bindings import Binding
from .handle import Tensor
from .ops.lifting import raised
from .ops.operands import Operand, create, ensure_tensor


def custom_op(
    op_class: type[CustomOp], *operands: Operand, names: Sequence[str] | None = None, **attributes: Any
) -> Any:
    """Add an op of ``op_class`` to the current graph; gives its output, or a tuple of several.

    Args:
        operands: tensors, or host data, which becomes constants.
        names: of the outputs, one for each; default: one output.
        attributes: those that the class declares.

    Raises:
        TypeError: no subclass of :class:`CustomOp`; ``popart_exception``: what the class's shape rule refuses.
    """
    if not (isinstance(op_class, type) and issubclass(op_class, CustomOp)):
        raise TypeError(f"custom_op: {op_class!r} is no subclass of popxl.custom_ops.CustomOp")
    called = list(names) if names is not None else [f"{op_class.type}_out"]
    tensors: list[Tensor] = [ensure_tensor(operand) for operand in operands]
    results = raised(tuple(create(op_class, tensors, called, **attributes).outputs))
    return results[0] if len(results) == 1 else results


__all__ = [
    "FLAG",
    "INTEGER",
    "INTEGERS",
    "NUMBER",
    "Attribute",
    "Binding",
    "Copy",
    "CustomOp",
    "MatMul",
    "Reduction",
    "TensorSpec",
    "Vertices",
    "choice",
    "custom_op",
    "optional",
    "vertices",
]
