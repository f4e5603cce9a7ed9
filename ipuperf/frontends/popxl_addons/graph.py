"""``GraphWithNamedArgs``: a subgraph whose inputs have names; ``BoundGraph``: one with tensors attached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ipuperf import ir as _ir
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.ops.call import CallSiteInfo
from ipuperf.frontends.popxl.transforms.autodiff import GradGraphInfo

from .graph_common import CalledGradients
from .identity import upstream_repr
from .named_tensors import NamedTensors, TensorMap

if TYPE_CHECKING:
    from .custom_gradient import Aux
    from .module import Module

Args = NamedTensors | Mapping[popxl.Tensor, popxl.Tensor] | None


class GraphWithNamedArgs:
    """A graph with names for some of its inputs.

    Args:
        graph: the graph.
        args: its named inputs.
        grad_graph_info: for a gradient graph, how it belongs to its forward graph.
        from_module: the module that made the graph, whose ``build_grad`` counts if it defines one.
        aux: what ``build`` left for it.
        called_graphs_grad_info: gradients of called graphs, used by :meth:`autodiff`.
    """

    @checked_arguments
    def __init__(
        self,
        graph: popxl.Graph,
        args: NamedTensors | None = None,
        grad_graph_info: GradGraphInfo | None = None,
        from_module: Module | None = None,
        aux: Aux | None = None,
        called_graphs_grad_info: Mapping[Any, Any] | None = None,
    ) -> None:
        self.graph = graph
        self.args = args if args is not None else NamedTensors()
        self._grad_graph_info = grad_graph_info
        self._from_module = from_module
        self._aux = aux
        self.called_graphs_grad_info: Mapping[Any, Any] = CalledGradients(called_graphs_grad_info)
        self.autodiff_applied = False

    @classmethod
    @checked_arguments
    def from_grad_graph(cls, grad_info: GradGraphInfo, args: NamedTensors | None = None) -> GraphWithNamedArgs:
        """The gradient graph of ``grad_info``."""
        return cls(grad_info.graph, args, grad_info)

    @property
    def grad_graph_info(self) -> GradGraphInfo:
        """How this gradient graph belongs to its forward graph.

        Raises:
            AttributeError: it is not a gradient graph.
        """
        if self._grad_graph_info is None:
            raise AttributeError(f"graph {self.graph.name!r} was not made by autodiff and has no grad_graph_info")
        return self._grad_graph_info

    @grad_graph_info.setter
    def grad_graph_info(self, grad_graph_info: GradGraphInfo) -> None:
        self._grad_graph_info = grad_graph_info

    @checked_arguments
    def autodiff(
        self,
        grads_provided: Iterable[popxl.Tensor] | None = None,
        grads_required: Iterable[popxl.Tensor] | None = None,
        called_graphs_grad_info: Mapping[Any, Any] | None = None,
        method: Literal["auto", "build_grad", "autodiff"] = "auto",
        force: bool = False,
    ) -> GraphWithNamedArgs:
        """The gradient graph of this one.

        Args:
            grads_provided, grads_required, called_graphs_grad_info: see :func:`popxl_addons.autodiff`.
            method: ``build_grad``: what the module defines; ``autodiff``: of the ops; ``auto``: the first if there is
                one.
            force: differentiate again, although the graph was changed when it was differentiated before.

        Raises:
            ValueError: another method; RuntimeError: differentiated before, or no ``build_grad``.
        """
        from .transforms.autodiff import gradient_info

        if self.autodiff_applied and not force:
            raise RuntimeError(
                f"Autodiff has already been applied to graph {self.name!r}, which that may have changed; force=True "
                "applies it again"
            )
        info = gradient_info(self, grads_provided, grads_required, called_graphs_grad_info, method)
        self.autodiff_applied = True
        return GraphWithNamedArgs.from_grad_graph(info)

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self.graph.name

    @checked_arguments
    def inputs_for(self, args: Args) -> TensorMap:
        """Graph input -> operand, from named tensors (names that the graph does not have are left out) or a mapping."""
        if args is None:
            return {}
        if isinstance(args, NamedTensors):
            return self.args.to_mapping(args)
        return dict(args)

    @checked_arguments
    def bind(self, args: Args = None) -> BoundGraph:
        """The graph with tensors attached to its named inputs."""
        return BoundGraph(self, self.inputs_for(args))

    @checked_arguments
    def call(self, *t: Any, args: Args = None) -> tuple[popxl.Tensor, ...]:
        """Call with the unnamed inputs positionally, the named ones in ``args``; the results as a tuple."""
        return self.call_with_info(*t, args=args).outputs

    @checked_arguments
    def call_with_info(self, *t: Any, args: Args = None, check_inputs: bool = True) -> CallSiteInfo:
        """As :meth:`call`, giving the call site."""
        return popxl.ops.call_with_info(self.graph, *t, inputs_dict=self.inputs_for(args), check_inputs=check_inputs)

    def copy(self) -> GraphWithNamedArgs:
        """Another handle of the same graph, with its own collection of names."""
        return GraphWithNamedArgs(
            self.graph,
            self.args.copy(),
            self._grad_graph_info,
            self._from_module,
            self._aux,
            self.called_graphs_grad_info,
        )

    def print_schedule(self) -> str:
        """The graph's ops in execution order, as text; named inputs as ``name=%n``."""
        names = {tensor._ir_tensor: name for name, tensor in self.args.to_dict().items()}
        return _ir.format_schedule(self.graph._base, names)

    def __repr__(self) -> str:
        return upstream_repr(self)


class BoundGraph:
    """A graph with tensors attached to some inputs."""

    @checked_arguments
    def __init__(self, graph: GraphWithNamedArgs | popxl.Graph, args: Args = None) -> None:
        self._named = graph if isinstance(graph, GraphWithNamedArgs) else GraphWithNamedArgs(graph)
        self.args: TensorMap = self._named.inputs_for(args)

    @property
    def graph(self) -> popxl.Graph:
        """The graph."""
        return self._named.graph

    @checked_arguments
    def bind(self, args: Args = None) -> BoundGraph:
        """The graph with further tensors attached."""
        return BoundGraph(self._named, {**self.args, **self._named.inputs_for(args)})

    @checked_arguments
    def call(self, *t: Any, args: Args = None) -> tuple[popxl.Tensor, ...]:
        """Call with the remaining inputs positionally or in ``args``; the results as a tuple."""
        return self.call_with_info(*t, args=args).outputs

    @checked_arguments
    def call_with_info(self, *t: Any, args: Args = None, check_inputs: bool = True) -> CallSiteInfo:
        """As :meth:`call`, giving the call site."""
        inputs = {**self.args, **self._named.inputs_for(args)}
        return popxl.ops.call_with_info(self.graph, *t, inputs_dict=inputs, check_inputs=check_inputs)

    @checked_arguments
    def subgraph_io_map(self, *targs: popxl.Tensor, args: Args = None, outs: Iterable[popxl.Tensor] = ()) -> TensorMap:
        """What stands for the graph's outputs and inputs at a call: ``outs`` for the outputs, ``targs`` for the first
        inputs, attached tensors and ``args`` for those they name."""
        named = {**self.args, **self._named.inputs_for(args)}
        return {**dict(zip(self.graph.outputs, outs)), **named, **dict(zip(self.graph.inputs, targs))}

    def __repr__(self) -> str:
        return upstream_repr(self)
