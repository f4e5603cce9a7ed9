"""``addons.recompute_graph``: a gradient graph that computes the forward values it needs anew."""

from __future__ import annotations

from ipuperf import ir as _ir
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.transforms.autodiff import ExpectedConnectionType, GradGraphInfo

from ..graph import BoundGraph, GraphWithNamedArgs
from ..utils import suffix_graph_name


class _Inputs:
    """Inputs of the recomputing graph and what they stand for."""

    def __init__(self, info: GradGraphInfo) -> None:
        self.info = info
        self.forward: dict[popxl.Tensor, popxl.Tensor] = {}
        self.gradient: dict[popxl.Tensor, popxl.Tensor] = {}
        self.connections: list[_ir.Connection] = []

    def add_expected(self) -> None:
        """In the order of the gradient graph: the given gradients and those forward inputs that it asks for; then the
        other forward inputs, by name."""
        needed = self.info.forward_graph.inputs
        for parameter, expected in zip(self.info.graph.inputs, self.info.expected_inputs):
            if expected.connection_type is ExpectedConnectionType.FwdGrad:
                self.gradient[parameter] = _input_like(parameter)
                self.connections.append(_ir.Connection(expected.fwd_tensor._ir_tensor, True))
            elif expected.fwd_tensor in needed:
                self._add_forward(expected.fwd_tensor)
        # A set has no order; names give every build of a program the same one.
        for tensor in sorted(set(needed) - set(self.forward), key=lambda t: t.name):
            self._add_forward(tensor)

    def _add_forward(self, tensor: popxl.Tensor) -> None:
        self.forward[tensor] = _input_like(tensor)
        self.connections.append(_ir.Connection(tensor._ir_tensor, False))

    def add_others(self) -> None:
        """Inputs of the gradient graph that autodiff did not make, as accumulators, by name."""
        graph = self.info.graph
        by_ref = graph._by_ref_inputs
        for tensor in sorted(set(graph.inputs) - set(self.gradient), key=lambda t: t.name):
            self.gradient[tensor] = _input_like(tensor, by_ref=tensor in by_ref)


def _input_like(tensor: popxl.Tensor, by_ref: bool = False) -> popxl.Tensor:
    stashed = popxl.graph_input(tensor.shape, tensor.dtype, tensor.name, by_ref=by_ref, meta_shape=tensor.meta_shape)
    stashed._ir_tensor.ipu = tensor._ir_tensor.ipu
    return stashed


@checked_arguments
def recompute_graph(grad_graph: GraphWithNamedArgs) -> GraphWithNamedArgs:
    """A graph that calls the forward graph and then ``grad_graph``, with the same outputs and named inputs.

    Its ``grad_graph_info`` asks for the given gradients and the *inputs* of the forward graph only, so nothing else has
    to be kept (or stashed) between forward and backward.

    Raises:
        ValueError: ``grad_graph`` was not made by autodiff.
    """
    info = grad_graph.grad_graph_info
    with _ir.CONTEXT.phase("bwd"):
        graph = popxl.gir().create_empty_graph(suffix_graph_name(grad_graph.name, "recomp"))
    inputs = _Inputs(info)
    with graph:
        inputs.add_expected()
        with _ir.CONTEXT.phase("recompute"):
            forward = BoundGraph(info.forward_graph, inputs.forward).call_with_info()
        inputs.gradient.update(info.inputs_dict(forward))
        inputs.add_others()
        backward = BoundGraph(grad_graph.graph, inputs.gradient).call_with_info()
        for output in backward.outputs:
            popxl.graph_output(output)
    outputs = list(info._derivative.outputs)
    derivative = _ir.Derivative(info.forward_graph._base, graph._base, inputs.connections, outputs)
    args = grad_graph.args.remap(inputs.gradient)
    return GraphWithNamedArgs(graph, args, GradGraphInfo(derivative))
