"""``addons.pipelined_execution``: one step of a loop, annotated with stages, becomes a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np

from ipuperf import ir as _ir
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ops
from ipuperf.frontends.popxl.ops.call import CallSiteInfo
from ipuperf.frontends.popxl.transforms.autodiff import GradGraphInfo
from ipuperf.runtime.replacing import replaced

from ..module import Module
from .pipeline_builder import build_pipeline
from .stage_ops import ANY_LATER, delivery


class StageContext:
    """Stages of the pipeline under construction; what ``pipelined_execution`` gives."""

    def __init__(self) -> None:
        self._stage: int | None = None
        self.stage_of: dict[_ir.Op, int] = {}

    def _created(self, op: _ir.Op) -> None:
        """Called with each new op of the graph."""
        if self._stage is None:
            raise RuntimeError(
                f"pipelined_execution: {op.where()} is in no stage; create it inside `with pipeline.stage(i)`, or "
                "before or after the pipeline"
            )
        self.stage_of[op] = self._stage

    @contextmanager
    def stage(self, i: int) -> Iterator[None]:
        """New ops belong to stage ``i``; a stage may be entered several times.

        Raises:
            ValueError: ``i`` is no whole number of at least 0.
        """
        if not isinstance(i, int) or isinstance(i, bool) or i < 0:
            raise ValueError(f"stage({i!r}): the number of a stage is needed, 0 or larger")
        with replaced(self, _stage=i):
            yield

    def _available_in(self, tensor: _ir.Tensor) -> int | None:
        """The stage in which ``tensor`` can be used; None when it is from outside of the pipeline or a copy of that."""
        producer = tensor.producer
        stage = self.stage_of.get(producer) if producer is not None else None
        if producer is None or stage is None or producer.type != "IpuCopy":
            return stage
        arrival = delivery(producer, stage, self._available_in(producer.inputs[0]), self.stage_of)
        return None if arrival == ANY_LATER else arrival

    def stash_and_restore_tensor(self, t: popxl.Tensor, from_stage: int | None = None) -> popxl.Tensor:
        """The value that ``t`` had when this micro-batch was in stage ``from_stage``.

        In ``from_stage`` each new value goes into a ring of as many entries as micro-batches are between the stages, in
        the current stage it comes out again. Ring and its two counters are variables.

        Args:
            from_stage: where ``t`` is read (default: the first stage that can use it).

        Raises:
            RuntimeError: outside of a stage, or ``from_stage`` is needed because no stage makes ``t``.
            TypeError: the current stage is not after ``from_stage``.
        """
        return self._through_stash(t, from_stage, None)

    def _through_stash(self, t: popxl.Tensor, from_stage: int | None, phase: _ir.Phase | None) -> popxl.Tensor:
        """See :meth:`stash_and_restore_tensor`; restoring is for ``phase``, stashing what it is for by its data."""
        to_stage = self._stage
        if to_stage is None:
            raise RuntimeError("stash_and_restore_tensor must be called inside `with pipeline.stage(i)`")
        if from_stage is None:
            from_stage = self._available_in(t._ir_tensor)
        if from_stage is None:
            raise RuntimeError(
                f"stash_and_restore_tensor: no stage of the pipeline makes {t!r}; say with from_stage where it is read"
            )
        # Every micro-batch on the way holds an entry, and both stages count.
        size = to_stage - from_stage + 1
        if size <= 1:
            raise TypeError(
                f"stash_and_restore_tensor: a stash of {size} entries for {t!r}, from stage {from_stage} to stage "
                f"{to_stage}; at least 2 are needed: restore it in a later stage"
            )
        with self.stage(from_stage):
            stash_facts, stash_graph = Stash().create_graph(t, size)
            stash = stash_facts.init()
            stash_graph.bind(stash).call(t)
        with self.stage(to_stage), _ir.CONTEXT.phase(phase):
            restore_facts, restore_graph = Restore().create_graph(stash.stash)
            (restored,) = restore_graph.bind(restore_facts.init()).call(stash.stash)
            # The ring holds a scalar as a vector of one element.
            return restored if t.shape else restored.reshape(())

    def stash_and_restore_activations(
        self, call_info: CallSiteInfo, grad_info: GradGraphInfo
    ) -> dict[popxl.Tensor, popxl.Tensor]:
        """Operands of a gradient graph in the current stage, for a call of its forward graph in this or an earlier one.

        As ``grad_info.inputs_dict(call_info)``, with each value that the pipeline makes put through a stash when the
        stages differ; variables and other tensors from outside are the same for all micro-batches.

        Raises:
            RuntimeError: outside of a stage, or the forward call is in no stage.
        """
        activations = grad_info.inputs_dict(call_info)
        from_stage = self.stage_of.get(call_info._op)
        if from_stage is None or self._stage is None:
            raise RuntimeError(
                "stash_and_restore_activations: the forward call and the restoring must be inside `with "
                f"pipeline.stage(i)`; the call of {call_info.called_graph.name!r} is in stage {from_stage}, this is "
                f"stage {self._stage}"
            )
        if from_stage == self._stage:
            return activations
        again = any(op.phase == "recompute" for op in grad_info.graph._base.ops)
        phase: _ir.Phase = "recompute" if again else "bwd"
        return {
            parameter: t if self._available_in(t._ir_tensor) is None else self._through_stash(t, from_stage, phase)
            for parameter, t in activations.items()
        }


@contextmanager
def pipelined_execution(steps: int) -> Iterator[StageContext]:
    """Execute what is written inside ``steps`` times, its stages in parallel on different micro-batches.

    Each op inside has to be in a stage (``with pipeline.stage(i), popxl.ipu(n)``). Values go from stage to stage by
    ``copy_to_ipu``, or through a stash. When the context ends, the current graph has one call of the pipeline instead
    of the ops. Schedule: ``stages - 1`` cycles of ramp-up, ``steps - stages + 1`` full cycles, as many of ramp-down.

    Raises:
        RuntimeError: an op outside of a stage.
        ValueError: fewer steps than twice the number of stages, gaps in the stage numbers, or a tensor used in a stage
            that is at another micro-batch.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"pipelined_execution({steps!r}): a whole number of at least 1 is needed")
    graph = popxl.gcg()
    stages = StageContext()
    handle = graph.register_op_created_hook(stages._created)
    try:
        yield stages
    finally:
        graph.remove_op_created_hook(handle)
    if not stages.stage_of:
        raise ValueError("pipelined_execution: no op was created inside")
    build_pipeline(graph._base, stages.stage_of, steps)


