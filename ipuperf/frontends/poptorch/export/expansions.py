"""What PyTorch's decomposition makes of one op of a program: a graph from its operands to its results.

Of most ops it is known beforehand (:mod:`~ipuperf.poptorch.export.plain`). Of the others PyTorch says it, for many at
once, as a program of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from .reuse import Unknown

_OP = "ipuperf_op"
"""The annotation that says which op a node came from."""
ASSERTION = torch.ops.aten._assert_tensor_metadata.default
"""What exporting a cast writes before it; it has no result."""


@dataclass(frozen=True)
class OpKind:
    """An op that stands for all with its arguments and operands like its own."""

    node: torch.fx.Node
    operands: list[torch.fx.Node]

    @property
    def results(self) -> list[Any]:
        """What a trace knows of its results."""
        return flat(self.node.meta.get("val"))


@dataclass(frozen=True)
class Expansion:
    """What becomes of a kind of op: a graph with a placeholder for each operand, whose output are its results."""

    graph: torch.fx.Graph

    @classmethod
    def of(
        cls, operands: Sequence[torch.fx.Node], nodes: Sequence[torch.fx.Node], results: Sequence[torch.fx.Node]
    ) -> Expansion:
        """That of some nodes of another graph."""
        graph = torch.fx.Graph()
        values = placeholders(graph, operands)
        for node in nodes:
            values[node] = graph.node_copy(node, values.__getitem__)
        graph.output([values[result] for result in results])
        return cls(graph)


def placeholders(graph: torch.fx.Graph, operands: Sequence[torch.fx.Node]) -> dict[torch.fx.Node, torch.fx.Node]:
    """Of a new graph, one for each operand."""
    return {operand: graph.placeholder(f"operand_{index}") for index, operand in enumerate(operands)}


def flat(value: Any) -> list[Any]:
    """The results of an op as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def expanded(kinds: Sequence[OpKind], simplify: Callable[[Any], Any], around: Callable[[], Any]) -> Sequence[Expansion]:
    """What PyTorch makes of some kinds of ops.

    Args:
        simplify: decomposes an exported program.
        around: a context in which PyTorch keeps annotations.

    Raises:
        Unknown: what it made of one cannot be told from the rest.
    """
    if not kinds:
        return []
    leaves = tuple(_like(node.meta["val"]) for kind in kinds for node in kind.operands)
    with ExitStack() as stack:
        stack.enter_context(around())
        program = torch.export.export(_OneOfEach(kinds), leaves, strict=False)
    return _taken_apart(kinds, simplify(program))


class _OneOfEach(torch.nn.Module):
    """The ops of all kinds; arguments are the operands of all of them in turn."""

    def __init__(self, kinds: Sequence[OpKind]) -> None:
        super().__init__()
        self.kinds = kinds

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All results, flat."""
        found: list[torch.Tensor] = []
        waiting = iter(leaves)
        for number, kind in enumerate(self.kinds):
            values = {node: next(waiting) for node in kind.operands}
            args = torch.fx.map_arg(kind.node.args, values.__getitem__)
            kwargs = torch.fx.map_arg(kind.node.kwargs, values.__getitem__)
            with torch.fx.traceback.annotate({_OP: number}):
                result = kind.node.target(*args, **kwargs)  # type: ignore[operator]
            found += flat(result)
        return tuple(found)


def _like(value: Any) -> torch.Tensor:
    """Another stand-in of the same form: a program has one input for a tensor that it is given twice."""
    with getattr(value, "fake_mode", nullcontext()):
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return made.requires_grad_(value.requires_grad)


def _taken_apart(kinds: Sequence[OpKind], program: Any) -> list[Expansion]:
    """A program of one op of each kind as what became of each."""
    if len(program.graph_signature.input_specs) != sum(len(kind.operands) for kind in kinds):
        raise Unknown
    inputs = iter(program.graph.find_nodes(op="placeholder"))
    operands = [[next(inputs) for _ in kind.operands] for kind in kinds]
    nodes = _assigned(program.graph, operands)
    (output,) = program.graph.find_nodes(op="output")
    given = iter(output.args[0])
    results = [[_checked(given, wanted) for wanted in kind.results] for kind in kinds]
    if next(given, None) is not None:
        raise Unknown
    return [Expansion.of(*parts) for parts in zip(operands, nodes, results, strict=True)]


def _assigned(graph: torch.fx.Graph, operands: Sequence[Sequence[torch.fx.Node]]) -> list[list[torch.fx.Node]]:
    """The nodes of each kind: those that say they came from it; one that says nothing goes with its operands."""
    came = {place: number for number, places in enumerate(operands) for place in places}
    nodes: list[list[torch.fx.Node]] = [[] for _ in operands]
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        said = (node.meta.get("custom") or {}).get(_OP)
        if said is None and node.target is ASSERTION:
            continue
        numbers = {came[operand] for operand in node.all_input_nodes} if said is None else {said}
        if node.op != "call_function" or len(numbers) != 1:
            raise Unknown
        (came[node],) = numbers
        nodes[came[node]].append(node)
    return nodes


def _checked(given: Iterator[Any], wanted: Any) -> torch.fx.Node:
    """The next result. Later ops were told apart by the strides of the first trace, so these must be the same."""
    node = next(given)
    if not isinstance(node, torch.fx.Node) or not isinstance(wanted, torch.Tensor):
        raise Unknown
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise Unknown
    if (value.shape, value.stride(), value.dtype) != (wanted.shape, wanted.stride(), wanted.dtype):
        raise Unknown
    return node
