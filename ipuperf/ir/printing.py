"""``print_schedule``: a graph as text, in the upstream format (``docs/reference/popxl.md`` 1.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .graph import Graph
from .op import Op
from .schedule import schedule
from .tensor import Tensor


class _Numbers:
    """Gives tensors their ``%n`` numbers in the order of the first visit."""

    def __init__(self) -> None:
        self._numbers: dict[Tensor, int] = {}

    def ref(self, tensor: Tensor) -> str:
        return f"%{self._numbers.setdefault(tensor, len(self._numbers) + 1)}"

    def typed(self, tensor: Tensor) -> str:
        return f"{self.ref(tensor)} [{tensor.spec}]"

    def all(self, tensors: Sequence[Tensor]) -> str:
        return ", ".join(self.typed(tensor) for tensor in tensors)


def format_schedule(graph: Graph, names: Mapping[Tensor, str] | None = None) -> str:
    """The ops of ``graph`` in execution order. ``names`` labels graph inputs (``name=%n``)."""
    names = names or {}
    numbers = _Numbers()
    inputs = ", ".join(
        f"{names[tensor]}={numbers.ref(tensor)}" if tensor in names else numbers.ref(tensor) for tensor in graph.inputs
    )
    lines = [_op_line(op, numbers) for op in schedule(graph)]
    outputs = ", ".join(numbers.ref(tensor) for tensor in graph.outputs)
    body = "".join(f"    {line}\n" for line in lines)
    return f"Graph : {graph.name}\n  ({inputs}) -> ({outputs}) {{\n{body}  }}"


def _op_line(op: Op, numbers: _Numbers) -> str:
    called = op.called_graphs()
    callee = f"({called[0].name})" if called else ""
    return f"{op.label}{callee} ({numbers.all(op.inputs)}) -> ({numbers.all(op.outputs)})"


def dot_text(graph: Graph) -> str:
    """The ops of ``graph`` as a directed graph in Graphviz's format, with an arrow from each tensor to each reader."""
    lines = [f'  "{op.label}";' for op in graph.ops]
    lines += [
        f'  "{tensor.producer.label if tensor.producer else tensor.name}" -> "{op.label}" [label="{tensor.name}"];'
        for op in graph.ops
        for tensor in op.inputs
    ]
    return "\n".join([f'digraph "{graph.name or "main"}" {{', *lines, "}", ""])
