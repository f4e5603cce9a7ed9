"""Gradient accumulation in training loops and reduction over replicas: the wrapping optimisers.

``GradientAccumulationOptimizerV2`` splits the loop around it in two: an inner loop of ``num_mini_batches`` iterations
that adds gradients to accumulators, and an outer loop that updates the variables after it. Optimiser state is then used
in the outer loop only and can live in Streaming Memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ipuperf import ops as _k
from ipuperf.functions import make
from ipuperf.ir import CONTEXT, DType
from ipuperf.ir import Variable as IrVariable

from .array import Array, convert
from .devices import remote_buffers_supported
from .dtypes import as_dtype
from .effects import EFFECTS
from .optimizer import GradientDescentOptimizer, MomentumOptimizer, Optimizer
from .reduction import GradientAccumulationReductionMethod as Method
from .tracing import Frame, Operation, current_frame, use_frame


class Wrapper(Optimizer):
    """Base of optimisers around another one."""

    def __init__(self, wrapped_optimizer: Optimizer, name: str | None = None) -> None:
        if not isinstance(wrapped_optimizer, Optimizer):
            raise TypeError(f"{type(self).__name__} needs an optimizer to wrap, got {wrapped_optimizer!r}")
        super().__init__(name or type(self).__name__)
        self.wrapped = wrapped_optimizer

    def compute_gradients(self, loss: Any, var_list: Sequence[Any] | None = None, **options: Any) -> list[Any]:
        """``(gradient, variable)`` pairs of the wrapped optimiser."""
        return self.wrapped.compute_gradients(loss, var_list, **options)

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Operation:
        """Update as the wrapped optimiser does."""
        return self.wrapped.apply_gradients(grads_and_vars, global_step, name)

    def hyper_parameters(self) -> Any:
        """Those of the wrapped optimiser."""
        return self.wrapped.hyper_parameters()

    def slot_values(self, variable: Any) -> dict[str, np.ndarray]:
        """Initial state by name, of the wrapped optimiser."""
        return self.wrapped.slot_values(variable)

    def get_slot(self, variable: Any, name: str) -> Any:
        """A state variable of the wrapped optimiser."""
        return self.wrapped.get_slot(variable, name)

    def get_slot_names(self) -> list[str]:
        """Names of the wrapped optimiser's state variables."""
        return self.wrapped.get_slot_names()


def innermost(optimizer: Optimizer) -> Optimizer:
    """The optimiser inside all wrappers."""
    while isinstance(optimizer, Wrapper):
        optimizer = optimizer.wrapped
    return optimizer


def wrappers(optimizer: Optimizer) -> list[Wrapper]:
    """The wrappers, outermost first."""
    found = []
    while isinstance(optimizer, Wrapper):
        found.append(optimizer)
        optimizer = optimizer.wrapped
    return found


class CrossReplicaOptimizer(Wrapper):
    """Takes the mean of the gradients over the replicas before the update."""

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Operation:
        """Update by the means of the gradients over the replicas; in a pipeline they are reduced already."""
        frame = current_frame()
        if frame.update is not None:  # in a pipeline the gradients have been reduced
            return self.wrapped.apply_gradients(grads_and_vars, global_step, name)
        reduced = [(None if g is None else _mean_over_replicas(frame, convert(g)), v) for g, v in grads_and_vars]
        kept, frame.reduced = frame.reduced, True
        try:
            return self.wrapped.apply_gradients(reduced, global_step, name)
        finally:
            frame.reduced = kept


def _mean_over_replicas(frame: Frame, grad: Array) -> Array:
    tensor = frame.get(grad.tensor)
    with CONTEXT.on_ipu(tensor.ipu or 0), CONTEXT.phase("update"):
        group = frame.program.ir.grouping()
        return Array(make(_k.ReplicatedAllReduce, tensor, name="reduced_grad", op="mean", group=group))


