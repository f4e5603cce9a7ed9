"""``repeat_graph``: the ops of a graph, executed several times."""

from __future__ import annotations

from ipuperf import ir as _ir
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import Graph
from ipuperf.frontends.popxl.arguments import checked_arguments, whole
from ipuperf.frontends.popxl.handle import wrap
from ipuperf.frontends.popxl.ops.call import CallSiteInfo

from .moving import clone, remove


@checked_arguments
def repeat_graph(graph: Graph, repeat_count: int) -> Graph:
    """Put all ops of ``graph``, which may be the main graph, into a new graph and repeat that ``repeat_count`` times.

    Variables, constants and inputs stay in ``graph`` and become inputs by reference of the new graph. Order that was
    asked for (``in_sequence``) holds in each trip. What the ops made belongs to the new graph from then on: use streams
    and variables for what the program needs of it.

    Returns:
        The new graph; ``graph`` itself, unchanged, for a count of at most 1.

    Raises:
        ValueError: ``graph`` gives back what one of its ops makes, or a count that is no whole number.

    Source: popxl-addons: popxl_addons/transforms/repeat_graph.py.
    """
    count = whole(repeat_count, "repeat_graph: repeat_count")
    if count <= 1:
        return graph
    computed = [t.id for t in graph.outputs if t._ir_tensor.producer is not None]
    if computed:
        raise ValueError(
            f"repeat_graph({graph.name!r}): its outputs {computed} are made in it; repeat a graph without any"
        )
    repeated = graph.ir.create_empty_graph("repeat_graph")
    images = _copy(graph._base, repeated._base)
    images_of = {wrap(image): wrap(t) for t, image in images.items()}
    moved = list(graph._base.ops)
    with graph, popxl.in_sequence("pass"):
        info = popxl.ops.repeat_with_info(repeated, count, inputs_dict=images_of)
    _take_place(graph._base, moved, repeated._base, info)
    return repeated


def _copy(graph: _ir.Graph, target: _ir.Graph) -> dict[_ir.Tensor, _ir.Tensor]:
    """Copies of the ops in ``target``, in order of execution; the tensors that come from outside and their inputs."""
    phases = _ir.phases_of(graph)
    images: dict[_ir.Tensor, _ir.Tensor] = {}
    captured: dict[_ir.Tensor, _ir.Tensor] = {}
    clones: dict[_ir.Op, _ir.Op] = {}
    builder = _ir.Builder(target)
    with _ir.CONTEXT.detached():
        for op in _ir.schedule(graph):
            for tensor in op.inputs:
                if tensor not in images:
                    captured[tensor] = images[tensor] = _input(target, tensor)
            clones[op] = clone(builder, op, [images[t] for t in op.inputs], phases[op])
            images.update(zip(op.outputs, clones[op].outputs, strict=True))
    for successor, predecessors in graph.constraints.items():
        for op in predecessors:
            target.constrain(clones[op], clones[successor])
    return captured


def _input(target: _ir.Graph, tensor: _ir.Tensor) -> _ir.Tensor:
    routed = target.add_input(tensor.spec, tensor.name.replace("/", "_"), by_ref=True)
    routed.ipu = tensor.ipu
    return routed


def _take_place(graph: _ir.Graph, moved: list[_ir.Op], target: _ir.Graph, info: CallSiteInfo) -> None:
    """The loop instead of the ops."""
    remove(graph, moved, target)
    graph.constraints.pop(info._op, None)


__all__ = ["repeat_graph"]
