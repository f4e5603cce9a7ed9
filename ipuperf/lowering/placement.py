"""Which IPU of a replica an op or a tensor is on."""

from __future__ import annotations

from collections.abc import Iterator

from ipuperf.base.kinds import checked
from ipuperf.ir import Ir, Op, Tensor
from ipuperf.ops.transfers.ipu_copy import IpuCopy


@checked()
def ipus_per_replica(program: Ir) -> int:
    """IPUs that one replica uses: the largest IPU number of any op or tensor, plus one."""
    used: set[int | None] = {0}
    for graph in program.all_graphs():
        used.update({op.ipu for op in graph.ops}, {tensor.ipu for tensor in graph.tensors.values()})
        used.update([max(op.source, op.destination) for op in graph.ops if isinstance(op, IpuCopy)])
    return max([ipu or 0 for ipu in used]) + 1


def reading_ipu(op: Op, index: int) -> int:
    """The IPU on which an op reads its input ``index``: its own, or the source of a copy between IPUs."""
    if isinstance(op, IpuCopy):
        return op.source if index == 0 else op.destination
    return op.ipu or 0


def readers(tensor: Tensor) -> Iterator[tuple[Op, int]]:
    """Ops that read a tensor, also in called graphs, in the order of their creation, and as which input."""
    for op in dict.fromkeys(tensor.consumers):
        for callee, operands in op.calls():
            for callee_input, operand in zip(callee.inputs, operands, strict=False):
                if operand is tensor:
                    yield from readers(callee_input)
        if not op.called_graphs():
            yield from ((op, index) for index, operand in enumerate(op.inputs) if operand is tensor)


def users(tensor: Tensor) -> Iterator[int]:
    """IPUs that read a tensor, in the order of :func:`readers`."""
    return (reading_ipu(op, index) for op, index in readers(tensor))


def user_ipu(tensor: Tensor) -> int | None:
    """The first IPU that reads a tensor; None when nobody does."""
    return next(users(tensor), None)


def home_of(tensor: Tensor) -> int:
    """The IPU of a variable or stream: the stated one, otherwise the IPU of its first reader."""
    return tensor.ipu if tensor.ipu is not None else user_ipu(tensor) or 0
