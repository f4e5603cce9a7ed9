"""Equal ops of programs are decomposed once.

PyTorch's ``run_decompositions`` traces the whole program again, layer by layer, however equal they are. What becomes
of an op follows from the op, its numbers, and the shapes, strides and types of its operands: so PyTorch is given a
program of one op of each kind that no program had before, and what it made of each
(:mod:`~ipuperf.poptorch.export.expansions`) takes the place of all ops of that kind. The result is the graph that
``run_decompositions`` of the whole program gives, with its names (but those of selected results) and without the
assertions before casts.

Programs that this cannot be said of are decomposed whole: those that change a tensor, have regions (``no_grad``), or
use ops of other libraries.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.export.graph_signature import OutputKind, TensorArgument

from .expansions import ASSERTION, Expansion, OpKind, expanded
from .plain import plain
from .reuse import NAMESPACES, Newest, Simplified, Unknown, argument_of, seen_of, surroundings

_CHANGING = ("batch_norm", "instance_norm", "rrelu")
"""Parts of the names of ops that change an operand without saying so in their schemas."""
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
        found = {key: _KNOWN.get(key) or plain(kind) for key, kind in kinds.items()}
        new = [key for key in kinds if found[key] is None]
        made = dict(zip(new, expanded([kinds[key] for key in new], simplify, around)))
        known = {key: expansion for key, expansion in found.items() if expansion is not None}
        simplified = _substituted(program, keys, {**known, **made})
    except Unknown:
        return None
    for key, expansion in made.items():
        _KNOWN.put(key, expansion)
    return simplified


def _kinds(program: Any) -> tuple[dict[torch.fx.Node, bytes], dict[bytes, OpKind]]:
    """Which kind each op is of, and the kinds."""
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
        raise Unknown
    around = surroundings()
    keys: dict[torch.fx.Node, bytes] = {}
    kinds: dict[bytes, OpKind] = {}
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output") or node.target in _NO_OPS:
            continue
        _check(node)
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
    found: Leaf = seen_of(value)
    return found


def _placed(value: Any, places: Mapping[torch.fx.Node, int]) -> Any:
    return argument_of(torch.fx.map_arg(value, lambda node: f"operand {places[node]}"))


def _substituted(program: Any, keys: Mapping[torch.fx.Node, bytes], found: Mapping[bytes, Expansion]) -> Simplified:
    """The program with what became of its ops in their places."""
    graph = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output"):
            values[node] = graph.node_copy(node, lambda n: values[n])
        elif node.target is operator.getitem:
            values[node] = values[node.args[0]][node.args[1]]
        elif node.target is not ASSERTION:
            values[node] = _expanded(graph, node, found[keys[node]], values)
    graph.eliminate_dead_code()
    (output,) = graph.find_nodes(op="output")
    specs = [
        replace(spec, arg=TensorArgument(name=node.name)) if isinstance(node, torch.fx.Node) else spec
        for spec, node in zip(program.graph_signature.output_specs, output.args[0], strict=True)
    ]
    signature = replace(program.graph_signature, output_specs=specs)
    return Simplified(torch.fx.GraphModule(torch.nn.Module(), graph), signature, dict(program.constants))


def _expanded(
    graph: torch.fx.Graph, node: torch.fx.Node, expansion: Expansion, values: Mapping[torch.fx.Node, Any]
) -> Any:
    """Results of an op whose expansion is written now."""
    waiting = iter(dict.fromkeys(node.all_input_nodes))
    inner: dict[torch.fx.Node, Any] = {}
    for made in expansion.graph.nodes:
        if made.op == "placeholder":
            inner[made] = values[next(waiting)]
            continue
        args: Any = torch.fx.map_arg(made.args, inner.__getitem__)
        if made.op == "output":
            return args[0][0] if isinstance(node.meta.get("val"), torch.Tensor) else args[0]
        kwargs: Any = torch.fx.map_arg(made.kwargs, inner.__getitem__)
        copied = graph.create_node(made.op, made.target, args, kwargs, name=re.sub(r"_\d+$", "", made.name))
        copied.meta = {"val": made.meta.get("val"), "custom": node.meta.get("custom")}
        if "stack_trace" in node.meta:
            copied.meta["stack_trace"] = node.meta["stack_trace"]
        inner[made] = copied
    raise AssertionError("an expansion ends with its output")
