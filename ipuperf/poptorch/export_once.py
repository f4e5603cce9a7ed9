"""Equal ops of a program are decomposed once.

PyTorch's ``run_decompositions`` traces the whole program again, layer by layer, however equal they are. What becomes
of an op follows from the op, its numbers, and the shapes, strides and types of its operands: so PyTorch is given a
program of one op of each kind, and what it made of each takes the place of all ops of that kind. The result is the
graph that ``run_decompositions`` of the whole program gives, with its names (but those of selected results).

Programs that this cannot be said of are decomposed whole: those that change a tensor, have regions (``no_grad``), or
use ops of other libraries.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export.graph_signature import OutputKind, TensorArgument

from .export_reuse import NAMESPACES, Simplified, Unknown, argument_of, seen_of

_OP = "ipuperf_op"
"""The annotation that says which op a node came from."""
_ASSERTION = torch.ops.aten._assert_tensor_metadata.default
"""What exporting a cast writes before it."""
_CHANGING = ("batch_norm", "instance_norm", "rrelu")
"""Parts of the names of ops that change an operand without saying so in their schemas."""

Leaf = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, str, bool]


@dataclass(frozen=True)
class _Kind:
    """An op with its arguments, where tensors are their numbers among :attr:`leaves`."""

    node: torch.fx.Node
    operands: list[torch.fx.Node]


class _OneOfEach(torch.nn.Module):
    """The ops of all kinds; arguments are the operands of all of them in turn."""

    def __init__(self, kinds: Sequence[_Kind]) -> None:
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
            found += _flat(result)
        return tuple(found)


def simplified_once(program: Any, simplify: Callable[[Any], Any], around: Callable[[], Any]) -> Simplified | None:
    """What ``simplify(program)`` gives, from a program of one op of each kind; None where that cannot be told.

    Args:
        around: a context in which PyTorch keeps annotations.
    """
    try:
        numbers, kinds = _kinds(program)
        return _substituted(program, numbers, _made_of(kinds, simplify, around))
    except Unknown:
        return None


def _kinds(program: Any) -> tuple[dict[torch.fx.Node, int], list[_Kind]]:
    """The number of the kind of each op, and the kinds."""
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
        raise Unknown
    numbers: dict[torch.fx.Node, int] = {}
    known: dict[str, int] = {}
    kinds: list[_Kind] = []
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output") or node.target is operator.getitem:
            continue
        _check(node)
        operands = list(dict.fromkeys(node.all_input_nodes))
        places = {operand: index for index, operand in enumerate(operands)}
        values = [_leaf(operand.meta.get("val")) for operand in operands]
        key = repr((str(node.target), _placed(node.args, places), _placed(node.kwargs, places), values))
        if key not in known:
            known[key] = len(kinds)
            kinds.append(_Kind(node, operands))
        numbers[node] = known[key]
    return numbers, kinds


def _check(node: torch.fx.Node) -> None:
    """Raises :class:`Unknown` for what may change an operand or mean something else another time."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        raise Unknown
    if target.namespace not in NAMESPACES or target._schema.is_mutable:
        raise Unknown
    if any(part in target.name() for part in _CHANGING):
        raise Unknown


def _leaf(value: Any) -> Leaf:
    if not isinstance(value, torch.Tensor):
        raise Unknown
    found: Leaf = seen_of(value)
    return found


def _placed(value: Any, places: Mapping[torch.fx.Node, int]) -> Any:
    return argument_of(torch.fx.map_arg(value, lambda node: f"operand {places[node]}"))


def _made_of(kinds: Sequence[_Kind], simplify: Callable[[Any], Any], around: Callable[[], Any]) -> _Expansions:
    """What becomes of each kind."""
    if not kinds:
        raise Unknown
    leaves = tuple(_like(node.meta["val"]) for kind in kinds for node in kind.operands)
    with ExitStack() as stack:
        stack.enter_context(around())
        program = torch.export.export(_OneOfEach(kinds), leaves, strict=False)
    return _Expansions(kinds, simplify(program))


def _like(value: Any) -> torch.Tensor:
    """Another stand-in of the same form: a program has one input for a tensor that it is given twice."""
    with getattr(value, "fake_mode", nullcontext()):
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return made.requires_grad_(value.requires_grad)


