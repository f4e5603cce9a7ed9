"""The description of a pipeline by a front end: stage graphs, where their inputs come from, outputs, training.

All of it refers to one :class:`~ipuperf.ir.Ir`. The graphs are forward graphs without ops that change tensors in place.
:func:`ipuperf.pipelines.build_pipeline` differentiates them, places them on IPUs and fills the main graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ipuperf.ir import Constant, DType, Graph, IrError, Op, ReplicaGrouping, Stream, Tensor, Variable

if TYPE_CHECKING:
    from .clipping import Reduced
    from .scope import Scope


class PipelineError(IrError):
    """A pipeline that cannot be built; the message says what is wrong, where, and what is allowed."""


@dataclass(frozen=True)
class Data:
    """A tensor of the main graph: a parameter, a state or an argument that is the same for all micro-batches."""

    tensor: Variable | Constant


@dataclass(frozen=True)
class HostInput:
    """One slice of a host-to-device stream per micro-batch, loaded on the stage's IPU."""

    stream: Stream


@dataclass(frozen=True)
class Activation:
    """Output ``output`` of the graph of ``parts[part]``, which belongs to an earlier stage."""

    part: int
    output: int


@dataclass(frozen=True)
class Seed:
    """A ``uint32`` tensor of shape ``(2,)`` that differs between micro-batches, replicas and runs. A recomputed forward
    gets the same one again."""


Source = Data | HostInput | Activation | Seed


@dataclass(frozen=True)
class MovingAverage:
    """A running mean of a variable: with each weight update ``mean = f mean + (1 - f) variable``.

    The mean takes the value that the variable had during the micro-batches, before its own update.

    Attributes:
        mean, variable: both on the IPU of the stage.
        factor: index of the stage's output that holds ``f``; the last micro-batch's counts.
    """

    mean: Variable
    variable: Variable
    factor: int


@dataclass(frozen=True)
class StageGraph:
    """The forward graph of a stage, or of one of several concurrent stages.

    Attributes:
        graph: pure graph (nothing is changed in place).
        stage: number of the stage, from 0. Several parts may have the same number and run at the same time.
        ipu: IPU of the replica.
        sources: where each graph input comes from.
        updates: ``{output index: variable}``: state that takes the output's value after each forward (running
            statistics); a recomputed forward does not write it again.
        checkpoints: tensors of the graph to keep in addition to the inputs when the forward is recomputed.
        averages: running means that are kept with each weight update; only in training.
        recomputed: ops of the graph that run again inside the backward pass, each right before the first gradient op
            that needs it. Only the checkpoints and their operands from elsewhere then wait for the backward pass. Leave
            it empty for a schedule with recomputation cells, which runs the whole forward again by itself.
    """

    graph: Graph
    stage: int
    ipu: int
    sources: Sequence[Source]
    updates: Mapping[int, Variable] = field(default_factory=dict)
    checkpoints: Sequence[Tensor] = ()
    recomputed: Collection[Op] = frozenset()
    averages: Sequence[MovingAverage] = ()


@dataclass(frozen=True)
class StageOutput:
    """A result that goes to the host.

    Attributes:
        part, output: which output of which part.
        stream: device-to-host stream of the result's shape.
        returned: ``all``: one slice per micro-batch; ``final``: the result of the run's last micro-batch; ``sum``: the
            sum over the micro-batches of the run.
        every: with ``all``, the interval in micro-batches at which results are sent, the first one after ``every``
            micro-batches of a weight update.
    """

    part: int
    output: int
    stream: Stream
    returned: str = "all"
    every: int = 1


@dataclass(frozen=True)
class GradientOutput:
    """A gradient that goes to the host, as each micro-batch has it: times the loss scale, before any reduction.

    Attributes:
        part: the part whose graph holds the differentiated tensor.
        tensor: an input of that graph, or another tensor of it.
        stream, returned: as for a :class:`StageOutput`.
    """

    part: int
    tensor: Tensor
    stream: Stream
    returned: str = "all"


@dataclass(frozen=True)
class VariableOutput:
    """The value of a variable at the end of a run, which goes to the host."""

    variable: Variable
    stream: Stream


@dataclass(frozen=True)
class HostIo:
    """How inputs and results travel between host and IPUs.

    Attributes:
        tiles: tiles of each IPU set aside for I/O.
        inputs, outputs: streams that are loaded and stored on the I/O tiles while the compute tiles work on another
            micro-batch. The value is False for overlap within one weight update (or inference run), True for overlap
            from one to the next as well.
        synthetic: whether there is no host I/O at all. Inputs are then random numbers on the IPU (normally distributed;
            zeros for integers, which may be indices), and results are not sent.
    """

    tiles: int = 0
    inputs: Mapping[Stream, bool] = field(default_factory=dict)
    outputs: Mapping[Stream, bool] = field(default_factory=dict)
    synthetic: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether anything is loaded or stored on the I/O tiles."""
        return bool(self.inputs or self.outputs)


class UpdateRule(Protocol):
    """An optimiser."""

    def state(self, variable: Variable) -> Mapping[str, np.ndarray]:
        """Initial optimiser state of ``variable`` on one replica, by name; each of the variable's shape, or scalar."""
        ...

    def scalars(self) -> Mapping[str, float]:
        """Hyper-parameters that the host may change between runs (learning rate ...), by name."""
        ...

    def build(
        self,
        parameter: Variable,
        weight: Tensor,
        gradient: Tensor,
        state: Mapping[str, Tensor],
        scalars: Mapping[str, Tensor],
        shards: ReplicaGrouping | None,
    ) -> None:
        """Create the ops that change ``weight`` and ``state`` in place; graph, IPU and order are active.

        ``weight`` is ``parameter`` in the update graph. ``gradient`` is the accumulated gradient, already reduced over
        micro-batches and replicas; the rule may change it in place. With a sharded state all tensors are the replica's
        shard, and ``shards`` are the groups of replicas that have a shard each (else None).
        """
        ...


