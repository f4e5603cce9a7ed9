"""Calls of subgraphs: ``ops.call``, ``ops.call_with_info`` and :class:`CallSiteInfo`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ipuperf import ir as _ir
from ipuperf import ops as _k
from ipuperf.frontends.options import POPXL as EFFECTS

from ..arguments import checked_arguments, checked_kinds
from ..graph import Graph
from ..handle import Tensor, wrap, wrap_all
from .operands import create, ensure_tensor, is_operand

OpT = TypeVar("OpT", bound=_k.Op)


class SiteInfo(Generic[OpT]):
    """What is known of any op that executes graphs."""

    def __init__(self, op: OpT) -> None:
        self._op = op

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Operands in the parent graph."""
        return wrap_all(self._op.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Results in the parent graph."""
        return wrap_all(self._op.outputs)

    def _index(self, idx: int, count: int, what: str) -> int:
        """``idx``, or IndexError where there are not as many."""
        if not 0 <= idx < count:
            raise IndexError(f"{self._op.label}: {what} {idx} does not exist; there are {count}")
        return idx


class CallSiteInfo(SiteInfo[_k.Op]):
    """One call of a graph: which operand stands for which input, which result for which output.

    For ``repeat`` the called graph is the user's graph (upstream puts a wrapper between).
    """

    @property
    def called_graph(self) -> Graph:
        """The subgraph."""
        return Graph._from_ir(self._op.called_graphs()[0])

    @checked_arguments
    def graph_to_parent_input_index(self, idx: int) -> int:
        """Operand index of input ``idx`` of the subgraph."""
        return self._index(idx, len(self._op.inputs), "input")

    @checked_arguments
    def parent_to_graph_input_index(self, idx: int) -> int:
        """Subgraph input of operand ``idx``."""
        return self._index(idx, len(self._op.inputs), "input")

    @checked_arguments
    def graph_to_parent_output_index(self, idx: int) -> int:
        """Result index of output ``idx`` of the subgraph."""
        return self._index(idx, len(self._op.outputs), "output")

    @checked_arguments
    def parent_to_graph_output_index(self, idx: int) -> int:
        """Subgraph output of result ``idx``."""
        return self._index(idx, len(self._op.outputs), "output")

    @checked_arguments
    def parent_input(self, idx: int) -> Tensor:
        """Operand ``idx``."""
        return self.inputs[self._index(idx, len(self._op.inputs), "operand")]

    @checked_arguments
    def parent_output(self, idx: int) -> Tensor:
        """Result ``idx``."""
        return self.outputs[self._index(idx, len(self._op.outputs), "result")]

    @checked_arguments
    def graph_to_parent(self, graph_tensor: Tensor) -> Tensor:
        """The tensor of the parent graph that stands for an input or output of the subgraph (ValueError if none)."""
        callee = self._op.called_graphs()[0]
        inner = graph_tensor._ir_tensor
        if inner in callee.inputs:
            return wrap(self._op.inputs[callee.inputs.index(inner)])
        if inner in callee.outputs:
            return wrap(self._op.outputs[callee.outputs.index(inner)])
        raise ValueError(f"{graph_tensor.id!r} is neither an input nor an output of the called graph {callee.name!r}")

    @checked_arguments
    def parent_to_graph(self, parent_tensor: Tensor) -> Tensor:
        """The (first) input of the subgraph for which an operand stands, or the output for a result."""
        callee = self._op.called_graphs()[0]
        outer = parent_tensor._ir_tensor
        if outer in self._op.inputs:
            return wrap(callee.inputs[self._op.inputs.index(outer)])
        if outer in self._op.outputs:
            return wrap(callee.outputs[self._op.outputs.index(outer)])
        raise ValueError(f"{parent_tensor.id!r} is neither an operand nor a result of {self._op.label}")

    @checked_arguments
    def set_parent_input_modified(self, parent_tensor: Tensor, infer_modified_regions: bool = False) -> None:
        """Let the caller see the changes that the subgraph makes to this operand."""
        EFFECTS.given("ops.CallSiteInfo.set_parent_input_modified(infer_modified_regions)", infer_modified_regions)
        outer = parent_tensor._ir_tensor
        if outer not in self._op.inputs:
            raise ValueError(f"{parent_tensor.id!r} is not an operand of {self._op.label}")
        # One operand may stand for several inputs, and then all of them change it.
        indices = {i for i, t in enumerate(self._op.inputs) if t is outer}
        self._op.attributes["by_ref"] = tuple(sorted({*self._op.attributes.get("by_ref", ()), *indices}))


def flatten_operands(inputs: Sequence[Any]) -> list[Any]:
    """Positional operands, one level of nesting resolved (lists, views of dictionaries, iterators); an array is one
    operand. Host data becomes constants later."""
    flat: list[Any] = []
    for value in inputs:
        one = not isinstance(value, Iterable) or isinstance(value, str) or hasattr(value, "dtype")
        flat.extend([value] if one else value)
    return flat


def resolve_operands(
    graph: Graph, inputs: Sequence[Any], inputs_dict: Mapping[Tensor, Any] | None, what: str
) -> list[Tensor]:
    """One operand per input of ``graph``: the positional ones for the first inputs, those in ``inputs_dict`` at theirs.

    Raises:
        ValueError: too few or too many operands, an input given twice, or a key that is no input of the graph;
            TypeError: no tensor.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"{what} of {graph!r}, which is no graph; make one with ir.create_graph")
    if inputs_dict is not None and not isinstance(inputs_dict, Mapping):
        raise TypeError(
            f"{what} of graph {graph.name!r}: inputs_dict is a {type(inputs_dict).__name__}; a mapping of its "
            "inputs to operands is needed"
        )
    named = {k._ir_tensor: v for k, v in (inputs_dict or {}).items()}
    parameters = graph._base.inputs
    unknown = [k.id for k in named if k not in parameters]
    if unknown:
        raise ValueError(f"{what} of graph {graph.name!r}: {unknown} are no inputs of it: not in the called graph")
    positional = flatten_operands(inputs)
    if problem := _miscounted(parameters, positional, named):
        raise ValueError(
            f"{problem}: {what} of graph {graph.name!r} with {len(parameters)} inputs: {len(positional)} operands by "
            f"position, {len(named)} in inputs_dict"
        )
    operands: list[Tensor] = []
    for index, parameter in enumerate(parameters):
        value = positional[index] if index < len(positional) else named[parameter]
        if not is_operand(value):
            raise TypeError(f"{what} of graph {graph.name!r}: input {parameter.id!r} got a {type(value).__name__}")
        operands.append(ensure_tensor(value, wrap(parameter).dtype))
    return operands