class _Expansions:
    """What became of each kind of op: nodes, and which of them are its results."""

    def __init__(self, kinds: Sequence[_Kind], program: Any) -> None:
        self.kinds = kinds
        self.nodes: list[list[torch.fx.Node]] = [[] for _ in kinds]
        self.results: list[list[torch.fx.Node]] = []
        self.operands: list[dict[torch.fx.Node, torch.fx.Node]] = []
        placeholders = iter([node for node in program.graph.nodes if node.op == "placeholder"])
        if len(program.graph_signature.input_specs) != sum(len(kind.operands) for kind in kinds):
            raise Unknown
        for kind in kinds:
            self.operands.append({next(placeholders): operand for operand in kind.operands})
        self._assign(program.graph)
        (output,) = [node for node in program.graph.nodes if node.op == "output"]
        results = iter(output.args[0])
        for kind in kinds:
            self.results.append([self._checked(next(results), wanted) for wanted in _flat(kind.node.meta.get("val"))])
        if next(results, None) is not None:
            raise Unknown

    def _assign(self, graph: torch.fx.Graph) -> None:
        """Each node to the kind that it says it came from; one that says nothing to that of its operands."""
        came: dict[torch.fx.Node, int] = {
            place: number for number, operands in enumerate(self.operands) for place in operands
        }
        for node in graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            said = (node.meta.get("custom") or {}).get(_OP)
            if said is None and node.target is _ASSERTION:  # the program has one of its own
                continue
            numbers = {came[operand] for operand in node.all_input_nodes} if said is None else {said}
            if node.op != "call_function" or len(numbers) != 1:
                raise Unknown
            (came[node],) = numbers
            self.nodes[came[node]].append(node)

    @staticmethod
    def _checked(node: Any, wanted: Any) -> torch.fx.Node:
        """Later ops were told apart by the strides of the first trace, so these must be the same."""
        if not isinstance(node, torch.fx.Node) or not isinstance(wanted, torch.Tensor):
            raise Unknown
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            raise Unknown
        if (value.shape, value.stride(), value.dtype) != (wanted.shape, wanted.stride(), wanted.dtype):
            raise Unknown
        return node


def _substituted(program: Any, numbers: Mapping[torch.fx.Node, int], found: _Expansions) -> Simplified:
    """The program with what became of its ops in their places."""
    graph = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output"):
            values[node] = graph.node_copy(node, lambda n: values[n])
        elif node.target is operator.getitem:
            values[node] = values[node.args[0]][node.args[1]]
        else:
            values[node] = _expanded(graph, node, numbers[node], found, values)
    graph.eliminate_dead_code()
    (output,) = [node for node in graph.nodes if node.op == "output"]
    specs = [
        replace(spec, arg=TensorArgument(name=node.name)) if isinstance(node, torch.fx.Node) else spec
        for spec, node in zip(program.graph_signature.output_specs, output.args[0], strict=True)
    ]
    signature = replace(program.graph_signature, output_specs=specs)
    return Simplified(torch.fx.GraphModule(torch.nn.Module(), graph), signature, dict(program.constants))


def _expanded(
    graph: torch.fx.Graph, node: torch.fx.Node, number: int, found: _Expansions, values: Mapping[torch.fx.Node, Any]
) -> Any:
    """Results of an op whose expansion is written now."""
    inputs = dict.fromkeys(node.all_input_nodes)
    like = found.operands[number]
    inner: dict[torch.fx.Node, Any] = {there: values[here] for there, here in zip(like, inputs, strict=True)}
    for made in found.nodes[number]:
        args: Any = torch.fx.map_arg(made.args, inner.__getitem__)
        kwargs: Any = torch.fx.map_arg(made.kwargs, inner.__getitem__)
        copied = graph.create_node(made.op, made.target, args, kwargs, name=re.sub(r"_\d+$", "", made.name))
        copied.meta = {"val": made.meta.get("val"), "custom": node.meta.get("custom")}
        if "stack_trace" in node.meta:
            copied.meta["stack_trace"] = node.meta["stack_trace"]
        inner[made] = copied
    results = [inner[result] for result in found.results[number]]
    return results[0] if isinstance(node.meta.get("val"), torch.Tensor) else results


def _flat(value: Any) -> list[Any]:
    """The results of an op as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