class CombinedRule(Protocol):
    """An optimiser that uses one of its states as the gradient accumulator."""

    def combined(self, variable: Variable) -> tuple[str, np.ndarray, float] | None:
        """Name and first value of that state of ``variable``, and a factor on the gradients added to it.

        None: the variable has a separate accumulator.
        """
        ...

    def build_combined(
        self, parameter: Variable, weight: Tensor, accumulated: Tensor, scalars: Mapping[str, Tensor], replicas: int
    ) -> None:
        """Create the ops that change ``weight`` and ``accumulated`` in place.

        ``accumulated`` is the sum over the replicas of the state after the gradients were added, each replica's share
        scaled as the weight update asks for; afterwards it has to be the share of one of ``replicas`` replicas in the
        next sum.
        """
        ...


class JointRule(Protocol):
    """An optimiser whose updates use numbers that depend on the gradients of several variables."""

    def join(self, scope: Scope, gradients: Mapping[Variable, Reduced]) -> None:
        """Compute these numbers before the first parameter changes, and keep them for the updates."""
        ...


LOSS_SCALE, GRADIENT_SCALE = "loss_scale", "gradient_scale"
"""The scalars of a loss scale that the host may change: at the loss, and at the updates of each IPU."""


@dataclass(frozen=True)
class AutomaticLossScale:
    """How the loss scale follows the gradients (:mod:`.loss_scaling`).

    Attributes:
        bin_edge: an element counts as large above this share of the largest number of its type.
        threshold: the loss scale is halved above this share of large elements.
    """

    bin_edge: float = 0.0625
    threshold: float = 1e-7


@dataclass(frozen=True)
class Training:
    """How a pipeline trains.

    Attributes:
        loss_part, loss_output: the loss, a scalar (or a tensor whose elements are summed), of the last stage.
        trainable: variables that get a gradient.
        rule: the optimiser.
        reduction: of gradients over micro-batches: ``sum``, ``mean`` (accumulators are scaled once, at the update) or
            ``running_mean`` (scaled in each micro-batch).
        replica_reduction: of gradients over replicas: ``sum``, ``mean``, or ``none`` (the rule reduces them itself).
        loss_scale: factor on the loss's gradient, undone at the update.
        variable_loss_scale: whether the host may change it between runs (:meth:`.build.Pipeline.scaled`); not possible
            together with ``combined``.
        automatic_loss_scale: how the program changes it itself (only with ``variable_loss_scale``).
        accumulator_dtype: gives the type of an accumulator for its variable (None: the variable's type).
        max_grad_norm: limit of the norm of all gradients of a weight update together.
        combined: the rule that uses one tensor as accumulator and state where that is possible (on chip, not sharded,
            no clipping, several micro-batches); None: they are always two tensors.
        gradients: gradients that the host receives.
        joint: computes numbers from all gradients together before the updates; None: there are none.
        joins_pads: whether gradients of disjoint parts of a tensor are joined instead of padded and added up.
    """

    loss_part: int
    loss_output: int
    trainable: Sequence[Variable]
    rule: UpdateRule
    reduction: str = "mean"
    replica_reduction: str = "mean"
    loss_scale: float = 1.0
    variable_loss_scale: bool = False
    automatic_loss_scale: AutomaticLossScale | None = None
    accumulator_dtype: Callable[[Variable], DType | None] | None = None
    max_grad_norm: float = float("inf")
    combined: CombinedRule | None = None
    gradients: Sequence[GradientOutput] = ()
    joint: JointRule | None = None
    joins_pads: bool = False


@dataclass(frozen=True)
class Offload:
    """What lives in Streaming Memory, and what is sharded over replicas.

    Attributes:
        optimiser_state: whether it is loaded for the weight update and stored after it.
        activations: whether stashes lie there (one remote buffer entry per micro-batch in flight).
        accumulators: whether they are loaded, added to and stored in every micro-batch.
        weights: whether they are loaded before each stage that reads them and stored after the update. State that
            forwards write, such as running statistics, stays on chip.
        shard_optimiser_state: replicated tensor sharding of optimiser state (the update then runs on shards).
        min_elements: tensors with fewer elements stay on chip.
        min_elements_sharding: tensors with fewer elements are not sharded.
        sharding_domain: number of neighbouring replicas that together hold all shards of a tensor; the next ones hold
            the same shards again (PopART's ``shardingDomain``). 0: every replica holds a shard of its own.
    """

    optimiser_state: bool = False
    activations: bool = False
    accumulators: bool = False
    weights: bool = False
    shard_optimiser_state: bool = False
    min_elements: int = 0
    min_elements_sharding: int = 0
    sharding_domain: int = 0
