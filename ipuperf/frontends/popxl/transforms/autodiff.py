"""``popxl.transforms.autodiff`` and what it returns; contract in ``docs/reference/popxl.md`` 6."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from ipuperf import ir as _ir
from ipuperf import ops as _k

from ..arguments import checked_kinds
from ..graph import Graph
from ..handle import Tensor, wrap
from ..ops.call import CallSiteInfo
from ..placement import place_gradients


class ExpectedConnectionType(Enum):
    """What an input or output of a gradient graph stands for."""

    Fwd = "Fwd"
    FwdGrad = "FwdGrad"


@dataclass(frozen=True)
class ExpectedConnection:
    """A forward tensor, and whether its value or its gradient is meant."""

    fwd_tensor: Tensor
    connection_type: ExpectedConnectionType

    @classmethod
    def _from_ir(cls, connection: _ir.Connection) -> ExpectedConnection:
        kind = ExpectedConnectionType.FwdGrad if connection.is_gradient else ExpectedConnectionType.Fwd
        return cls(wrap(connection.tensor), kind)


class GradGraphInfo:
    """A gradient graph and how it connects to calls of the forward graph."""

    def __init__(self, derivative: _ir.Derivative) -> None:
        self._derivative = derivative

    @property
    def graph(self) -> Graph:
        """The gradient graph."""
        return Graph._from_ir(self._derivative.graph)

    @property
    def forward_graph(self) -> Graph:
        """The graph that was differentiated."""
        return Graph._from_ir(self._derivative.forward)

    @property
    def expected_inputs(self) -> tuple[ExpectedConnection, ...]:
        """What each input is: first the given gradients, then forward tensors by id."""
        return tuple(ExpectedConnection._from_ir(c) for c in self._derivative.inputs)

    @property
    def expected_outputs(self) -> tuple[ExpectedConnection, ...]:
        """What each output is: the required gradients in the order asked for."""
        return tuple(ExpectedConnection._from_ir(c) for c in self._derivative.outputs)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Forward tensors behind the inputs."""
        return tuple(c.fwd_tensor for c in self.expected_inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Forward tensors behind the outputs."""
        return tuple(c.fwd_tensor for c in self.expected_outputs)

    def __repr__(self) -> str:
        def listed(connections: tuple[ExpectedConnection, ...]) -> str:
            return "".join(f"\n    {connection!r}," for connection in connections)

        return (
            f"GradGraphInfo[\n  graph={self.graph!r},\n  expected_inputs=({listed(self.expected_inputs)}),\n  "
            f"expected_outputs=({listed(self.expected_outputs)})\n]"
        )

    @checked_kinds()
    def inputs_dict(self, fwd_call_info: CallSiteInfo) -> dict[Tensor, Tensor]:
        """For a call of the forward graph: gradient graph input -> forward tensor at that call, without the gradients.

        Raises:
            TypeError: the call is not one of the forward graph.
        """
        self._check(fwd_call_info)
        connections = self._derivative.inputs
        return {
            wrap(parameter): fwd_call_info.graph_to_parent(wrap(connection.tensor))
            for parameter, connection in zip(self._derivative.graph.inputs, connections)
            if not connection.is_gradient
        }

    @checked_kinds()
    def fwd_graph_ins_to_grad_parent_outs(self, grad_call_info: CallSiteInfo) -> dict[Tensor, Tensor]:
        """Forward graph input -> its gradient, a result of the given call of the gradient graph."""
        return {
            wrap(connection.tensor): grad_call_info.parent_output(index)
            for index, connection in enumerate(self._derivative.outputs)
        }

    @checked_kinds()
    def fwd_parent_ins_to_grad_parent_outs(
        self, fwd_call_info: CallSiteInfo, grad_call_info: CallSiteInfo
    ) -> dict[Tensor, Tensor]:
        """Operand of the forward call -> its gradient, a result of the gradient call."""
        self._check(fwd_call_info)
        outputs = self.fwd_graph_ins_to_grad_parent_outs(grad_call_info)
        return {fwd_call_info.graph_to_parent(t): grad for t, grad in outputs.items()}

    def _check(self, fwd_call_info: CallSiteInfo) -> None:
        if fwd_call_info.called_graph != self.forward_graph:
            raise TypeError(
                f"the call is one of graph {fwd_call_info.called_graph.name!r}; a call of "
                f"{self.forward_graph.name!r} is needed"
            )


@checked_kinds()
def autodiff(
    graph: Graph,
    grads_provided: Iterable[Tensor] | None = None,
    grads_required: Iterable[Tensor] | None = None,
    called_graphs_grad_info: Mapping[Graph, GradGraphInfo] | None = None,
    return_all_grad_graphs: bool = False,
) -> GradGraphInfo | dict[Graph, GradGraphInfo]:
    """Build the gradient graph of ``graph``; forward tensors that it needs become extra outputs of ``graph``.

    Args:
        grads_provided: outputs whose gradients will be given (default: all).
        grads_required: inputs whose gradients are wanted (default: all of floating point).
        called_graphs_grad_info: gradient graphs to use for called graphs.
        return_all_grad_graphs: return those of called graphs too, by forward graph.

    Raises:
        IrError (``popart_exception``): an op that changes a tensor in place, an op without gradient, or a required
            gradient that does not exist.
    """
    known = {g._base: info._derivative for g, info in (called_graphs_grad_info or {}).items()}
    # Differentiating adds to `known`; what is there before it is the caller's.
    settled, others = set(known), list[_ir.Derivative]()
    with graph._base.ir.deep_calls():
        derivative = _k.autodiff(
            graph._base,
            None if grads_provided is None else [t._ir_tensor for t in grads_provided],
            None if grads_required is None else [t._ir_tensor for t in grads_required],
            known,
            others=others,
        )
        for part in (*others, derivative):
            place_gradients(part)
    info = GradGraphInfo(derivative)
    if not return_all_grad_graphs:
        return info
    called = {Graph._from_ir(g): GradGraphInfo(d) for g, d in known.items() if g not in settled}
    return {**called, graph: info}