def _miscounted(parameters: Sequence[_ir.Tensor], positional: Sequence[Any], named: Mapping[_ir.Tensor, Any]) -> str:
    """What is wrong with the number of operands; empty when each input has one."""
    if len(positional) > len(parameters):
        return "Too many inputs have been provided"
    if twice := [t.id for t in parameters[: len(positional)] if t in named]:
        return f"Graph input tensor is specified twice, by position and in inputs_dict: {', '.join(twice)}"
    missing = [t.id for t in parameters[len(positional) :] if t not in named]
    return f"Not enough inputs have been provided; missing: {', '.join(missing)}" if missing else ""


@checked_kinds("graph", "inputs_dict")
def call_with_info(
    graph: Graph, *inputs: Any, inputs_dict: Mapping[Tensor, Any] | None = None, check_inputs: bool = True
) -> CallSiteInfo:
    """Call ``graph``; operands positionally in the order of its inputs, or by input in ``inputs_dict``.

    Raises:
        ValueError: operands do not fit the inputs in number, shape, dtype or meta shape.
    """
    EFFECTS.given("ops.call_with_info(check_inputs)", check_inputs)
    operands = resolve_operands(graph, inputs, inputs_dict, "call")
    op = create(_k.Call, operands, [t.name for t in graph._base.outputs], callee=graph._base)
    assert isinstance(op, _k.Op)
    return CallSiteInfo(op)


def call(graph: Graph, *inputs: Any, inputs_dict: Mapping[Tensor, Any] | None = None) -> tuple[Tensor, ...]:
    """As :func:`call_with_info`, giving the results: always a tuple, also of one or none."""
    return call_with_info(graph, *inputs, inputs_dict=inputs_dict).outputs


__all__ = ["CallSiteInfo", "call", "call_with_info", "resolve_operands"]
