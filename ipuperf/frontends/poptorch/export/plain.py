"""Ops of which it is known what PyTorch's decomposition makes of them: nothing, or one other op.

``tests/poptorch/test_poptorch_export_once.py`` holds this against ``run_decompositions``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .composites import stays
from .expansions import Expansion, OpKind, placeholders

aten = torch.ops.aten
Rule = Callable[[OpKind], "Expansion | None"]


def plain(kind: OpKind) -> Expansion | None:
    """What becomes of an op, where that is known; None where only PyTorch knows."""
    target = kind.node.target
    if target in _RULES:
        return _RULES[target](kind)
    if not stays(target) or not all(isinstance(result, torch.Tensor) for result in kind.results):
        return None
    return _written(kind, target, kind.node.args, kind.node.kwargs)


def _written(
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
    for item, result in zip(items, kind.results):
        item.meta["val"] = result
    graph.output(items)
    return Expansion(graph)


def _nothing(kind: OpKind) -> Expansion:
    return Expansion.of(kind.operands, [], kind.operands[:1])


def _renamed(target: Any) -> Rule:
    """Another name for the same."""
    return lambda kind: _written(kind, target, kind.node.args, kind.node.kwargs)


def _cast(kind: OpKind) -> Expansion | None:
    """``to(dtype)``: a copy, or nothing where the type is that of the operand."""
    if len(kind.node.args) != 2 or kind.node.kwargs:
        return None
    operand, dtype = kind.operands[0], kind.node.args[1]
    if operand.meta["val"].dtype == dtype:
        return _nothing(kind)
    return _written(kind, aten._to_copy.default, (operand,), {"dtype": dtype})


def _reshaped(kind: OpKind) -> Expansion | None:
    """``reshape`` of elements that stand in order: a view."""
    if not kind.operands[0].meta["val"].is_contiguous() or kind.node.kwargs:
        return None
    return _written(kind, aten.view.default, kind.node.args)


def _regrouped(kind: OpKind) -> Expansion | None:
    """``flatten``, ``unflatten`` of elements that stand in order: a view, or nothing where the axes are the same."""
    (operand,), (result,) = kind.operands, kind.results
    if not operand.meta["val"].is_contiguous():
        return None
    if result.shape == operand.meta["val"].shape and kind.node.target is aten.flatten.using_ints:
        return _nothing(kind)
    return _written(kind, aten.view.default, (operand, list(result.shape)))


def _dropout(kind: OpKind) -> Expansion | None:
    """A copy where nothing is dropped."""
    if len(kind.node.args) != 3 or kind.node.kwargs:
        return None
    operand, p, training = kind.node.args
    if not training or p == 0:
        return _written(kind, aten.clone.default, (operand,))
    (result,) = kind.results
    both = result, torch.empty_like(result, dtype=torch.bool)
    return _written(kind, aten.native_dropout.default, (operand, p, True), value=both)


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
