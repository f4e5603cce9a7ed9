"""``route_tensor_into_graph``: a tensor of a graph, for use in a graph that it calls directly or through others.

Source: popxl-addons: popxl_addons/route_tensor.py.
"""

from __future__ import annotations

from ipuperf import ir as _ir
from ipuperf import ops as _k
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.handle import wrap


@checked_arguments
def is_subgraph(parent: popxl.Graph, subgraph: popxl.Graph) -> bool:
    """Whether ``parent`` calls ``subgraph``, directly or through other graphs, or is it."""
    return subgraph._base in _ir.below(parent._base)


@checked_arguments
def route_tensor_into_graph(
    tensor: popxl.Tensor, graph: popxl.Graph | None = None, modified: bool = False
) -> popxl.Tensor:
    """``tensor`` as a tensor of ``graph`` (default: the current one), through inputs of the graphs between the two.

    Each graph on a way from the tensor's graph to ``graph`` gets one input, and each of its calls and loops an operand;
    one that is there already is used. A tensor of ``graph`` itself is given back.

    Args:
        modified: ``graph`` changes the tensor, and the tensor's graph is to see it.

    Raises:
        ValueError: the tensor's graph does not lead to ``graph``, or one of the graphs between is executed from
            somewhere else too, where there is no such tensor.
        RuntimeError: a graph between is a branch of a conditional, which takes what it is given where it is made.
    """
    target = (graph or popxl.gcg())._base
    start = tensor._ir_tensor.graph
    if target is start:
        return tensor
    between = _between(start, target)
    if not between:
        raise ValueError(
            f"{tensor} is not in the graph {target.name!r}; and the tensor is not in a known parent graph, so that it "
            "cannot be routed into the graph"
        )
    images = {start: tensor._ir_tensor}
    for callee in between:
        images[callee] = _connect(callee, images, modified)
    return wrap(images[target])


def _between(start: _ir.Graph, target: _ir.Graph) -> list[_ir.Graph]:
    """The graphs on the ways from ``start`` to ``target``, callers first, without ``start``."""
    below = set(_ir.below(start))
    if target not in below:
        return []
    order = reversed(start.ir.callees_first())
    return [g for g in order if g is not start and g in below and target in _ir.below(g)]


def _connect(callee: _ir.Graph, images: dict[_ir.Graph, _ir.Tensor], modified: bool) -> _ir.Tensor:
    """The input of ``callee`` for the tensor, which is there in each graph of ``images``."""
    sites = [op for graph in callee.ir.all_graphs() for op in graph.ops if callee in op.called_graphs()]
    for site in sites:
        if not isinstance(site, (_k.Call, _k.Loop)):
            raise RuntimeError(
                f"could not route a tensor into graph {callee.name!r}: {site.where()} is no call or loop"
            )
        if site.graph not in images:
            raise ValueError(f"could not route a tensor into graph {callee.name!r}: {site.where()} does not have it")
    index = _present(callee, sites, images)
    if index is None:
        index = _append(callee, sites, images)
    if modified:
        for site in sites:
            site.attributes["by_ref"] = tuple(sorted({*site.attributes.get("by_ref", ()), index}))
    return callee.inputs[index]


def _present(callee: _ir.Graph, sites: list[_ir.Op], images: dict[_ir.Graph, _ir.Tensor]) -> int | None:
    """The input for which the tensor stands everywhere already; loops change the first ones, which are carried."""
    carried = max(len(site.outputs) if isinstance(site, _k.Loop) else 0 for site in sites)
    for index in range(carried, len(callee.inputs)):
        if all(site.inputs[index] is images[site.graph] for site in sites):
            return index
    return None


def _append(callee: _ir.Graph, sites: list[_ir.Op], images: dict[_ir.Graph, _ir.Tensor]) -> int:
    """A new input, with its operand at each call."""
    operand = images[sites[0].graph]
    routed = callee.add_input(operand.spec, operand.name.replace("/", "_"))
    routed.ipu = operand.ipu
    for site in sites:
        site.graph.append_operand(site, images[site.graph])
    return callee.inputs.index(routed)


__all__ = ["is_subgraph", "route_tensor_into_graph"]
