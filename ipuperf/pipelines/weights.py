"""Gradient accumulation and the weight update, with offloading and replicated tensor sharding (RTS).

Gradients of the micro-batches are added to an accumulator per parameter. After the last micro-batch each IPU reduces
its accumulators over the replicas, scales them, updates its parameters and clears the accumulators. A single
micro-batch needs no accumulator. Where the norm of all gradients is limited, all of them are reduced before the first
parameter changes (:mod:`.clipping`), and those in Streaming Memory are all loaded then. Every tensor has its own
collective here; lowering merges them where that is asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.functions import make
from ipuperf.ir import CONTEXT, FLOAT32, DType, Op, RemoteBuffer, ReplicaGrouping, Tensor, TensorSpec, Variable
from ipuperf.ops import (
    Accumulate,
    AccumulatorScale,
    AccumulatorZero,
    AddLhsInplace,
    Cast,
    CopyVarUpdate,
    ReplicatedAllGather,
    ReplicatedAllReduceInplace,
    ReplicatedReduceScatter,
)

from .clipping import Reduced, check_limit, clip
from .loss_scaling import LossScaling
from .model import GRADIENT_SCALE, LOSS_SCALE, MovingAverage, PipelineError, Training
from .remote import remote_load, remote_store
from .routine import Routine

if TYPE_CHECKING:
    from .build import PipelineWriter
    from .scope import Scope

REDUCTIONS = ("sum", "mean", "running_mean")


@dataclass(frozen=True)
class _Gradient:
    """A gradient of the weight update: the accumulator (and where it is stored), and its value after reduction."""

    variable: Variable
    ipu: int
    accumulated: Tensor
    stored: RemoteBuffer | None
    reduced: Tensor


class Weights:
    """Accumulators, optimiser state and updates of a pipeline.

    Args:
        builder: gives buffers and variables.
        training: how to train.
    """

    def __init__(self, builder: PipelineWriter, training: Training) -> None:
        if training.reduction not in REDUCTIONS:
            raise PipelineError(f"reduction {training.reduction!r}; allowed are {', '.join(REDUCTIONS)}")
        check_limit(training.max_grad_norm)
        if training.replica_reduction not in ("sum", "mean", "none"):
            raise PipelineError(f"replica_reduction {training.replica_reduction!r}; allowed are sum, mean, none")
        if training.replica_reduction == "none" and builder.offload.shard_optimiser_state:
            raise PipelineError("replica_reduction none: a rule that reduces gradients itself needs them whole")
        if training.variable_loss_scale and training.combined is not None:
            raise PipelineError("variable_loss_scale: the combined rule has its loss scale compiled in")
        if training.automatic_loss_scale is not None and not training.variable_loss_scale:
            raise PipelineError("automatic_loss_scale: the loss scale is compiled in; variable_loss_scale is needed")
        automatic = training.automatic_loss_scale
        self._scaling = None if automatic is None else LossScaling(builder, automatic)
        self._builder = builder
        self._training = training
        self.accumulators: dict[Variable, Tensor | RemoteBuffer] = {}
        self.updated_on: dict[Variable, int] = {}
        self._counts: dict[str, tuple[int, Tensor]] = {}
        self.gradients_of: Counter[Variable] = Counter()
        """How many gradients a variable gets in each micro-batch."""
        self.state: dict[tuple[Variable, str], Variable] = {}
        self.scalars: dict[tuple[str, int], Variable] = {}
        self._updates: dict[int, Routine] = {}
        self._averages: list[tuple[MovingAverage, int, Tensor]] = []

    @property
    def accumulates(self) -> bool:
        """Whether there are accumulators (more than one micro-batch per update)."""
        return self._builder.timetable.micro_batches > 1

    def dtype(self, variable: Variable) -> DType:
        """Type of the accumulator of ``variable``."""
        choose = self._training.accumulator_dtype
        return (choose(variable) if choose else None) or variable.dtype

    # -- accumulation ------------------------------------------------------------------------------------------------

    def accumulate(self, routine: Routine, grads: Sequence[tuple[Variable, Tensor]], ipu: int) -> None:
        """Add gradients to their accumulators in a backward routine, each as soon as it exists."""
        uses_mean = self._training.reduction == "running_mean"
        accumulations: dict[Variable, list[Op]] = {}
        if self._scaling is not None:
            self._scaling.count(routine, grads, ipu)
        for variable, grad in grads:
            self.updated_on[variable] = ipu
            # The only micro-batch hands its gradient straight to the update.
            if not self.accumulates:
                routine.give(("weight gradient", variable), grad)
                continue
            target, stored = self._open(routine, variable, ipu)
            combined = self._combined(variable)
            running_mean = uses_mean and self.gradients_of[variable] == 1
            # A running mean weighs the gradient by the number of micro-batches so far.
            operands = [target, grad, self._count(routine, ipu)] if running_mean else [target, grad]
            attributes: dict[str, Any] = {"kind": "mean" if running_mean else "add"}
            if (
                uses_mean and not running_mean
            ):  # no count says which micro-batches have already added to a sum of several gradients
                attributes["factor"] = 1.0 / self._builder.timetable.micro_batches
            if combined is not None:
                # The combined rule scales gradients when they are added, as the state is not scaled later.
                attributes["factor"] = combined[2] * self._factor(self._builder.ir.replication_factor)
            # Accumulation may run as soon as the gradient exists; remote loads and stores keep their order.
            with routine.floating(stored is None):
                op = routine.create(Accumulate, operands, ["t"], **attributes)
            for earlier_op in accumulations.setdefault(variable, []):
                # Several gradients of one variable change the same accumulator and need an order.
                routine.graph.constrain(earlier_op, op)
            accumulations[variable].append(op)
            if stored is not None:
                remote_store(stored, 0, op.outputs[0])
        if routine.graph.name in self._counts:
            unit = routine.constant(np.array(1.0, np.float32), FLOAT32, "one")
            # The count changes only after every accumulation of this micro-batch has read it.
            counted = routine.create(AddLhsInplace, [self._count(routine, ipu), unit], ["t"])
            for accumulation in (op for ops in accumulations.values() for op in ops):
                routine.graph.constrain(accumulation, counted)

    def _combined(self, variable: Variable) -> tuple[str, np.ndarray, float] | None:
        """Name, first value and factor of the state that also serves as accumulator of ``variable``, if there is
        one."""
        offload, rule = self._builder.offload, self._training.combined
        must_be_separate = (
            offload.accumulators or offload.optimiser_state or bool(self._shards(variable)) or self.together
        )
        if rule is None or must_be_separate or not self.accumulates or self._training.reduction == "running_mean":
            return None
        return rule.combined(variable)

    def _count(self, routine: Routine, ipu: int) -> Tensor:
        """How many micro-batches of this update a routine has accumulated (for the running mean)."""
        if routine.graph.name not in self._counts:
            count = self._builder.buffer(TensorSpec((), FLOAT32), ipu, f"accumulated_ipu{ipu}", zero=True)
            self._counts[routine.graph.name] = ipu, count
        return self._counts[routine.graph.name][1]

    def _open(self, routine: Scope, variable: Variable, ipu: int) -> tuple[Tensor, RemoteBuffer | None]:
        """The accumulator here, and the buffer to store it to when it lives in Streaming Memory."""
        combined = self._combined(variable)
        if combined is not None:
            return routine.get(self._state_variable(variable, combined[0], combined[1], ipu)), None
        # Made on first use, so that a variable without a gradient takes no memory.
        if variable not in self.accumulators:
            spec = TensorSpec(variable.shape, self.dtype(variable))
            offload = self._builder.offload
            if offload.accumulators and spec.elements >= offload.min_elements:
                self.accumulators[variable] = self._builder.ir.remote_buffer(spec.shape, spec.dtype, 1)
            else:
                name = f"accumulator_{variable.name}"
                self.accumulators[variable] = self._builder.buffer(spec, ipu, name, zero=True)
        accumulator = self.accumulators[variable]
        if isinstance(accumulator, RemoteBuffer):
            return remote_load(accumulator, 0, f"accumulator_{variable.name}"), accumulator
        return routine.get(accumulator), None

    # -- the update --------------------------------------------------------------------------------------------------

    @property
    def together(self) -> bool:
        """Whether updates need all gradients: their norm is limited, or some numbers depend on several of them."""
        return math.isfinite(self._training.max_grad_norm) or self._training.joint is not None

    def write_updates(self) -> None:
        """Write one routine per IPU that updates all its parameters; none where updates need all gradients."""
        if self.together:
            return
        for average, ipu, factor in self._averages:
            self._average(self._update_on(ipu), average, ipu, factor)
        # What an average reads has to wait with its own update.
        update = self._update_after_use if self._averages else self._update
        for variable, ipu in self.updated_on.items():
            routine = self._update_on(ipu)
            grad = None if self.accumulates else self._single(routine, variable)
            update(routine, self._reduced(routine, variable, ipu, grad))
        for ipu, count in self._counts.values():
            # The next update counts from zero again.
            with self._updates[ipu].on():
                make(AccumulatorZero, count)

    def _update_on(self, ipu: int) -> Routine:
        """The update routine of an IPU."""
        if ipu not in self._updates:
            self._updates[ipu] = Routine(self._builder.ir, f"update_ipu{ipu}", ipu, "update")
        return self._updates[ipu]

    def keep_average(self, average: MovingAverage, factor: Tensor, ipu: int) -> None:
        """In a forward routine, keep the factor of a running mean for the weight update."""
        for variable in (average.mean, average.variable):
            if variable.remote is not None:
                raise PipelineError(
                    f"{variable.name}: a running mean and what it follows have to stay on the chip; it lies in "
                    "Streaming Memory (weights off chip)"
                )
        name = f"factor_of_{average.mean.name}"
        kept_factor = self._builder.buffer(factor.spec, ipu, name, zero=False)
        make(CopyVarUpdate, kept_factor, factor)
        self._averages.append((average, ipu, kept_factor))

    def _average(self, scope: Scope, average: MovingAverage, ipu: int, factor: Tensor) -> None:
        with scope.on(ipu):
            mean, value = scope.get(average.mean), scope.get(average.variable)
            make(Accumulate, mean, value, scope.get(factor), kind="moving_average")

    def update(self, scope: Scope, gradients: Mapping[Variable, Tensor]) -> None:
        """Call the update routines, or reduce all gradients and update. ``gradients`` are those of a single
        micro-batch."""
        if not self.together:
            values: dict[Hashable, Tensor] = {
                ("weight gradient", variable): grad for variable, grad in gradients.items()
            }
            for routine in self._updates.values():
                routine.call(scope, values)
        with CONTEXT.phase("update"):
            if self.together:
                self._meet_and_update(scope, gradients)
            if self._scaling is not None:
                names = (LOSS_SCALE, GRADIENT_SCALE)
                self._scaling.update(scope, {key: scalar for key, scalar in self.scalars.items() if key[0] in names})

    def _meet_and_update(self, scope: Scope, gradients: Mapping[Variable, Tensor]) -> None:
        """Reduce all gradients, limit their norm or compute numbers that depend on several of them, then update."""
        unequal = [variable.name for variable in self.updated_on if variable.grouping.num_groups > 1]
        if unequal:
            raise PipelineError(
                f"max_grad_norm: {', '.join(unequal)} differ between groups of replicas, and so would the norm of all "
                "gradients; allowed are parameters that are equal on all replicas"
            )
        for average, ipu, factor in self._averages:
            self._average(scope, average, ipu, factor)
        gradients_reduced = [
            self._reduced(scope, variable, ipu, gradients.get(variable)) for variable, ipu in self.updated_on.items()
        ]
        reduced = {
            gradient.variable: Reduced(gradient.reduced, gradient.ipu, self._shards(gradient.variable))
            for gradient in gradients_reduced
        }
        if math.isfinite(self._training.max_grad_norm):
            clip(scope, list(reduced.values()), self._training.max_grad_norm)
        if self._training.joint is not None:
            self._training.joint.join(scope, reduced)
        for gradient in gradients_reduced:
            self._update_after_use(scope, gradient)
        for ipu, count in self._counts.values():
            with scope.on(ipu):
                _cleared_after_use(scope, count)

    def _update_after_use(self, scope: Scope, gradient: _Gradient) -> None:
        """Update one parameter after every op that uses it.

        A step may begin with a change of the parameter that depends on no gradient (weight decay), so data flow alone
        does not order it.
        """
        if gradient.variable.remote is not None:
            self._update(scope, gradient)
            return
        weight, count = scope.get(gradient.variable), len(scope.graph.ops)
        users = [op for op in scope.graph.ops if weight in op.inputs]
        self._update(scope, gradient)
        for op in scope.graph.ops[count:]:
            if any(op.inputs[index] is weight for index in op.modified_inputs()):
                for user in users:
                    scope.graph.constrain(user, op)

    def _single(self, routine: Routine, variable: Variable) -> Tensor:
        """The gradient of the only micro-batch."""
        key = ("weight gradient", variable)
        return routine.argument(key, TensorSpec(variable.shape, variable.dtype), f"gradient_{variable.name}")

    def _reduced(self, scope: Scope, variable: Variable, ipu: int, single: Tensor | None) -> _Gradient:
        """A gradient reduced over replicas and over micro-batches; ``single``, where given, holds the only
        micro-batch."""
        with scope.on(ipu):
            gradient, stored = self._gradient(scope, variable, ipu, single)
            return _Gradient(variable, ipu, gradient, stored, self._over_replicas(scope, variable, ipu, gradient))

    def _over_replicas(self, scope: Scope, variable: Variable, ipu: int, gradient: Tensor) -> Tensor:
        """A gradient reduced over the replicas and scaled."""
        replicas = self._builder.ir.replication_factor
        shards = self._shards(variable)
        if shards:
            # A reduce-scatter leaves each replica the sum of its shard only, which is all that the update needs.
            gradient = _shard(gradient, "add", shards)
        remaining_group = _complement(_group(variable), shards)
        if remaining_group.group_size > 1 and self._training.replica_reduction != "none":
            gradient = make(ReplicatedAllReduceInplace, gradient, op="add", group=remaining_group)
        # The combined rule has scaled the gradients as they were added.
        factor = 1.0 if self._combined(variable) is not None else self._factor(replicas)
        if self._training.variable_loss_scale:
            return make(AccumulatorScale, gradient, scope.get(self.scalar(GRADIENT_SCALE, factor, ipu)))
        return gradient if factor == 1.0 else make(AccumulatorScale, gradient, factor=factor)

    def _update(self, scope: Scope, gradient: _Gradient) -> None:
        """Update one parameter."""
        with scope.on(gradient.ipu):
            self._step(scope, gradient)

    def _step(self, routine: Scope, gradient: _Gradient) -> None:
        variable, ipu, reduced = gradient.variable, gradient.ipu, gradient.reduced
        shards = self._shards(variable)
        weight = self._weight(routine, variable)
        # The operator "local" cuts out the replica's own shard without communication.
        target = _shard(weight, "local", shards) if shards else weight
        combined = self._combined(variable) is not None
        state = {} if combined else self._load_state(routine, variable, ipu)
        scalars = {
            name: routine.get(self.scalar(name, value, ipu)) for name, value in self._training.rule.scalars().items()
        }
        if combined:
            assert self._training.combined is not None
            members = variable.grouping.group_size
            self._training.combined.build_combined(variable, target, reduced, scalars, members)
        else:
            self._training.rule.build(variable, target, reduced, state, scalars, shards)
        self._store_state(variable, state)
        if shards:
            whole = make(
                ReplicatedAllGather, target, name=variable.name, mode="shape", shape=variable.shape, group=shards
            )
            # The forward needs whole weights, so the updated shards are gathered.
            weight = make(CopyVarUpdate, weight, whole)
        if variable.remote is not None:
            remote_store(*variable.remote, weight)
        # A combined accumulator is the optimiser's state, which has to survive the update.
        if self.accumulates and not combined:
            if self._training.replica_reduction == "none":
                # The rule reads the accumulator itself, scaled in its place or not, for other parameters too.
                cleared = _cleared_after_use(routine, gradient.accumulated, reduced)
            else:
                cleared = make(AccumulatorZero, gradient.accumulated)
            if gradient.stored is not None:
                remote_store(gradient.stored, 0, cleared)

    def _gradient(
        self, routine: Scope, variable: Variable, ipu: int, single: Tensor | None
    ) -> tuple[Tensor, RemoteBuffer | None]:
        """The accumulated gradient in the accumulator's type, and the buffer where it is stored, if any."""
        if single is None:
            return self._open(routine, variable, ipu)
        if self.dtype(variable) is not variable.dtype:
            single = make(Cast, single, name=single.name, dtype=self.dtype(variable))
        return single, None

    def _weight(self, routine: Scope, variable: Variable) -> Tensor:
        if variable.remote is None:
            return routine.get(variable)
        return remote_load(*variable.remote, variable.name)

    @property
    def gradient_scale(self) -> float | None:
        """The scale of accumulated gradients without the loss scale; None if the loss scale is compiled in."""
        training = self._training
        if not training.variable_loss_scale:
            return None
        return self._factor(self._builder.ir.replication_factor) * training.loss_scale

    def _factor(self, replicas: int) -> float:
        training, micro_batches = self._training, self._builder.timetable.micro_batches
        factor = 1.0 / training.loss_scale
        if training.reduction == "mean":
            factor /= micro_batches
        if training.replica_reduction == "mean":
            factor /= replicas
        return factor

    # -- sharding ----------------------------------------------------------------------------------------------------

    def _shards(self, variable: Variable) -> ReplicaGrouping | None:
        """The groups of replicas whose members each hold a shard of the state of ``variable``; None: each replica holds
        all."""
        offload, group = self._builder.offload, _group(variable)
        if offload.sharding_domain and group.num_groups == 1:
            group = ReplicaGrouping(group.replicas, 1, offload.sharding_domain)
        # A tensor with fewer elements than replicas would leave some of them without a shard.
        large_enough = variable.spec.elements >= max(offload.min_elements_sharding, group.group_size)
        return group if offload.shard_optimiser_state and group.group_size > 1 and large_enough else None

    # -- optimiser state ---------------------------------------------------------------------------------------------

    def _load_state(self, routine: Scope, variable: Variable, ipu: int) -> dict[str, Tensor]:
        state = {}
        for name, value in self._training.rule.state(variable).items():
            state_variable = self._state_variable(variable, name, np.asarray(value), ipu)
            if state_variable.remote is None:
                state[name] = routine.get(state_variable)
            else:
                state[name] = remote_load(*state_variable.remote, state_variable.name)
        return state

    def _store_state(self, variable: Variable, state: Mapping[str, Tensor]) -> None:
        for name, tensor in state.items():
            state_variable = self.state[variable, name]
            if state_variable.remote is not None:
                remote_store(*state_variable.remote, tensor)

    def _state_variable(self, variable: Variable, name: str, value: np.ndarray, ipu: int) -> Variable:
        key = (variable, name)
        if key in self.state:
            return self.state[key]
        builder, offload = self._builder, self._builder.offload
        grouping = variable.grouping
        shards = self._shards(variable)
        # Scalars such as step counts are not sharded.
        shard_over = shards.group_size if shards and value.shape == variable.shape else None
        is_offloaded = offload.optimiser_state and value.size >= max(1, offload.min_elements)
        self.state[key] = builder.variable(
            f"{variable.name}___{name}", value, ipu, shard_over=shard_over, remote=is_offloaded, grouping=grouping
        )
        return self.state[key]

    def scalar(self, name: str, value: float, ipu: int) -> Variable:
        """The variable of a number on an IPU that the host may rewrite, made on first use."""
        key = (name, ipu)
        if key not in self.scalars:
            self.scalars[key] = self._builder.variable(f"{name}___ipu{ipu}", np.asarray(value, np.float32), ipu)
        return self.scalars[key]


