"""The op maker: everything that writes programs makes its ops through a :class:`Builder`.

A builder writes into one graph. The innermost active one (:attr:`BuildContext.builder`) is where operators of tensors
and the functions of :mod:`ipuperf.functions` put their ops; a front end that has rules of its own (tensors of graphs
around it become inputs, ops run in the order of writing, the user's line comes from a traced module) says them in a
subclass, in :meth:`Builder.get` and :meth:`Builder.made`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .location import user_location
from .op import Op
from .tensor import Tensor

if TYPE_CHECKING:
    from .dtype import DType
    from .graph import Graph

OpT = TypeVar("OpT", bound=Op)
#: What a function takes: a tensor, or host data that takes the type of the tensors beside it.
Operand = Any


def is_host_data(value: Any) -> bool:
    """Whether ``value`` can stand beside tensors: a number, a NumPy or PyTorch array, a sequence."""
    known = isinstance(value, (bool, int, float, np.ndarray, np.generic, list, tuple, range))
    return known or (hasattr(value, "detach") and hasattr(value, "cpu"))


class Builder:
    """Makes ops in ``graph``.

    Attributes:
        naming: what outputs are called that nobody names.
        location: ``file:line`` that new ops come from; None: the line of the user's program that makes them.
    """

    location: str | None = None

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.naming = ""

    # -- rules of a front end --------------------------------------------------------------------------------------

    def get(self, tensor: Tensor) -> Tensor:
        """``tensor`` as one of this graph."""
        return tensor

    def taken(self, op_class: type[Op], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """The operands of a new op of a class as tensors of this graph; an error for those that it cannot have."""
        get = self.get
        return [get(t) for t in inputs]

    def made(self, op: Op) -> None:
        """Called with each new op."""

    # -- making ----------------------------------------------------------------------------------------------------

    def create(self, op_class: type[OpT], inputs: Sequence[Tensor], names: Sequence[str], **attributes: Any) -> OpT:
        """A new op whose outputs have ``names``; see :meth:`Graph.create` for errors."""
        return self.create_with(op_class, inputs, names, attributes)

    def create_with(
        self, op_class: type[OpT], inputs: Sequence[Tensor], names: Sequence[str], attributes: Mapping[str, Any]
    ) -> OpT:
        """:meth:`create` with the attributes as one mapping: every op of the builder is made here."""
        location = self.location
        if location is None:
            location = user_location()
        op = self.graph.create_at(op_class, self.taken(op_class, inputs), names, attributes, location)
        self.made(op)
        return op

    def op(self, op_class: type[Op], inputs: Sequence[Tensor], name: str = "", **attributes: Any) -> Tensor:
        """The output of a new op with one output, called ``<type>_out`` where nobody names it."""
        called = name or self.naming or f"{op_class.type.lower()}_out"
        return self.create_with(op_class, inputs, [called], attributes).outputs[0]

    def copy(self, op: Op, operands: Sequence[Tensor]) -> Op:
        """A new op that does to ``operands`` what ``op`` does to its own, on the same tiles, from the same place of the
        user's program."""
        names, taken = [t.name for t in op.outputs], self.taken(type(op), operands)
        copy = self.graph.create_at(type(op), taken, names, op.attributes, op.location, settled=True)
        self.made(copy)
        copy.tile_set, copy.scope = op.tile_set, op.scope
        return copy

    def named(self, name: str) -> AbstractContextManager[None]:
        """Outputs of ops made within are called ``name``, unless they have one of their own."""
        return self.set("naming", name)

    def set(self, attribute: str, value: Any) -> AbstractContextManager[None]:
        """Within, an attribute of the builder is ``value``."""
        return _Set(self, attribute, value)

    def constant(self, value: Any, dtype: DType | None, name: str = "constant") -> Tensor:
        """A constant of the graph, of ``dtype`` when given."""
        return self.graph.constant(value, dtype, name)

    def operands(self, *values: Operand) -> list[Tensor]:
        """Tensors; host data becomes a constant of the graph, of the first tensor's type (without any tensor: of the
        first one's own type).

        Raises:
            TypeError: neither a tensor nor host data.
        """
        for value in values:
            if not isinstance(value, Tensor):
                return self._with_constants(values)
        return list(values)

    def _with_constants(self, values: Sequence[Operand]) -> list[Tensor]:
        """:meth:`operands` where some are no tensors."""
        dtype: DType | None = None
        for value in values:
            if isinstance(value, Tensor):
                dtype = dtype or value.dtype
            elif not is_host_data(value):
                raise TypeError(f"{type(value).__name__} {value!r} is neither a tensor nor host data")
        found: list[Tensor] = []
        for value in values:
            found.append(value if isinstance(value, Tensor) else self.constant(value, dtype))
            dtype = dtype or found[0].dtype
        return found


class _Set:
    """See :meth:`Builder.set`."""

    def __init__(self, builder: Builder, attribute: str, value: Any) -> None:
        self._builder = builder
        self._attribute = attribute
        self._value = value

    def __enter__(self) -> None:
        self._before = getattr(self._builder, self._attribute)
        setattr(self._builder, self._attribute, self._value)

    def __exit__(self, *error: object) -> None:
        setattr(self._builder, self._attribute, self._before)
