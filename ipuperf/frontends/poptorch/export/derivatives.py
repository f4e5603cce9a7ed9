"""``torch.autograd.grad`` within a model: the gradients are ops of the forward pass, which can be differentiated again.

A trace marks each call. After the program is simple, the mark becomes, op by op from the outputs back to the inputs,
what PyTorch's own formulas compute; values of the forward pass that they need are not computed again.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.utils._pytree as pytree
from torch._decomp import get_decompositions

from ..aten.table import name_of
from ..errors import UnsupportedError
from .inlining import graph_of, inlined
from .lines import location_of_node, tags_of
from .reuse import Simplified, with_graph

MARK = "ipuperf::derivative"
#: Annotation of a node: whether gradients flow through it.
GRAD = "ipuperf_grad"
#: Ops some results of which no handler gives.
_PARTLY = get_decompositions([torch.ops.aten.native_layer_norm, torch.ops.aten.native_group_norm])


@torch.library.custom_op(MARK, mutates_args=())
def _derivative(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], seeds: list[torch.Tensor], unused: bool
) -> list[torch.Tensor]:
    raise UnsupportedError("a derivative within a model runs in a program only")


@_derivative.register_fake
def _(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], seeds: list[torch.Tensor], unused: bool
) -> list[torch.Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs]


def gradients(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[torch.Tensor, ...]:
    """``torch.autograd.grad`` while a model is exported.

    Raises:
        UnsupportedError: ``is_grads_batched``, or ``allow_unused`` without ``materialize_grads``: whether a gradient
            is None is not known yet.
    """
    if is_grads_batched:
        raise UnsupportedError("torch.autograd.grad: is_grads_batched=True is unsupported; use torch.func.vmap")
    if allow_unused and not materialize_grads:
        raise UnsupportedError(
            "torch.autograd.grad: allow_unused=True is unsupported, as None would stand for a gradient; leave out what "
            "the outputs do not depend on, or give materialize_grads=True"
        )
    last, first = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (outputs, inputs))
    grads = [grad_outputs] if isinstance(grad_outputs, torch.Tensor) else list(grad_outputs or [None] * len(last))
    seeds = [torch.ones_like(y) if seed is None else seed for y, seed in zip(last, grads, strict=True)]
    derivatives = torch.ops.ipuperf.derivative(last, first, seeds, materialize_grads)
    return tuple(derivatives) if create_graph else tuple(grad.detach() for grad in derivatives)


def without_derivatives(program: Any) -> Simplified:
    """``program`` with ops in the place of the marks.

    Raises:
        UnsupportedError: the outputs do not depend on an input, or an op's formula is not known.
    """
    if not program.graph.find_nodes(op="call_function", target=torch.ops.ipuperf.derivative.default):
        return cast(Simplified, program)
    graph, values = torch.fx.Graph(), dict[torch.fx.Node, Any]()
    for node in program.graph.nodes:
        if node.target is torch.ops.ipuperf.derivative.default:
            operands = torch.fx.map_arg(node.args, values.__getitem__)
            values[node] = _Reverse(graph, node, *operands).results()
        elif node.target is operator.getitem and isinstance(values[node.args[0]], list):
            values[node] = values[node.args[0]][node.args[1]]
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
    return with_graph(program, graph)


class _Reverse:
    """One call: the walk from its outputs to its inputs, in a graph at the end of which the call stands."""

    def __init__(
        self, graph: torch.fx.Graph, mark: torch.fx.Node, outputs: Any, inputs: Any, seeds: Any, unused: bool
    ) -> None:
        self.graph, self.inputs, self.unused = graph, list(inputs), unused
        self.tags, self.line = tags_of(mark), location_of_node(mark)
        self.grads: dict[tuple[torch.fx.Node, int], torch.fx.Node] = {}
        for output, seed in zip(outputs, seeds, strict=True):
            self._collect(output, seed)

    def results(self) -> list[torch.fx.Node]:
        """The gradients of the inputs."""
        nodes = list(self.graph.nodes)
        active = set(self.inputs)
        for node in nodes:
            if node.op == "call_function" and tags_of(node).get(GRAD, True) and active & set(node.all_input_nodes):
                active.add(node)
        for node in reversed(nodes):
            if node in active and node.op == "call_function":
                self._through(node, [operand for operand in node.all_input_nodes if operand in active])
        return [self._result(x) for x in self.inputs]

    def _result(self, x: torch.fx.Node) -> torch.fx.Node:
        if _place(x) in self.grads:
            return self.grads[_place(x)]
        if not self.unused:
            raise UnsupportedError(
                f"{self.line}: torch.autograd.grad: the outputs do not depend on an input of shape "
                f"{tuple(x.meta['val'].shape)}"
            )
        return self._computed(lambda value: [torch.zeros_like(value)], [x])[0]

    def _computed(self, function: Any, operands: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
        ops = graph_of(function, [operand.meta["val"] for operand in operands], _PARTLY)
        return inlined(self.graph, ops, operands, self.tags)

    def _collect(self, node: torch.fx.Node, grad: torch.fx.Node) -> None:
        key = _place(node)
        if key in self.grads:
            (grad,) = self._computed(lambda a, b: [a + b], [self.grads[key], grad])
        self.grads[key] = grad

    def _through(self, node: torch.fx.Node, active: Sequence[torch.fx.Node]) -> None:
        """Bring the gradients of an op's results to its operands."""
        shown = pytree.tree_leaves(node.meta["val"])
        places = [place for place in range(len(shown)) if (node, place) in self.grads]
        floating = [operand for operand in active if _is_floating(operand)]
        if not places or not floating or node.target is operator.getitem:
            return
        operands = node.all_input_nodes

        def run(*parts: torch.Tensor) -> list[torch.Tensor | None]:
            known = dict(zip(operands, parts, strict=False))
            with torch.enable_grad():
                sources = [known[operand].requires_grad_() for operand in floating]
                args, kwargs = pytree.tree_map_only(torch.fx.Node, known.__getitem__, (node.args, node.kwargs))
                results = pytree.tree_leaves(cast(Any, node.target)(*args, **kwargs))
            seeds = zip(places, parts[len(operands) :], strict=True)
            flowing = [(results[place], seed) for place, seed in seeds if results[place].requires_grad]
            if not flowing:
                return [None] * (len(floating) + 1)
            ends, end_grads = zip(*flowing, strict=True)
            return [*torch.autograd.grad(ends, sources, end_grads, allow_unused=True), results[0]]

        seeds = [self.grads[node, place] for place in places]
        all_operands = [*operands, *seeds]
        try:
            ops = graph_of(run, [x.meta["val"] for x in all_operands], _PARTLY)
        except (RuntimeError, NotImplementedError) as error:
            raise UnsupportedError(
                f"{self.line}: torch.autograd.grad within a model through {name_of(node.target)} "
                f"({location_of_node(node)}) is unsupported: {str(error).splitlines()[0]}"
            ) from error
        *_, result = ops.find_nodes(op="output")[0].args[0]
        same = {result: node} if isinstance(node.meta["val"], torch.Tensor) and result is not None else {}
        for operand, grad in zip(floating, inlined(self.graph, ops, all_operands, self.tags, same), strict=False):
            if grad is not None:
                self._collect(operand, grad)


def _place(node: torch.fx.Node) -> tuple[torch.fx.Node, int]:
    """Which result of which op a node is."""
    if node.target is operator.getitem:
        return cast(torch.fx.Node, node.args[0]), cast(int, node.args[1])
    return node, 0


def _is_floating(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point()
