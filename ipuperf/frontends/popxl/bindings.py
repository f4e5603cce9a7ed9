"""What a program's own function over an op in C++ finds, so that the function stays as it is.

On the device pybind11 exports a class of ops, whose ``createOpInGraph`` adds one to PopART's graph. A :class:`Binding`
has the same method over a description in Python. The other native objects that such a function passes around are the
program's own: ``Graph._pb_graph`` is a graph, ``Tensor._from_pb_tensor`` takes one of its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipuperf.ir import Graph, IrError, Op, Tensor

from .builder import current_builder


@dataclass(frozen=True)
class OpSettings:
    """What ``Context._get_op_settings`` gives: only that the op is made within the current context."""

    name: str


@dataclass(frozen=True)
class BoundOp:
    """An op that a :class:`Binding` made."""

    op: Op

    def outTensor(self, index: int) -> Tensor:
        """The output of this number."""
        return self.op.outputs[index]


@dataclass(frozen=True)
class Binding:
    """Stands for a class of ops in C++.

    Attributes:
        op_class: its description in Python.
    """

    op_class: type[Op]

    @property
    def attributes(self) -> Sequence[str]:
        """The names of the op's own values, in order."""
        return tuple(self.op_class.declared)

    def class_for(self, _results: int) -> type[Op]:
        """The class of the op with so many results."""
        return self.op_class

    def createOpInGraph(
        self, graph: Graph, inputs: Mapping[int, str], outputs: Mapping[int, str], *values: Any, **named: Any
    ) -> BoundOp:
        """Add an op to the current graph.

        Args:
            graph: ``_pb_graph`` of the current graph.
            inputs, outputs: ids of the tensors by their numbers.
            values: the attributes in the order of their declaration, then the op's settings.
            named: those of them that are given by name, ``settings`` too.

        Raises:
            IrError: another graph, a tensor that is not in it, or other values.
        """
        builder, where = current_builder(), f"{self.op_class.type}.createOpInGraph"
        if graph is not builder.graph:
            raise IrError(f"{where}: graph {graph.name or 'main'!r} is not the current one")
        for tensor_id in inputs.values():
            if tensor_id not in graph.tensors:
                raise IrError(f"{where}: graph {graph.name or 'main'!r} has no tensor {tensor_id!r}")
        declared = self.attributes
        values = (*values, *(named[name] for name in (*declared, "settings") if name in named))
        *attributes, settings = values or (None,)
        if len(attributes) != len(declared) or not isinstance(settings, OpSettings):
            raise IrError(f"{where}: {len(values)} values; [{', '.join(declared)}] and the op's settings are needed")
        scope = graph.tensor_id("")  # the builder puts it in front of a name again
        names = [outputs[number].removeprefix(scope) for number in sorted(outputs)]
        operands = [graph.tensors[inputs[number]] for number in sorted(inputs)]
        return BoundOp(builder.create(self.class_for(len(names)), operands, names, **dict(zip(declared, attributes))))


__all__ = ["Binding", "BoundOp", "OpSettings"]
