"""The ops of a pipeline, sorted by stage and by what they do, and the check that stages only use what they may.

In a cycle every stage is at another micro-batch, so a tensor can be used in the stage that makes it, and, when it is
copied to another IPU, in the stage after: copies run at the end of a cycle and what they bring stays for the next one.
Anything else would mix micro-batches. (Upstream raises obscure errors for some such programs and computes with the
wrong micro-batch for others.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ipuperf import ir as _ir
from ipuperf import ops as _k

ANY_LATER = -1
"""Arrival of a copied tensor that no stage makes (a variable): every stage but the first can use it."""


@dataclass
class StageOps:
    """The ops of one stage in order of execution: host loads (with their Init), computation, host stores."""

    loads: list[_ir.Op] = field(default_factory=list)
    compute: list[_ir.Op] = field(default_factory=list)
    stores: list[_ir.Op] = field(default_factory=list)


class AnnotatedOps:
    """All ops of a pipeline.

    Args:
        order: the ops in order of execution.
        stage_of: stage of each.

    Attributes:
        stages: by number.
        copies: copies between IPUs, in an order in which one that reads what another brings *in the next cycle* comes
            before it.
        arrives: the stage in which each tensor that the ops make can be used.

    Raises:
        ValueError: gaps in the stage numbers, or a tensor used where it is at another micro-batch.
    """

    def __init__(self, order: Sequence[_ir.Op], stage_of: Mapping[_ir.Op, int]) -> None:
        self.stage_of = stage_of
        self.copies: list[_k.IpuCopy] = []
        self.arrives: dict[_ir.Tensor, int] = {}
        numbers = sorted({stage_of[op] for op in order})
        if numbers != list(range(len(numbers))) or not numbers:
            raise ValueError(
                f"pipelined_execution: the stages that have ops are {numbers}; they must be numbered 0, 1, 2 ... "
                "without gaps"
            )
        self.stages = [StageOps() for _ in numbers]
        for op in order:
            self._add(op, stage_of[op])
        delivery = {copy: self.arrives[copy.outputs[0]] for copy in self.copies}
        self.copies.sort(key=lambda copy: -delivery[copy])

    def _add(self, op: _ir.Op, stage: int) -> None:
        if isinstance(op, _k.IpuCopy):
            self.copies.append(op)
            self.arrives[op.outputs[0]] = self._delivery(op, stage)
            return
        for tensor in op.inputs:
            self._check_use(op, stage, tensor)
        self.arrives.update(dict.fromkeys(op.outputs, stage))
        group = self.stages[stage]
        if isinstance(op, _k.HostStore):
            group.stores.append(op)
        elif isinstance(op, _k.HostLoad) or _prepares_load(op):
            group.loads.append(op)
        else:
            group.compute.append(op)

    def _delivery(self, copy: _k.IpuCopy, stage: int) -> int:
        """The stage in which the result of a copy can be used."""
        operand = copy.inputs[0]
        origin = self.arrives.get(operand)
        delivered = delivery(copy, stage, origin, self.stage_of)
        if delivered is None:
            raise ValueError(
                f"pipelined_execution: {copy.where()} is in stage {stage}, its operand is of stage {origin}, which is "
                f"then at another micro-batch; copy it in stage {origin}"
            )
        return delivered

    def _check_use(self, op: _ir.Op, stage: int, tensor: _ir.Tensor) -> None:
        origin = self.arrives.get(tensor)
        if origin is None or origin == stage or (origin == ANY_LATER and stage > 0):
            return
        copied = isinstance(tensor.producer, _k.IpuCopy)
        head = f"pipelined_execution: {op.where()} in stage {stage} uses {tensor.id!r}"
        if origin == ANY_LATER:
            raise ValueError(f"{head}, a copy from another IPU; it arrives after the first cycle, for stages from 1 on")
        if copied and stage < origin:
            raise ValueError(
                f"{head}, which a copy brings to stage {origin}: copies run at the end of a cycle, their results can "
                "only be used in the stage after the one they come from"
            )
        if stage < origin:
            raise ValueError(f"{head}, which is made later, in stage {origin}")
        if copied:
            raise ValueError(
                f"{head}, which a copy brings to stage {origin}; stage {stage} is then at another micro-batch. Copy it "
                f"from stage to stage, or use stash_and_restore_tensor(t, from_stage={origin}) in stage {stage}"
            )
        raise ValueError(
            f"{head}, which stage {origin} makes; stage {stage} is at another micro-batch in the same cycle. Pass it "
            f"on with copy_to_ipu (to stage {origin + 1}), or use stash_and_restore_tensor or "
            f"stash_and_restore_activations in stage {stage}"
        )

    def leaving(self, stage: int) -> list[_ir.Tensor]:
        """Results of the computation of a stage that its stores and the copies read."""
        group = self.stages[stage]
        results = {tensor for op in group.compute for tensor in op.outputs}
        readers: list[_ir.Op] = [*group.stores, *self.copies]
        return [t for t in dict.fromkeys(t for op in readers for t in op.inputs) if t in results]


def delivery(copy: _ir.Op, stage: int, origin: int | None, stage_of: Mapping[_ir.Op, int]) -> int | None:
    """The stage in which the result of ``copy``, an IpuCopy of stage ``stage``, can be used.

    A copy may stand in the stage that makes its operand or in the next one. One of a tensor that another copy has
    brought either goes on in the same cycle (both stand in one stage) or from the stage that got it, in its cycle.

    Args:
        made: the stage in which the operand can be used, None when it is from outside of the pipeline.
        stage_of: stage of each op of the pipeline.

    Returns:
        :data:`ANY_LATER` for operands from outside, None when the copy cannot stand there.
    """
    if origin is None or origin == ANY_LATER:
        return ANY_LATER
    producer = copy.inputs[0].producer
    if isinstance(producer, _k.IpuCopy):
        if stage == origin:
            return origin + 1
        return origin if stage == stage_of[producer] else None
    return origin + 1 if stage in (origin, origin + 1) else None


def _prepares_load(op: _ir.Op) -> bool:
    """Whether an op only makes the tensor that a host load fills."""
    return op.type == "Init" and [type(reader) for reader in op.outputs[0].consumers] == [_k.HostLoad]
