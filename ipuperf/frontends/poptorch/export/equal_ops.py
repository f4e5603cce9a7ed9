"""Equal ops of programs are decomposed once.

PyTorch's ``run_decompositions`` traces the whole program again, layer by layer, however equal they are. What becomes
of an op follows from the op, its numbers, and the shapes, strides and types of its operands. Of most ops it is known
beforehand (``_RULES``). Of the others PyTorch is given a program of one op of each kind that no program had before,
and what it made of each takes the place of all ops of that kind. The result is the graph that ``run_decompositions``
of the whole program gives, with its names (but those of selected results) and without the assertions before casts.

Programs that this cannot be said of are decomposed whole: those that change a tensor, have regions (``no_grad``), or
use ops of other libraries. ``tests/poptorch/test_poptorch_export_once.py`` holds all this against
``run_decompositions``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.export.graph_signature import OutputKind

from .composites import stays
from .reuse import NAMESPACES, Newest, Simplified, Unknown, argument_of, seen_of, surroundings, with_graph

#: Parts of the names of ops that change an operand without saying so in their schemas.
_CHANGING = ("batch_norm", "instance_norm", "rrelu")
#: What exporting a cast writes before it; it has no result.
ASSERTION = torch.ops.aten._assert_tensor_metadata.default
_NO_OPS = (operator.getitem, ASSERTION)
_KNOWN: Newest[Expansion] = Newest()

Leaf = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, str, bool]


def simplified_once(program: Any, simplify: Callable[[Any], Any], around: Callable[[], Any]) -> Simplified | None:
    """What ``simplify(program)`` gives, from a program of one op of each kind; None where that cannot be told.

    Args:
        around: a context in which PyTorch keeps annotations.
    """
    try:
        keys, kinds = _kinds(program)
        expansions = {key: _KNOWN.get(key) or plain(kind) for key, kind in kinds.items()}
        new = [key for key in kinds if expansions[key] is None]
        fresh = dict(zip(new, expanded([kinds[key] for key in new], simplify, around)))
        known = {key: expansion for key, expansion in expansions.items() if expansion is not None}
        simplified = _substituted(program, keys, {**known, **fresh})
    except Unknown:
        return None
    # Expansions are kept only once the whole program has gone through.
    for key, expansion in fresh.items():
        _KNOWN.put(key, expansion)
    return simplified


def _kinds(program: Any) -> tuple[dict[torch.fx.Node, bytes], dict[bytes, OpKind]]:
    """Which kind each op is of, and the kinds."""
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
        raise Unknown
    # What PyTorch makes of an op depends on its settings, so these are part of the key.
    around = surroundings()
    keys: dict[torch.fx.Node, bytes] = {}
    kinds: dict[bytes, OpKind] = {}
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output") or node.target in _NO_OPS:
            continue
        _check(node)
        # An operand that an op reads twice is one placeholder of its expansion.
        operands = list(dict.fromkeys(node.all_input_nodes))
        places = {operand: index for index, operand in enumerate(operands)}
        values = [_leaf(operand.meta.get("val")) for operand in operands]
        arguments = _placed(node.args, places), _placed(node.kwargs, places)
        keys[node] = repr((around, str(node.target), arguments, values)).encode()
        kinds.setdefault(keys[node], OpKind(node, operands))
    return keys, kinds


def _check(node: torch.fx.Node) -> None:
    """Raises :class:`Unknown` for what may change an operand or mean something else another time."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        raise Unknown
    if target.namespace not in NAMESPACES or (target._schema.is_mutable and not _of_constant(node)):
        raise Unknown
    if any(part in target.name() for part in _CHANGING):
        raise Unknown


def _of_constant(node: torch.fx.Node) -> bool:
    """Whether a node is what exporting ``torch.tensor`` writes behind the copy of the constant."""
    (operand,) = node.all_input_nodes[:1] or [node]
    return node.target is torch.ops.aten.detach_.default and operand.target is torch.ops.aten.lift_fresh_copy.default


def _leaf(value: Any) -> Leaf:
    if not isinstance(value, torch.Tensor):
        raise Unknown
    leaf: Leaf = seen_of(value)
    return leaf


def _placed(value: Any, places: Mapping[torch.fx.Node, int]) -> Any:
    return argument_of(torch.fx.map_arg(value, lambda node: f"operand {places[node]}"))


