"""How PopXL programs make ops: operands lie together, host data becomes constants by PopXL's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ipuperf import ir as _ir

from . import dtypes
from .pb_ir import ConfiguredIr, plan_options
from .placement import check_places
from .utils import to_numpy

OpT = TypeVar("OpT", bound=_ir.Op)


def current_builder() -> _ir.Builder:
    """Return the innermost active op maker; RuntimeError when there is none."""
    builders = _ir.CONTEXT.builders
    if not builders:
        raise RuntimeError("no graph is active: create tensors and ops inside `with ir.main_graph:` or `with graph:`")
    return builders[-1]


def current_program() -> _ir.Ir:
    """Return the program of the current graph."""
    return current_builder().graph.ir


class Builder(_ir.Builder):
    """The op maker of a graph that is entered with ``with``."""

    def create_with(
        self, op_class: type[OpT], inputs: Sequence[_ir.Tensor], names: Sequence[str], attributes: Mapping[str, Any]
    ) -> OpT:
        """A new op; what it leaves open about its plan or its statistics is as the session options say."""
        if {"partials_dtype", "stable"} & op_class.declared.keys():
            attributes = {**plan_options(op_class, inputs), **attributes}
        return super().create_with(op_class, inputs, names, attributes)

    def made(self, op: _ir.Op) -> None:
        """Remember the ops of ``popxl.ipu(None)``."""
        if _ir.CONTEXT.ipus and op.ipu is None and isinstance(op.graph.ir, ConfiguredIr):
            op.graph.ir.unplaced.add(op)

    def taken(self, op_class: type[_ir.Op], inputs: Sequence[_ir.Tensor]) -> Sequence[_ir.Tensor]:
        """The operands; ValueError when they are on different IPUs or tile sets."""
        if len(inputs) > 1:
            check_places(op_class, inputs)
        return inputs

    def constant(self, value: Any, dtype: _ir.DType | None, name: str = "t") -> _ir.Constant:
        """A constant; ValueError for data that ``dtype`` cannot hold."""
        element_type = None if dtype is None else dtypes.dtype.as_dtype(dtype)
        function = f"{self.naming.removesuffix('_out')}: " if self.naming else ""
        return self.graph.constant(
            to_numpy(value, element_type, True, subject=f"{function}constant {name!r}"), name=name
        )
