"""The op maker: everything that writes programs makes its ops through a :class:`Builder`.

A builder writes into one graph. The innermost active one (:attr:`BuildContext.builder`) is where operators of tensors
and the functions of :mod:`ipuperf.functions` put their ops; a front end that has rules of its own (tensors of graphs
around it become inputs, ops run in the order of writing, the user's line comes from a traced module) says them in a
subclass, in :meth:`Builder.get` and :meth:`Builder.made`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import IrError
from .op import Op
from .tensor import Constant, Tensor

if TYPE_CHECKING:
    from .dtype import DType
    from .graph import Graph

OpT = TypeVar("OpT", bound=Op)
Number = bool | int | float
#: What an operator or a function takes: a tensor, or a number that takes the type of the tensors beside it.
Operand = Tensor | Number


class Builder:
    """Makes ops in ``graph``."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    # -- rules of a front end --------------------------------------------------------------------------------------

    def get(self, tensor: Tensor) -> Tensor:
        """``tensor`` as one of this graph."""
        return tensor

    def made(self, op: Op) -> None:
        """Called with each new op."""

    # -- making ----------------------------------------------------------------------------------------------------

    def create(self, op_class: type[OpT], inputs: Sequence[Tensor], names: Sequence[str], **attributes: Any) -> OpT:
        """A new op whose outputs have ``names``; see :meth:`Graph.create` for errors."""
        op = self.graph.create(op_class, [self.get(t) for t in inputs], names, **attributes)
        self.made(op)
        return op

    def op(self, op_class: type[Op], inputs: Sequence[Tensor], name: str = "", **attributes: Any) -> Tensor:
        """The output of a new op with one output, called ``<type>_out`` where no ``name`` is given."""
        return self.create(op_class, inputs, [name or f"{op_class.type.lower()}_out"], **attributes).outputs[0]

    def constant(self, value: Any, dtype: DType, name: str = "constant") -> Constant:
        """A constant of the graph."""
        return self.graph.constant(value, dtype, name)

    def operands(self, *values: Operand) -> list[Tensor]:
        """Tensors of the graph; numbers become constants of the first tensor's type.

        Raises:
            IrError: none of them is a tensor.
        """
        first = next((v for v in values if isinstance(v, Tensor)), None)
        if first is None:
            raise IrError(f"operands {values}: at least one of them must be a tensor")
        return [self.get(v) if isinstance(v, Tensor) else self.constant(v, first.dtype) for v in values]
