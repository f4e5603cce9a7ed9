"""Recomputation: a gradient graph runs forward ops again instead of being given their results.

:func:`replay` puts copies of forward ops into a gradient graph, each right before the first gradient op that needs it,
as PopART does ("implicit" recomputation, ``popart:willow/src/popx/irlowering.cpp``, ``FindRequiredRecomputes``): a
recomputed value lives from there to its last reader, so the values of one stretch between two checkpoints are gone
before those of the stretch before it are made. An op is run again at most once. The copies have the operands and
attributes of the forward ops, random ops their seed and key too, so their results are the same numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from .builder import Builder
from .context import CONTEXT
from .graph import Graph
from .op import Op
from .schedule import schedule
from .tensor import Constant, Tensor

_NO_OPS: frozenset[Op] = frozenset()
_NO_TENSORS: frozenset[Tensor] = frozenset()


@dataclass(frozen=True)
class Recomputation:
    """What of a forward graph is run again in its gradient graph.

    Attributes:
        ops: forward ops to run again where the gradients need their results.
        kept: results of such ops that are kept all the same (checkpoints).
        constants: the gradient graph gets constants of its own in place of the forward graph's.
    """

    ops: Collection[Op] = _NO_OPS
    kept: Collection[Tensor] = _NO_TENSORS
    constants: bool = False

    def lost(self, tensor: Tensor) -> bool:
        """Whether the value of a forward tensor is not kept for the gradients."""
        if self.constants and isinstance(tensor, Constant):
            return True
        return tensor.producer is not None and tensor.producer in self.ops and tensor not in self.kept


def replay(
    forward: Graph, graph: Graph, images: Mapping[Tensor, Tensor], recomputation: Recomputation
) -> dict[Tensor, Tensor]:
    """Let gradient graph ``graph`` compute the lost ones of its forward values.

    ``images`` are the forward tensors that its ops read, and the tensors (without a producer) that stand for them in
    ``graph``. The gradient ops keep the order of their schedule, which is fixed by constraints.

    Returns:
        The forward tensors, and their images, that ``graph`` still has to be given.
    """
    if not any(recomputation.lost(tensor) for tensor in images):
        return dict(images)
    return _Replay(forward, graph, images, recomputation).write()


class _Replay:
    """State of one :func:`replay`."""

    def __init__(
        self, forward: Graph, graph: Graph, images: Mapping[Tensor, Tensor], recomputation: Recomputation
    ) -> None:
        self.graph = graph
        self.recomputation = recomputation
        self.rank = {op: index for index, op in enumerate(schedule(forward))}
        self.sources = {image: tensor for tensor, image in images.items()}
        self.given = {tensor: image for tensor, image in images.items() if not recomputation.lost(tensor)}
        self.here = dict(self.given)  # forward tensor -> its value in the gradient graph

    def write(self) -> dict[Tensor, Tensor]:
        """See :func:`replay`."""
        order: list[Op] = []
        for image, tensor in self.sources.items():
            if self.recomputation.lost(tensor):
                del self.graph.tensors[image.id]
        for op in schedule(self.graph):
            asked = [self.sources[t] for t in op.inputs if t in self.sources]
            order += [self.again(again) for again in self.missing(asked)]
            self.rewire(op)
            order.append(op)
        self.graph.ops = order
        for one, other in zip(order, order[1:]):
            self.graph.constrain(one, other)
        return self.given

    def missing(self, tensors: Iterable[Tensor]) -> list[Op]:
        """Forward ops that have to run now for ``tensors``, in forward order."""
        found: set[Op] = set()
        waiting = list(tensors)
        while waiting:
            tensor = waiting.pop()
            producer = tensor.producer
            if tensor in self.here or producer is None or producer in found or not self.recomputation.lost(tensor):
                continue
            found.add(producer)
            waiting += producer.inputs
        return sorted(found, key=self.rank.__getitem__)

    def again(self, op: Op) -> Op:
        """A copy of a forward op in the gradient graph."""
        operands = [self.value(tensor) for tensor in op.inputs]
        with CONTEXT.detached(), CONTEXT.phase("recompute"):
            copy = Builder(self.graph).copy(op, operands)
        copy.ipu = op.ipu
        for tensor, result in zip(op.outputs, copy.outputs, strict=True):
            result.ipu = tensor.ipu
            if self.recomputation.lost(tensor):
                self.here[tensor] = result
        return copy

    def value(self, tensor: Tensor) -> Tensor:
        """A forward tensor in the gradient graph; what is not recomputed will be given."""
        if tensor not in self.here:
            if isinstance(tensor, Constant):
                self.here[tensor] = self.graph.constant(tensor.data, tensor.dtype, tensor.name)
            else:
                image = Tensor(self.graph.tensor_id(tensor.name), tensor.spec, self.graph, ipu=tensor.ipu)
                self.given[tensor] = self.here[tensor] = self.graph.add(image)
        return self.here[tensor]

    def rewire(self, op: Op) -> None:
        """Let a gradient op read the recomputed values."""
        for index, tensor in enumerate(op.inputs):
            source = self.sources.get(tensor)
            if source is not None and self.recomputation.lost(source):
                tensor.consumers.remove(op)
                op.inputs[index] = self.value(source)
                op.inputs[index].consumers.append(op)