class Stash(Module):
    """Puts a tensor into the next entry of a ring."""

    @popxl.in_sequence()
    def build(self, t: popxl.Tensor, stash_size: int) -> None:
        """Variables ``stash`` ``(stash_size, *t.shape)`` and ``counter``, the entry to write next."""
        counter = self.add_variable_input("counter", partial(np.zeros, (1,)), popxl.uint32, by_ref=True)
        shape = t.shape or (1,)
        entry = t.reshape((1, *shape))
        stash = self.add_variable_input("stash", partial(np.zeros, (stash_size, *shape)), t.dtype, by_ref=True)
        ops.dynamic_update_(stash, counter, entry, axes=[0], sizes=[1], no_overlap=True)
        ops.increment_mod_(counter, 1, stash_size)


class Restore(Module):
    """Takes a tensor out of the next entry of a ring."""

    @popxl.in_sequence()
    def build(self, stash: popxl.TensorByRef) -> popxl.Tensor:
        """The entry; variable ``counter`` is the entry to read next."""
        counter = self.add_variable_input("counter", partial(np.zeros, (1,)), popxl.uint32, by_ref=True)
        assert isinstance(stash, popxl.Tensor)
        entry = ops.dynamic_slice(stash, counter, axes=[0], sizes=[1], no_overlap=True)
        ops.increment_mod_(counter, 1, stash.shape[0])
        return entry.reshape(entry.shape[1:])
