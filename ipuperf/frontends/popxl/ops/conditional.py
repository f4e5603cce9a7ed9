"""Choosing between two graphs at run time: ``ops.conditional`` and ``ops.conditional_with_info``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipuperf import ir as _ir
from ipuperf import ops as _k
from ipuperf.frontends.options import POPXL as EFFECTS

from ..arguments import checked_arguments
from ..dtypes import dtype as _dtype
from ..graph import Graph
from ..handle import Tensor, wrap
from .call import SiteInfo, resolve_operands
from .operands import create, ensure_tensor

Inputs = Sequence[Any] | None
InputsDict = Mapping[Tensor, Any] | None


class ConditionalSiteInfo(SiteInfo[_k.If]):
    """One conditional: which operand stands for which input of which branch, which result for which output.

    Operand 0 is the condition; behind it are the operands of the then-branch, then those of the else-branch.
    """

    @property
    def called_graph(self) -> tuple[Graph, Graph]:
        """The graph where the condition is true, and the other one."""
        return Graph._from_ir(self._op.then_branch), Graph._from_ir(self._op.else_branch)

    def _branch(self, then_branch: bool) -> tuple[_ir.Graph, int]:
        """A branch and the index of its first operand."""
        op = self._op
        return (op.then_branch, 1) if then_branch else (op.else_branch, 1 + len(op.then_branch.inputs))

    @checked_arguments
    def is_parent_index_in_then_branch(self, parent_index: int) -> bool:
        """Whether operand ``parent_index`` is the then-branch's; IndexError for the condition and beyond the last."""
        self._index(parent_index - 1, len(self._op.inputs) - 1, "operand behind the condition")
        return parent_index <= len(self._op.then_branch.inputs)

    @checked_arguments
    def graph_to_parent_input_index(self, subgraph_index: int, then_branch: bool) -> int:
        """Operand index of an input of a branch."""
        graph, first = self._branch(then_branch)
        return first + self._index(subgraph_index, len(graph.inputs), f"input of {graph.name!r}")

    @checked_arguments
    def parent_to_graph_input_index(self, parent_index: int) -> int:
        """Index of the input, of its branch, for which an operand stands."""
        return parent_index - self._branch(self.is_parent_index_in_then_branch(parent_index))[1]

    @checked_arguments
    def graph_to_parent_output_index(self, subgraph_index: int, then_branch: bool) -> int:
        """Result index of an output of a branch."""
        graph, _ = self._branch(then_branch)
        return self._index(subgraph_index, len(graph.outputs), f"output of {graph.name!r}")

    @checked_arguments
    def parent_to_graph_output_index(self, parent_index: int, then_branch: bool) -> int:
        """Index of a branch's output for which a result stands."""
        graph, _ = self._branch(then_branch)
        return self._index(parent_index, len(graph.outputs), f"output of {graph.name!r} for result")

    @checked_arguments
    def parent_input(self, parent_index: int) -> Tensor:
        """Operand ``parent_index``."""
        return self.inputs[parent_index]

    @checked_arguments
    def parent_output(self, parent_index: int) -> Tensor:
        """Result ``parent_index``."""
        return self.outputs[parent_index]

    @checked_arguments
    def graph_to_parent(self, graph_tensor: Tensor) -> Tensor:
        """The tensor of the parent graph that stands for an input or output of a branch (ValueError if none)."""
        inner = graph_tensor._ir_tensor
        for graph, operands in self._op.calls():
            if inner in graph.inputs:
                return wrap(operands[graph.inputs.index(inner)])
            if inner in graph.outputs:
                return wrap(self._op.outputs[graph.outputs.index(inner)])
        raise ValueError(f"{graph_tensor.id!r} is neither an input nor an output of the branches of {self._op.label}")

    @checked_arguments
    def parent_to_graph(self, parent_tensor: Tensor) -> Tensor:
        """The first input of a branch for which an operand stands, or the then-branch's output for a result."""
        outer = parent_tensor._ir_tensor
        for graph, operands in self._op.calls():
            if outer in operands:
                return wrap(graph.inputs[list(operands).index(outer)])
        if outer in self._op.outputs:
            return wrap(self._op.then_branch.outputs[self._op.outputs.index(outer)])
        raise ValueError(f"{parent_tensor.id!r} is neither an operand nor a result of {self._op.label}")

    @checked_arguments
    def set_parent_input_modified(self, parent_tensor: Tensor) -> None:
        """NotImplementedError, as upstream: branches take values."""
        raise NotImplementedError(f"{self._op.label}: a branch cannot change {parent_tensor.id!r} of its caller")


def _operands(graph: Graph, inputs: Inputs, inputs_dict: InputsDict, what: str) -> list[Tensor]:
    by_ref = [t.id for t in graph._by_ref_inputs]
    if by_ref:
        raise NotImplementedError(f"{what} {graph.name!r} takes {by_ref} by reference; branches take values")
    return resolve_operands(graph, () if inputs is None else inputs, inputs_dict, what)


@checked_arguments
def conditional_with_info(
    cond: Tensor,
    then_branch: Graph,
    else_branch: Graph,
    then_inputs: Inputs = None,
    else_inputs: Inputs = None,
    then_inputs_dict: InputsDict = None,
    else_inputs_dict: InputsDict = None,
    check_inputs: bool = True,
) -> ConditionalSiteInfo:
    """Execute ``then_branch`` where the boolean scalar ``cond`` is true, ``else_branch`` where it is not; see
    :class:`ipuperf.ops.If` for what it costs.

    Raises:
        ValueError: operands do not fit the inputs of their branch, or the branches' results differ; TypeError: an
            operand is no tensor; NotImplementedError: a branch takes an input by reference.
    """
    EFFECTS.given("ops.conditional_with_info(check_inputs)", check_inputs)
    operands = [
        ensure_tensor(cond, _dtype.as_dtype(bool)),
        *_operands(then_branch, then_inputs, then_inputs_dict, "then-branch"),
        *_operands(else_branch, else_inputs, else_inputs_dict, "else-branch"),
    ]
    then, other = then_branch._base.outputs, else_branch._base.outputs
    if len(then) != len(other):
        raise ValueError(
            f"conditional: graph {then_branch.name!r} has {len(then)} outputs, graph {else_branch.name!r} "
            f"{len(other)}; branches need the same number"
        )
    names = [f"{a.name}_or_{b.name}" for a, b in zip(then, other, strict=True)]
    op = create(_k.If, operands, names, then_branch=then_branch._base, else_branch=else_branch._base)
    assert isinstance(op, _k.If)
    return ConditionalSiteInfo(op)


@checked_arguments
def conditional(
    cond: Tensor,
    then_branch: Graph,
    else_branch: Graph,
    then_inputs: Inputs = None,
    else_inputs: Inputs = None,
    then_inputs_dict: InputsDict = None,
    else_inputs_dict: InputsDict = None,
) -> tuple[Tensor, ...]:
    """As :func:`conditional_with_info`, giving the results: always a tuple."""
    info = conditional_with_info(
        cond, then_branch, else_branch, then_inputs, else_inputs, then_inputs_dict, else_inputs_dict
    )
    return info.outputs


__all__ = ["ConditionalSiteInfo", "conditional", "conditional_with_info"]