class MapGradientOptimizer(Wrapper):
    """Applies ``gradient_mapping_function(grad, var)`` to each gradient."""

    def __init__(
        self,
        wrapped_optimizer: Optimizer,
        gradient_mapping_function: Callable[[Any, Any], Any],
        name: str = "MapGradientOptimizer",
    ) -> None:
        super().__init__(wrapped_optimizer, name)
        self.mapping = gradient_mapping_function

    def compute_gradients(self, loss: Any, var_list: Sequence[Any] | None = None, **options: Any) -> list[Any]:
        """``(gradient, variable)`` pairs with the gradients mapped; no gradient stays none."""
        pairs = self.wrapped.compute_gradients(loss, var_list, **options)
        return [(None if g is None else self.mapping(g, v), v) for g, v in pairs]


class Accumulation:
    """The accumulators of a loop body and what updates the variables after it.

    Attributes:
        count: micro-batches per update.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._updates: list[Callable[[Frame], None]] = []

    def after(self, update: Callable[[Frame], None]) -> None:
        """Build ``update`` in the frame around the loop of micro-batches."""
        self._updates.append(update)

    def update(self, frame: Frame) -> None:
        """Build all updates in ``frame``."""
        with use_frame(frame):
            for build in self._updates:
                build(frame)


class GradientAccumulationOptimizerV2(Wrapper):
    """Accumulates gradients over ``num_mini_batches`` iterations of the :func:`loops.repeat` around it, then updates.

    Args:
        offload_weight_update_variables: keep optimiser state in Streaming Memory; None: where the machine has it.
        dtype: type of the accumulators: None (the variable's), a type, or a function of the variable.
        reduction_method: SUM, MEAN or RUNNING_MEAN.

    Raises:
        ValueError: ``num_mini_batches`` below 1, or another reduction method.
        NotImplementedError: ``replicated_optimizer_state_sharding`` (only pipelines have it).
    """

    def __init__(
        self,
        opt: Optimizer,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = Method.SUM,
        name: str = "GradientAccumulationOptimizerV2",
    ) -> None:
        super().__init__(opt, name)
        if isinstance(num_mini_batches, bool) or not isinstance(num_mini_batches, int) or num_mini_batches < 1:
            raise ValueError("num_mini_batches must be a positive number.")
        if replicated_optimizer_state_sharding:
            raise NotImplementedError(
                f"{name}: replicated_optimizer_state_sharding is available for pipelines only (pipelining_ops.pipeline)"
            )
        self.num_mini_batches = num_mini_batches
        self.offload = offload_weight_update_variables
        self.accumulator_dtype = dtype
        self.method = Method.parse_reduction_method(reduction_method)

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Operation:
        """Accumulate here; update after the loop of micro-batches.

        Raises:
            ValueError: not in a ``loops.repeat``, or two different numbers of mini batches in one loop.
        """
        frame = current_frame()
        if frame.update is not None:
            raise ValueError(
                "Since pipelines always accumulate gradients, no gradient accumulation optimizer can be used in a "
                "pipeline's optimizer_function; give the wrapped optimizer and gradient_accumulation_count"
            )
        if frame.outer is None:
            raise ValueError(f"{self.name} needs to be used inside of a training loop generated by loops.repeat")
        if frame.accumulation is None:
            frame.accumulation = Accumulation(self.num_mini_batches)
        if frame.accumulation.count != self.num_mini_batches:
            raise ValueError(
                f"one loop accumulates over {frame.accumulation.count} and over {self.num_mini_batches} mini batches; "
                "the numbers have to be equal"
            )
        counter = self._counter(frame) if self.method is Method.RUNNING_MEAN else None
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        accumulators = [(self._accumulate(frame, convert(g), v, counter), v) for g, v in pairs]
        if counter is not None:
            with CONTEXT.phase("bwd"):
                frame.create(_k.AddLhsInplace, [counter, convert(1.0).tensor], ["micro_batches"])
        reduced = frame.reduced
        frame.accumulation.after(lambda outer: self._apply(outer, accumulators, counter, global_step, reduced))
        return Operation(name or self.name)

    def _counter(self, frame: Frame) -> IrVariable:
        return frame.program.data("accumulated_micro_batches", np.zeros((), np.float32))

    def _accumulate(self, frame: Frame, grad: Array, variable: Any, counter: IrVariable | None) -> IrVariable:
        """Add a gradient to its accumulator; the accumulator."""
        tensor = frame.get(grad.tensor)
        wanted = accumulator_dtype(self.accumulator_dtype, variable)
        accumulator = frame.program.data(f"{variable.op_name}/accumulator", np.zeros(grad.shape, wanted.numpy))
        accumulator.ipu = tensor.ipu
        with CONTEXT.on_ipu(tensor.ipu or 0), CONTEXT.phase("bwd"):
            if counter is not None:
                frame.create(_k.Accumulate, [accumulator, tensor, counter], ["accumulated"], kind="mean")
            else:
                factor = 1.0 / self.num_mini_batches if self.method is Method.MEAN else None
                frame.create(_k.Accumulate, [accumulator, tensor], ["accumulated"], kind="add", factor=factor)
        return accumulator

    def _apply(
        self,
        frame: Frame,
        accumulators: Sequence[tuple[IrVariable, Any]],
        counter: IrVariable | None,
        global_step: Any,
        reduced: bool,
    ) -> None:
        """The weight update, then accumulators of zero."""
        frame.reduced = reduced
        frame.offload = self._offloads()
        grads = [(Array(frame.get(a)), v) for a, v in accumulators]
        self.wrapped.apply_gradients(grads, global_step)
        frame.offload = False
        for accumulator in [*(a for a, _ in accumulators), *([] if counter is None else [counter])]:
            with CONTEXT.on_ipu(accumulator.ipu or 0):
                frame.create(_k.AccumulatorZero, [accumulator], ["cleared"])

    def _offloads(self) -> bool:
        if self.offload is False:
            return False
        supported = remote_buffers_supported()
        if self.offload and not supported:
            raise ValueError(
                f"{self.name}: offload_weight_update_variables=True, but the machine has no Streaming Memory"
            )
        return supported


def accumulator_dtype(choice: Any, variable: Any) -> DType:
    """The accumulator's type: of the variable (None), given, or chosen by a function of the variable."""
    if choice is None:
        return variable.dtype
    if isinstance(choice, DType):
        return as_dtype(choice)
    if callable(choice) and not isinstance(choice, type):
        return as_dtype(choice(variable))
    return as_dtype(choice)


class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """As V2, for gradient descent and momentum only, without offloading.

    Raises:
        ValueError: another optimiser.
    """

    def __init__(
        self,
        opt: Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "GradientAccumulationOptimizer",
    ) -> None:
        if not isinstance(innermost(opt), (GradientDescentOptimizer, MomentumOptimizer)):
            raise ValueError(
                "GradientAccumulationOptimizer only works with GradientDescentOptimizer and MomentumOptimizer, not "
                f"with {type(innermost(opt)).__name__}; use GradientAccumulationOptimizerV2"
            )
        EFFECTS.given("ipu.optimizers.GradientAccumulationOptimizer(verify_usage)", verify_usage)
        super().__init__(opt, num_mini_batches, False, name=name)


class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """:class:`GradientAccumulationOptimizerV2` with the mean over the replicas at the update."""

    def __init__(
        self,
        opt: Optimizer,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = Method.SUM,
        name: str = "CrossReplicaGradientAccumulationOptimizerV2",
    ) -> None:
        super().__init__(
            CrossReplicaOptimizer(opt),
            num_mini_batches,
            offload_weight_update_variables,
            replicated_optimizer_state_sharding,
            dtype,
            reduction_method,
            name,
        )


class CrossReplicaGradientAccumulationOptimizer(GradientAccumulationOptimizer):
    """:class:`GradientAccumulationOptimizer` with the mean over the replicas at the update."""

    def __init__(
        self,
        opt: Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "CrossReplicaGradientAccumulationOptimizer",
    ) -> None:
        super().__init__(CrossReplicaOptimizer(opt), num_mini_batches, verify_usage, name)
