"""``addons.autodiff`` and ``addons.autodiff_with_accumulation``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ops
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.placement import place_gradients
from ipuperf.frontends.popxl.transforms.autodiff import GradGraphInfo
from ipuperf.frontends.popxl.transforms.autodiff import autodiff as _autodiff
from ipuperf.ir import CONTEXT

from ..dot_tree import sanitise
from ..graph import GraphWithNamedArgs
from ..graph_common import CalledGradients, CalledGraphsGradInfoLike, GraphLike, plain_graph
from ..named_replica_grouping import NamedReplicaGrouping
from ..named_tensors import NamedTensors
from ..variable_factory import NamedVariableFactories, VariableFactory, add_variable_input


def gradient_info(
    graph: GraphLike,
    grads_provided: Iterable[popxl.Tensor] | None,
    grads_required: Iterable[popxl.Tensor] | None,
    called_graphs_grad_info: CalledGraphsGradInfoLike | None,
    method: str = "auto",
) -> GradGraphInfo:
    """The gradient graph: what the graph's module defines (``build_grad``), or the derivative of its ops.

    Raises:
        ValueError: another method; RuntimeError: ``build_grad`` of a graph whose module defines none.
    """
    if method not in ("auto", "build_grad", "autodiff"):
        raise ValueError(f"method is {method!r}; allowed: auto, build_grad, autodiff")
    module = graph._from_module if isinstance(graph, GraphWithNamedArgs) else None
    if method != "autodiff" and isinstance(graph, GraphWithNamedArgs) and module and module.implements_grad_graph:
        return module.create_grad_graph(graph, grads_provided, grads_required).grad_graph_info
    if method == "build_grad":
        raise RuntimeError(
            f"graph {plain_graph(graph).name!r}: build_grad is wanted, but no `from_module` is specified that has it"
        )
    known = CalledGradients(called_graphs_grad_info)
    if isinstance(graph, GraphWithNamedArgs):
        known.add_submap(graph.called_graphs_grad_info)
    info = _autodiff(plain_graph(graph), grads_provided, grads_required, known)
    assert isinstance(info, GradGraphInfo)
    return info


@checked_arguments
def autodiff(
    graph: GraphLike,
    grads_provided: Iterable[popxl.Tensor] | None = None,
    grads_required: Iterable[popxl.Tensor] | None = None,
    called_graphs_grad_info: CalledGraphsGradInfoLike | None = None,
) -> GraphWithNamedArgs:
    """The gradient graph of ``graph``; its ``grad_graph_info`` says how to connect it. See :mod:`popxl.transforms`.

    A module's ``build_grad`` counts, of this graph and of those that it calls (``Module.call_module``).
    """
    info = gradient_info(graph, grads_provided, grads_required, called_graphs_grad_info)
    return GraphWithNamedArgs.from_grad_graph(info)


class _Accumulators:
    """Adds accumulators to a gradient graph."""

    def __init__(self) -> None:
        self.inputs: dict[str, popxl.Tensor] = {}
        self.factories: dict[str, VariableFactory] = {}

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: popxl.dtype,
        replica_grouping: popxl.ReplicaGrouping | None = None,
    ) -> popxl.Tensor:
        """A by-reference input whose variable starts at zero."""
        zeros = partial(np.zeros, shape=shape)
        tensor, factory = add_variable_input(name, zeros, dtype, by_ref=True, replica_grouping=replica_grouping)
        self.inputs[name] = tensor
        self.factories[name] = factory
        return tensor


@checked_arguments
def autodiff_with_accumulation(
    graph: GraphWithNamedArgs,
    tensors_to_accumulate_grads: Iterable[popxl.Tensor],
    grads_required: Iterable[popxl.Tensor] | None = None,
    called_graphs_grad_info: CalledGraphsGradInfoLike | None = None,
    replica_groupings: NamedReplicaGrouping | None = None,
    grads_provided: Iterable[popxl.Tensor] | None = None,
) -> tuple[NamedVariableFactories, GraphWithNamedArgs]:
    """The gradient graph of ``graph`` with a running mean of the gradients of some inputs.

    Each gradient of ``tensors_to_accumulate_grads`` goes into a by-reference input ``accum.<name>`` and is no longer an
    output. The by-reference input ``mean_accum_counter`` counts the calls; setting it to 0 restarts the means.

    Args:
        grads_required: further inputs whose gradients are outputs (default: none).
        replica_groupings: of the accumulators, by name of the input (default: all replicas).
        grads_provided: outputs whose gradients are given (default: all).

    Returns:
        Factories of counter and accumulators, and the graph.
    """
    accumulate = list(tensors_to_accumulate_grads)
    required = [t for t in grads_required or () if t not in accumulate]
    info = gradient_info(graph, grads_provided, [*required, *accumulate], called_graphs_grad_info)
    names = {t: name for name, t in graph.args.to_dict().items()}
    groupings = replica_groupings.to_dict() if replica_groupings is not None else {}
    added = _Accumulators()
    gradients = dict(zip(info.outputs, info.graph.outputs))
    with info.graph, popxl.in_sequence(True), CONTEXT.phase("bwd"):
        counter = added.add("mean_accum_counter", (), popxl.float32)
        # The means may come in any order; only the counter has to wait for all of them.
        with popxl.in_sequence(False):
            for tensor in accumulate:
                name = names.get(tensor, sanitise(tensor.name))
                accum = added.add(f"accum.{name}", tensor.shape, tensor.dtype, groupings.get(name))
                ops.var_updates.accumulate_mean_(accum, gradients[tensor], counter)
        ops.var_updates.accumulate_(counter, popxl.constant(1, popxl.float32))
    place_gradients(info._derivative)
    _keep_outputs(info, len(required))
    return (
        NamedVariableFactories.from_dict(added.factories),
        GraphWithNamedArgs.from_grad_graph(info, NamedTensors.from_dict(added.inputs)),
    )


def _keep_outputs(info: GradGraphInfo, count: int) -> None:
    """Only the first ``count`` gradients stay outputs."""
    derivative = info._derivative
    del derivative.graph.outputs[count:]
    del derivative.outputs[count:]
    # The graph changed without its knowledge, so what was derived from it is void.
    derivative.graph.version += 1
