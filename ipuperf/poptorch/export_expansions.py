"""What PyTorch's decomposition makes of one op of a program: a graph from its operands to its results.

Of most ops that is plain: the op itself. Of the others PyTorch says it, for many at once, as a program of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from .export_composites import stays
from .export_reuse import Unknown

_OP = "ipuperf_op"
"""The annotation that says which op a node came from."""
ASSERTION = torch.ops.aten._assert_tensor_metadata.default
"""What exporting a cast writes before it; it has no result."""

Nodes = Mapping[torch.fx.Node, torch.fx.Node]


@dataclass(frozen=True)
class Kind:
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
        values = {operand: graph.placeholder(f"operand_{index}") for index, operand in enumerate(operands)}
        for node in nodes:
            values[node] = graph.node_copy(node, values.__getitem__)
        graph.output([values[result] for result in results])
        return cls(graph)


def flat(value: Any) -> list[Any]:
    """The results of an op as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def plain(kind: Kind) -> Expansion | None:
    """What becomes of an op that PyTorch leaves as it is, and of the two most frequent others; None where only PyTorch
    knows."""
    node, results = kind.node, kind.results
    if node.target in _WRITTEN:
        return _WRITTEN[node.target](kind)
    if not stays(node.target) or not all(isinstance(result, torch.Tensor) for result in results):
        return None
    if isinstance(node.meta.get("val"), torch.Tensor):
        return Expansion.of(kind.operands, [node], [node])
    made = Expansion.of(kind.operands, [node], [])
    (*_, op, output) = made.graph.nodes
    with made.graph.inserting_before(output):
        items = [made.graph.call_function(operator.getitem, (op, index)) for index in range(len(results))]
    for item, result in zip(items, results):
        item.meta["val"] = result
    output.args = (items,)
    return made


def _cast(kind: Kind) -> Expansion | None:
    """``to(dtype)``: a copy, or nothing where the type is that of the operand."""
    node = kind.node
    if len(node.args) != 2 or node.kwargs:
        return None
    operand, dtype = node.args
    if kind.operands[0].meta["val"].dtype == dtype:
        return Expansion.of(kind.operands, [], [operand])
    return _instead(kind, torch.ops.aten._to_copy.default, (operand,), {"dtype": dtype})


def _reshaped(kind: Kind) -> Expansion | None:
    """``reshape`` of elements that stand in order: a view."""
    if not kind.operands[0].meta["val"].is_contiguous() or kind.node.kwargs:
        return None
    return _instead(kind, torch.ops.aten.view.default, kind.node.args, {})


def _instead(kind: Kind, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Expansion:
    """Another op in the place of an op."""
    graph = torch.fx.Graph()
    values = {operand: graph.placeholder(f"operand_{index}") for index, operand in enumerate(kind.operands)}
    placed = torch.fx.map_arg(args, values.__getitem__)
    made = graph.create_node("call_function", target, placed, kwargs, name=target.overloadpacket.__name__)
    made.meta["val"] = kind.node.meta["val"]
    graph.output([made])
    return Expansion(graph)


_WRITTEN = {torch.ops.aten.to.dtype: _cast, torch.ops.aten.reshape.default: _reshaped}


def expanded(kinds: Sequence[Kind], simplify: Callable[[Any], Any], around: Callable[[], Any]) -> Sequence[Expansion]:
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

    def __init__(self, kinds: Sequence[Kind]) -> None:
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


def _taken_apart(kinds: Sequence[Kind], program: Any) -> list[Expansion]:
    """A program of one op of each kind as what became of each."""
    if len(program.graph_signature.input_specs) != sum(len(kind.operands) for kind in kinds):
        raise Unknown
    placeholders = iter(program.graph.find_nodes(op="placeholder"))
    operands = [[next(placeholders) for _ in kind.operands] for kind in kinds]
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
