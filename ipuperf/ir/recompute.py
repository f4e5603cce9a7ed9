"""Recomputation: a gradient graph runs forward ops again instead of receiving their results.

:func:`replay` puts copies of forward ops into a gradient graph, each right before the first gradient op that needs it,
as PopART does ("implicit" recomputation, ``popart:willow/src/popx/irlowering.cpp``, ``FindRequiredRecomputes``). A
recomputed value lives from there to its last reader. So the values between two checkpoints are freed before those of
the stretch before them are made. An op runs again at most once. The copies have the operands and attributes of the
forward ops; random ops also keep seed and key, so the results are the same numbers.
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
    """Which part of a forward graph runs again in its gradient graph.

    Attributes:
        ops: forward ops that run again where the gradients need their results.
        kept: results of such ops that are kept all the same (checkpoints).
        constants: whether the gradient graph gets constants of its own in place of the forward graph's.
    """

    ops: Collection[Op] = _NO_OPS
    kept: Collection[Tensor] = _NO_TENSORS
    constants: bool = False

    def lost(self, tensor: Tensor) -> bool:
        """Whether the gradients cannot read the kept value of a forward tensor and need it computed again."""
        if self.constants and isinstance(tensor, Constant):
            return True
        return tensor.producer is not None and tensor.producer in self.ops and tensor not in self.kept


def replay(
    forward: Graph, graph: Graph, images: Mapping[Tensor, Tensor], recomputation: Recomputation
) -> dict[Tensor, Tensor]:
    """Let gradient graph ``graph`` recompute those of its forward values that are not kept.

    ``images`` maps the forward tensors that its ops read to the tensors (without a producer) that stand for them in
    ``graph``. Constraints fix the gradient ops in the order of their schedule.

    Returns:
        The forward tensors that ``graph`` still has to receive, with their images.
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
        self.external = {tensor: image for tensor, image in images.items() if not recomputation.lost(tensor)}
        self.images = dict(self.external)  # forward tensor -> its value in the gradient graph

    def write(self) -> dict[Tensor, Tensor]:
        """See :func:`replay`."""
        order: list[Op] = []
        for image, tensor in self.sources.items():
            # The image stood for a value that nobody will provide.
            if self.recomputation.lost(tensor):
                del self.graph.tensors[image.id]
        for op in schedule(self.graph):
            needed_values = [self.sources[tensor] for tensor in op.inputs if tensor in self.sources]
            order += [self.again(forward_op) for forward_op in self.missing(needed_values)]
            self.rewire(op)
            order.append(op)
        self.graph.ops = order
        # The scheduler would otherwise move recomputed ops away from their first reader.
        for predecessor, successor in zip(order, order[1:]):
            self.graph.constrain(predecessor, successor)
        return self.external

    def missing(self, tensors: Iterable[Tensor]) -> list[Op]:
        """Forward ops that have to run at this place for ``tensors``, in forward order."""
        required_ops: set[Op] = set()
        pending = list(tensors)
        while pending:
            tensor = pending.pop()
            producer = tensor.producer
            if (
                tensor in self.images
                or producer is None
                or producer in required_ops
                or not self.recomputation.lost(tensor)
            ):
                continue
            required_ops.add(producer)
            pending += producer.inputs
        return sorted(required_ops, key=self.rank.__getitem__)

    def again(self, op: Op) -> Op:
        """A copy of a forward op in the gradient graph."""
        operands = [self.value(tensor) for tensor in op.inputs]
        with CONTEXT.detached(), CONTEXT.phase("recompute"):
            copy = Builder(self.graph).copy(op, operands)
        # The context is detached, so the copy would otherwise be placed on no IPU.
        copy.ipu = op.ipu
        for tensor, result in zip(op.outputs, copy.outputs, strict=True):
            result.ipu = tensor.ipu
            if self.recomputation.lost(tensor):
                self.images[tensor] = result
        return copy

    def value(self, tensor: Tensor) -> Tensor:
        """The image of a forward tensor in the gradient graph. A tensor that is not recomputed becomes an input."""
        if tensor not in self.images:
            if isinstance(tensor, Constant):
                self.images[tensor] = self.graph.constant(tensor, tensor.dtype, tensor.name)
            else:
                image = Tensor(self.graph.tensor_id(tensor.name), tensor.spec, self.graph, ipu=tensor.ipu)
                self.external[tensor] = self.images[tensor] = self.graph.add(image)
        return self.images[tensor]

    def rewire(self, op: Op) -> None:
        """Let a gradient op read the recomputed values."""
        for index, tensor in enumerate(op.inputs):
            source = self.sources.get(tensor)
            if source is not None and self.recomputation.lost(source):
                tensor.consumers.remove(op)
                op.inputs[index] = self.value(source)
                op.inputs[index].consumers.append(op)
