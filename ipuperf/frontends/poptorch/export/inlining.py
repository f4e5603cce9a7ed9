"""Functions of PyTorch as ops of a program whose export is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from ..aten.table import decomposition_of, handler_of

#: Rounds of decomposition: an op may become one that has to be decomposed in turn.
_ROUNDS = 8


def graph_of(
    function: Callable[..., Sequence[torch.Tensor | None]],
    examples: Sequence[torch.Tensor],
    rules: Mapping[Any, Any] = MappingProxyType({}),
) -> torch.fx.Graph:
    """The ops of ``function`` of tensors like these; as far as PyTorch can tell, only such as have a handler.

    Args:
        rules: decompositions to use in any case.
    """
    table: dict[Any, Any] = dict(rules)
    for _ in range(_ROUNDS):
        with FakeTensorMode(allow_non_fake_inputs=True):
            operands = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in examples]
            module = make_fx(function, decomposition_table=table)(*operands)
            if any(_changes(node.target) for node in module.graph.nodes):
                module = make_fx(functionalize(torch.fx.Interpreter(module).run), decomposition_table=table)(*operands)
        graph = module.graph
        # Autograd detaches what it saves; here its formulas are differentiated in turn.
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        targets = {node.target for node in graph.nodes if handler_of(node.target) is None} - table.keys()
        new = {target: rule for target in targets if (rule := decomposition_of(target)) is not None}
        if not new:
            break
        table |= new
    return graph


def _changes(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def inlined(
    graph: torch.fx.Graph,
    ops: torch.fx.Graph,
    operands: Sequence[torch.fx.Node],
    tags: Mapping[str, Any],
    there: Mapping[torch.fx.Node, torch.fx.Node] = MappingProxyType({}),
) -> list[torch.fx.Node]:
    """The results of ``ops``, which are written at the end of ``graph`` with the annotations ``tags``; those that are
    ``there`` already are not."""
    waiting, copies = iter(operands), dict[torch.fx.Node, Any]()
    for node in ops.nodes:
        if node.op == "placeholder":
            copies[node] = next(waiting)
        elif node in there:
            copies[node] = there[node]
        elif node.op == "output":
            return list(torch.fx.map_arg(node.args[0], copies.__getitem__))
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {"val": node.meta.get("val"), "custom": dict(tags)}
    raise AssertionError("a graph without results")