def _substituted(
    program: Any, keys: Mapping[torch.fx.Node, bytes], expansions: Mapping[bytes, Expansion]
) -> Simplified:
    """The program with what became of its ops in their places."""
    graph = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output"):
            values[node] = graph.node_copy(node, lambda n: values[n])
        elif node.target is operator.getitem:
            values[node] = values[node.args[0]][node.args[1]]
        elif node.target is not ASSERTION:
            values[node] = _expanded(graph, node, expansions[keys[node]], values)
    # An expansion gives all results of its op, of which a program may use some only.
    return with_graph(program, graph)


def _expanded(
    graph: torch.fx.Graph, node: torch.fx.Node, expansion: Expansion, values: Mapping[torch.fx.Node, Any]
) -> Any:
    """Results of an op whose expansion is written now."""
    waiting = iter(dict.fromkeys(node.all_input_nodes))
    copies: dict[torch.fx.Node, Any] = {}
    for part in expansion.graph.nodes:
        if part.op == "placeholder":
            copies[part] = values[next(waiting)]
            continue
        args: Any = torch.fx.map_arg(part.args, copies.__getitem__)
        if part.op == "output":
            return args[0][0] if isinstance(node.meta.get("val"), torch.Tensor) else args[0]
        kwargs: Any = torch.fx.map_arg(part.kwargs, copies.__getitem__)
        # The graph numbers names by itself; a name that has a number would get a second one.
        copied = graph.create_node(part.op, part.target, args, kwargs, name=re.sub(r"_\d+$", "", part.name))
        # Block, gradient and loss are those of this op, not of the equal one that was expanded first.
        copied.meta = {"val": part.meta.get("val"), "custom": node.meta.get("custom")}
        if "stack_trace" in node.meta:
            copied.meta["stack_trace"] = node.meta["stack_trace"]
        copies[part] = copied
    raise AssertionError("an expansion ends with its output")


#: The annotation that says which op a node came from.
_OP = "ipuperf_op"


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
        results: list[torch.Tensor] = []
        waiting = iter(leaves)
        for number, kind in enumerate(self.kinds):
            values = {node: next(waiting) for node in kind.operands}
            args = torch.fx.map_arg(kind.node.args, values.__getitem__)
            kwargs = torch.fx.map_arg(kind.node.kwargs, values.__getitem__)
            with torch.fx.traceback.annotate({_OP: number}):
                result = cast(Callable[..., Any], kind.node.target)(*args, **kwargs)
            results += flat(result)
        return tuple(results)


def _like(value: Any) -> torch.Tensor:
    """Another stand-in of the same form: a program has one input for a tensor that it is given twice."""
    with getattr(value, "fake_mode", nullcontext()):
        tensor = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return tensor.requires_grad_(value.requires_grad)


def _taken_apart(kinds: Sequence[OpKind], program: Any) -> list[Expansion]:
    """A program of one op of each kind as what became of each."""
    # PyTorch may add inputs of its own for constants, and those belong to no kind.
    if len(program.graph_signature.input_specs) != sum(len(kind.operands) for kind in kinds):
        raise Unknown
    inputs = iter(program.graph.find_nodes(op="placeholder"))
    operands = [[next(inputs) for _ in kind.operands] for kind in kinds]
    nodes = _assigned(program.graph, operands)
    (output,) = program.graph.find_nodes(op="output")
    outputs = iter(output.args[0])
    results = [[_next_result(outputs, expected) for expected in kind.results] for kind in kinds]
    if next(outputs, None) is not None:
        raise Unknown
    return [Expansion.of(*parts) for parts in zip(operands, nodes, results, strict=True)]


def _assigned(graph: torch.fx.Graph, operands: Sequence[Sequence[torch.fx.Node]]) -> list[list[torch.fx.Node]]:
    """The nodes of each kind: those that say they came from it; one that says nothing goes with its operands."""
    came = {place: number for number, places in enumerate(operands) for place in places}
    nodes: list[list[torch.fx.Node]] = [[] for _ in operands]
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        stated = (node.meta.get("custom") or {}).get(_OP)
        if stated is None and node.target is ASSERTION:
            continue
        numbers = {came[operand] for operand in node.all_input_nodes} if stated is None else {stated}
        # A node that reads operands of two kinds cannot be given to either.
        if node.op != "call_function" or len(numbers) != 1:
            raise Unknown
        (came[node],) = numbers
        nodes[came[node]].append(node)
    return nodes


