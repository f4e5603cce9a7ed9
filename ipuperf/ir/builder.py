"""The op maker: everything that writes programs makes its ops through a :class:`Builder`.

A builder writes into one graph. Operators of tensors and the functions of :mod:`ipuperf.functions` put their ops where
the innermost active builder writes (:attr:`BuildContext.builder`). A front end with rules of its own overrides
:meth:`Builder.get` and :meth:`Builder.made` in a subclass: there tensors of graphs around this one become inputs, ops
run in the order of writing, or the user's line comes from a traced module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .dtype import DType
from .location import user_location
from .op import Op
from .tensor import Tensor

if TYPE_CHECKING:
    from .graph import Graph

OpT = TypeVar("OpT", bound=Op)
#: An argument of a function: a tensor, or host data that takes the type of the tensors beside it.
Operand = Any


def is_host_data(value: Any) -> bool:
    """Whether ``value`` can stand beside tensors: a number, a NumPy or PyTorch array, a sequence."""
    is_plain = isinstance(value, (bool, int, float, np.ndarray, np.generic, list, tuple, range))
    # PyTorch's tensors are told by their methods, as PyTorch need not be installed.
    return is_plain or (hasattr(value, "detach") and hasattr(value, "cpu"))


class Builder:
    """Makes ops in ``graph``.

    Attributes:
        naming: name of outputs that nobody names.
        location: ``file:line`` that new ops come from. With None it is the line of the user's program that makes them.
        module: path of the user's module that new ops belong to. With None the graph and the name scopes tell.
    """

    location: str | None = None
    module: str | None = None

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.naming = ""

    # -- rules of a front end --------------------------------------------------------------------------------------

    def get(self, tensor: Tensor) -> Tensor:
        """``tensor`` as a tensor of this graph."""
        return tensor

    def taken(self, op_class: type[Op], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The operands of a new op of ``op_class`` as tensors of this graph. Subclasses raise an error for operands
        that the op cannot have."""
        get = self.get
        return [get(tensor) for tensor in inputs]

    def made(self, op: Op) -> None:
        """Called with each new op."""

    # -- making ----------------------------------------------------------------------------------------------------

    def create(self, op_class: type[OpT], inputs: Sequence[Tensor], names: Sequence[str], **attributes: Any) -> OpT:
        """A new op whose outputs have ``names``; see :meth:`Graph.create` for errors."""
        return self.create_with(op_class, inputs, names, attributes)

    def create_with(
        self, op_class: type[OpT], inputs: Sequence[Tensor], names: Sequence[str], attributes: Mapping[str, Any]
    ) -> OpT:
        """:meth:`create` with the attributes as one mapping. Every op of the builder is made here."""
        # A fixed location wins, as traced modules know the user's line better than the Python stack.
        location = self.location
        if location is None:
            location = user_location()
        op = self.graph.create_at(op_class, self.taken(op_class, inputs), names, attributes, location)
        if self.module is not None:
            op.module = self.module
        self.made(op)
        return op

    def op(self, op_class: type[Op], inputs: Sequence[Tensor], name: str = "", **attributes: Any) -> Tensor:
        """The output of a new op with one output, called ``<type>_out`` where nobody names it."""
        output_name = name or self.naming or f"{op_class.type.lower()}_out"
        return self.create_with(op_class, inputs, [output_name], attributes).outputs[0]

    def copy(self, op: Op, operands: Sequence[Tensor]) -> Op:
        """A new op that does to ``operands`` what ``op`` does to its operands, on the same tiles and with the same
        location."""
        names, own_operands = [tensor.name for tensor in op.outputs], self.taken(type(op), operands)
        copy = self.graph.create_at(type(op), own_operands, names, op.attributes, op.location, settled=True)
        self.made(copy)
        # The context would give the copy tiles, scope and module of its own.
        copy.tile_set, copy.scope, copy.module = op.tile_set, op.scope, op.module
        return copy

    def named(self, name: str) -> AbstractContextManager[None]:
        """Name outputs of ops made within ``name``, unless they have a name of their own."""
        return self.set("naming", name)

    def set(self, attribute: str, value: Any) -> AbstractContextManager[None]:
        """Set an attribute of the builder within a ``with`` block."""
        return _Set(self, attribute, value)

    def constant(self, value: Any, dtype: DType | None, name: str = "constant") -> Tensor:
        """A constant of the graph, of ``dtype`` when given."""
        return self.graph.constant(value, dtype, name)

    def operands(self, *values: Operand) -> list[Tensor]:
        """The values as tensors. Host data becomes a constant of the first tensor's type, or of the first value's own
        type where there is no tensor.

        Raises:
            TypeError: a value is neither a tensor nor host data.
        """
        # Most calls have tensors only; they return without a second look at types.
        for value in values:
            if not isinstance(value, Tensor):
                return self._with_constants(values)
        return list(values)

    def _with_constants(self, values: Sequence[Operand]) -> list[Tensor]:
        """:meth:`operands` where some values are no tensors."""
        dtype: DType | None = None
        for value in values:
            if isinstance(value, Tensor):
                dtype = dtype or value.dtype
            elif not is_host_data(value):
                raise TypeError(f"{type(value).__name__} {value!r} is neither a tensor nor host data")
        tensors: list[Tensor] = []
        for value in values:
            tensors.append(value if isinstance(value, Tensor) else self.constant(value, dtype))
            dtype = dtype or tensors[0].dtype
        return tensors


class _Set:
    """See :meth:`Builder.set`."""

    def __init__(self, builder: Builder, attribute: str, value: Any) -> None:
        self._builder = builder
        self._attribute = attribute
        self._value = value

    def __enter__(self) -> None:
        self._previous = getattr(self._builder, self._attribute)
        setattr(self._builder, self._attribute, self._value)

    def __exit__(self, *error: object) -> None:
        setattr(self._builder, self._attribute, self._previous)