def _cleared_after_use(scope: Scope, accumulator: Tensor, *aliases: Tensor) -> Tensor:
    """An accumulator cleared after every op that uses it, by its own name or by another one of its storage."""
    tensors = {scope.get(accumulator), *aliases}
    users = [op for op in scope.graph.ops if not tensors.isdisjoint(op.inputs)]
    cleared = make(AccumulatorZero, accumulator)
    for user in users:
        scope.graph.constrain(user, scope.graph.ops[-1])
    return cleared


def _group(variable: Variable) -> ReplicaGrouping:
    """The replicas that have the same value; collectives run over regular groups only."""
    assert isinstance(variable.grouping, ReplicaGrouping)
    return variable.grouping


def _shard(tensor: Tensor, op: str, shards: ReplicaGrouping) -> Tensor:
    return make(ReplicatedReduceScatter, tensor, name=tensor.name, op=op, group=shards)


def _complement(group: ReplicaGrouping, shards: ReplicaGrouping | None) -> ReplicaGrouping:
    """The replicas of ``group`` that still have to reduce after a reduction over the groups of ``shards``.

    These are all of them without shards, else those with the same shard
    (``popart:willow/src/transforms/streamingmemoryopinserter.cpp``, RTSAllReduceToScatter).
    """
    if shards is None:
        return group
    return ReplicaGrouping(group.replicas, group.stride * shards.group_size, group.group_size // shards.group_size)