def _next_result(outputs: Iterator[Any], expected: Any) -> torch.fx.Node:
    """The next result. Later ops were told apart by the strides of the first trace, so these must be the same."""
    node = next(outputs)
    if not isinstance(node, torch.fx.Node) or not isinstance(expected, torch.Tensor):
        raise Unknown
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise Unknown
    if (value.shape, value.stride(), value.dtype) != (expected.shape, expected.stride(), expected.dtype):
        raise Unknown
    return node


aten = torch.ops.aten
Rule = Callable[[OpKind], "Expansion | None"]


def plain(kind: OpKind) -> Expansion | None:
    """What becomes of an op, where that is known; None where only PyTorch knows."""
    target = kind.node.target
    if target in _RULES:
        return _RULES[target](kind)
    if not stays(target) or not all(isinstance(result, torch.Tensor) for result in kind.results):
        return None
    return _replaced_by(kind, target, kind.node.args, kind.node.kwargs)


def _replaced_by(
    kind: OpKind, target: Any, args: Any, kwargs: Mapping[str, Any] | None = None, value: Any = None
) -> Expansion:
    """One op in the place of an op; where it has several results, those of the op are its first items. ``value``: what
    a trace knows of its results, where that is not what it knows of the op's."""
    graph = torch.fx.Graph()
    values = placeholders(graph, kind.operands)
    placed = torch.fx.map_arg((args, dict(kwargs or {})), values.__getitem__)
    op = graph.create_node("call_function", target, *placed, name=target.overloadpacket.__name__)
    op.meta["val"] = kind.node.meta["val"] if value is None else value
    if isinstance(op.meta["val"], torch.Tensor):
        graph.output([op])
        return Expansion(graph)
    items = [graph.call_function(operator.getitem, (op, index)) for index in range(len(kind.results))]
    for member, result in zip(items, kind.results):
        member.meta["val"] = result
    graph.output(items)
    return Expansion(graph)


def _nothing(kind: OpKind) -> Expansion:
    return Expansion.of(kind.operands, [], kind.operands[:1])


def _renamed(target: Any) -> Rule:
    """Another name for the same."""
    return lambda kind: _replaced_by(kind, target, kind.node.args, kind.node.kwargs)


def _cast(kind: OpKind) -> Expansion | None:
    """``to(dtype)``: a copy, or nothing where the type is that of the operand."""
    if len(kind.node.args) != 2 or kind.node.kwargs:
        return None
    operand, dtype = kind.operands[0], kind.node.args[1]
    if operand.meta["val"].dtype == dtype:
        return _nothing(kind)
    return _replaced_by(kind, aten._to_copy.default, (operand,), {"dtype": dtype})


def _reshaped(kind: OpKind) -> Expansion | None:
    """``reshape`` of elements that stand in order: a view."""
    # With other strides reshape may copy, which only PyTorch decides.
    if not kind.operands[0].meta["val"].is_contiguous() or kind.node.kwargs:
        return None
    return _replaced_by(kind, aten.view.default, kind.node.args)


def _regrouped(kind: OpKind) -> Expansion | None:
    """``flatten``, ``unflatten`` of elements that stand in order: a view, or nothing where the axes are the same."""
    (operand,), (result,) = kind.operands, kind.results
    if not operand.meta["val"].is_contiguous():
        return None
    # PyTorch drops a flatten that changes no shape, but keeps a view for an unflatten.
    if result.shape == operand.meta["val"].shape and kind.node.target is aten.flatten.using_ints:
        return _nothing(kind)
    return _replaced_by(kind, aten.view.default, (operand, list(result.shape)))


def _dropout(kind: OpKind) -> Expansion | None:
    """A copy where nothing is dropped."""
    if len(kind.node.args) != 3 or kind.node.kwargs:
        return None
    operand, p, training = kind.node.args
    if not training or p == 0:
        return _replaced_by(kind, aten.clone.default, (operand,))
    (result,) = kind.results
    # native_dropout returns its mask as well, which the trace of dropout does not know.
    both = result, torch.empty_like(result, dtype=torch.bool)
    return _replaced_by(kind, aten.native_dropout.default, (operand, p, True), value=both)


_RULES: Mapping[Any, Rule] = {
    aten.to.dtype: _cast,
    aten.reshape.default: _reshaped,
    aten.flatten.using_ints: _regrouped,
    aten.unflatten.int: _regrouped,
    aten.dropout.default: _dropout,
    aten.detach.default: _renamed(aten.alias.default),
    aten.detach_.default: _nothing,
    aten.lift_fresh_copy.default: _renamed(aten.clone.default),
}
