"""Gradient accumulation in training loops and reduction over replicas: optimisers around optimisers of version 1.

``GradientAccumulationOptimizerV2`` splits the loop around it in two: an inner loop of ``num_mini_batches`` iterations
that adds gradients to accumulators, and an outer loop that updates the variables after it: what the wrapped optimiser's
``apply_gradients`` does is traced into a graph of its own. Optimiser state is then used in the outer loop only and can
live in Streaming Memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf import ops as _k
from ipuperf.ir import CONTEXT, Tensor
from ipuperf.ir import Variable as IrVariable

from ..effects import EFFECTS
from ..importer import Importer, Value, marker, resource_of, tensor_of
from ..importer.collectives import all_reduce, reduces
from ..importer.tracer import TracedFunction, changed_captures, trace
from ..importer.tracing import Frame, device_dtype, frame_of, use_frame
from ..programs.devices import remote_buffers_supported
from ..programs.program import spec_of


class GradientAccumulationReductionMethod(Enum):
    """``SUM``; ``MEAN``: each gradient scaled by 1 / count; ``RUNNING_MEAN``: ``acc = acc n/(n+1) + g/(n+1)``."""

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2

    @classmethod
    def parse_reduction_method(cls, method: Any) -> GradientAccumulationReductionMethod:
        """A member, or its name in any case.

        Raises:
            ValueError: something else.
        """
        if isinstance(method, cls):
            return method
        if isinstance(method, str) and method.upper() in cls.__members__:
            return cls[method.upper()]
        raise ValueError(
            "reduction_method must be set to SUM, MEAN or RUNNING_MEAN from GradientAccumulationReductionMethod or to "
            f"one of these names, it is {method!r}"
        )


Optimizer = tf.compat.v1.train.Optimizer


class IpuOptimizer(Optimizer):  # type: ignore[misc, valid-type]
    """Base of optimisers around another one, which does the work."""

    def __init__(self, optimizer: Any, name: str | None = None) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"{type(self).__name__} needs a tf.compat.v1.train.Optimizer to wrap, got {optimizer!r}; for Keras "
                "optimizers use tensorflow.python.ipu.keras.optimizers"
            )
        super().__init__(False, name or type(self).__name__)
        self._opt = optimizer

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[Any]:
        """``(gradient, variable)`` pairs of the wrapped optimiser."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Update as the wrapped optimiser does."""
        return self._opt.apply_gradients(grads_and_vars, global_step, name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """A state variable of the wrapped optimiser."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Names of the wrapped optimiser's state variables."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        """State variables of the wrapped optimiser."""
        return self._opt.variables()


IPUOptimizer = IpuOptimizer


def innermost(optimizer: Any) -> Any:
    """The optimiser inside all wrappers."""
    while isinstance(optimizer, IpuOptimizer):
        optimizer = optimizer._opt
    return optimizer


def wrappers(optimizer: Any) -> list[IpuOptimizer]:
    """The wrappers, outermost first."""
    outer_first = []
    while isinstance(optimizer, IpuOptimizer):
        outer_first.append(optimizer)
        optimizer = optimizer._opt
    return outer_first


class CrossReplicaOptimizer(IpuOptimizer):
    """Takes the mean of the gradients over the replicas before the update."""

    def __init__(self, opt: Any, name: str = "CrossReplicaOptimizer") -> None:
        super().__init__(opt, name)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Update by the means of the gradients over the replicas."""
        # A variable that the loss does not depend on has no gradient, on any replica.
        reduced = [(None if g is None else all_reduce(g, "mean"), v) for g, v in grads_and_vars]
        return self._opt.apply_gradients(reduced, global_step, name)


class MapGradientOptimizer(IpuOptimizer):
    """Applies ``gradient_mapping_function(grad, var)`` to each gradient."""

    def __init__(
        self,
        wrapped_optimizer: Any,
        gradient_mapping_function: Callable[[Any, Any], Any],
        name: str = "MapGradientOptimizer",
    ) -> None:
        super().__init__(wrapped_optimizer, name)
        self.mapping = gradient_mapping_function

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[Any]:
        """``(gradient, variable)`` pairs with the gradients mapped; no gradient stays none."""
        pairs = self._opt.compute_gradients(*args, **kwargs)
        return [(None if g is None else self.mapping(g, v), v) for g, v in pairs]


class ShardedOptimizer(IpuOptimizer):
    """For graphs with :func:`~.scopes.ipu_shard`: gradients and updates are on the shards of their forward ops and
    variables, as they always are here."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer, "ShardedOptimizer")


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
        with use_frame(frame), CONTEXT.phase("update"):
            for build in self._updates:
                build(frame)


class GradientAccumulationOptimizerV2(IpuOptimizer):
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
        opt: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = GradientAccumulationReductionMethod.SUM,
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
        self.method = GradientAccumulationReductionMethod.parse_reduction_method(reduction_method)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Accumulate here; update after the loop of micro-batches.

        Raises:
            ValueError: not in a ``loops.repeat``, no gradient, or two different numbers of mini batches in one loop.
        """
        # Inside loops.repeat the default graph is the body's; outside there is no loop to split.
        if not isinstance(ops.get_default_graph(), FuncGraph):
            raise ValueError(f"{self._name} needs to be used inside of a training loop generated by loops.repeat")
        pairs = [(tf.convert_to_tensor(g), v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise ValueError(f"No gradients provided for any variable: {[v.name for _, v in grads_and_vars]}.")
        variables = [v for _, v in pairs]
        types = [accumulator_dtype(self.accumulator_dtype, v) for v in variables]
        # The update is traced into its own graph, because it is built around the loop and not where this op stands.
        update = trace(
            "weight_update",
            lambda *grads: self._opt.apply_gradients(list(zip(grads, variables)), global_step, name),
            [tf.TensorSpec(v.shape, dtype) for v, dtype in zip(variables, types)],
            automatic=True,
        )
        check_types(update, self._opt.get_name())
        meaning = _Accumulate(self, update, [v.name.rpartition(":")[0] or v.name for v in variables])
        meaning.reduced = all(reduces(g) for g, _ in pairs)
        marker(self._name, meaning, [*(g for g, _ in pairs), *update.captured], [])
        # The marker is the operation made last; callers wait for it as for an update.
        return ops.get_default_graph().get_operations()[-1]

    def offloads(self) -> bool:
        """Whether state lives in Streaming Memory.

        Raises:
            ValueError: it is asked for and the machine has none.
        """
        if self.offload is False:
            return False
        supported = remote_buffers_supported()
        if self.offload and not supported:
            raise ValueError(
                f"{self._name}: offload_weight_update_variables=True, but the machine has no Streaming Memory"
            )
        return supported


class _Accumulate:
    """Gradients added to accumulators where the op stands, and an update after the loop of micro-batches; its inputs
    are the gradients and what the update captures.

    Attributes:
        reduced: the gradients have been reduced over the replicas.
    """

    def __init__(
        self, optimizer: GradientAccumulationOptimizerV2, update: TracedFunction, names: Sequence[str]
    ) -> None:
        self._optimizer = optimizer
        self._traced = update
        self._names = names
        self.reduced = False

    def changed(self) -> list[int]:
        """Inputs that are variables which the update changes."""
        return changed_captures(self._traced, len(self._names))

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """Accumulate; keep the update for later."""
        optimizer = self._optimizer
        frame = frame_of(importer.place, optimizer._name)
        if frame.outer is None:
            raise ValueError(f"{optimizer._name} needs to be used inside of a training loop generated by loops.repeat")
        count = optimizer.num_mini_batches
        # Several optimisers may accumulate in one loop: they share its count and are updated together.
        if frame.accumulation is None:
            frame.accumulation = Accumulation(count)
        if frame.accumulation.count != count:
            raise ValueError(
                f"one loop accumulates over {frame.accumulation.count} and over {count} mini batches; "
                "the numbers have to be equal"
            )
        running = optimizer.method is GradientAccumulationReductionMethod.RUNNING_MEAN
        # Only the running mean has to know how many micro-batches there have been.
        counter = frame.program.data("accumulated_micro_batches", np.zeros((), np.float32)) if running else None
        gradients = [tensor_of(value, frame) for value in inputs[: len(self._names)]]
        accumulators = [
            self._add(frame, name, gradient, argument, counter)
            for name, gradient, argument in zip(self._names, gradients, self._traced.arguments)
        ]
        # All accumulators read the counter first, so it counts up after them.
        if counter is not None:
            with CONTEXT.phase("bwd"):
                frame.create(_k.AddLhsInplace, [counter, frame.constant(np.float32(1.0), None)], ["micro_batches"])
        captured = [self._outside(frame, value) for value in inputs[len(self._names) :]]
        frame.accumulation.after(lambda outer: self._update(outer, accumulators, captured, counter))
        return []

    def _add(
        self, frame: Frame, name: str, gradient: Tensor, argument: tf.Tensor, counter: IrVariable | None
    ) -> IrVariable:
        """Add a gradient to its accumulator; the accumulator."""
        dtype = device_dtype(argument.dtype)
        accumulator = frame.program.data(f"{name}/accumulator", np.zeros(gradient.shape, dtype.numpy))
        # The accumulator lives where its gradient is made, so that adding moves nothing between IPUs.
        accumulator.ipu = gradient.ipu
        with CONTEXT.on_ipu(gradient.ipu or 0), CONTEXT.phase("bwd"):
            if counter is not None:
                frame.create(_k.Accumulate, [accumulator, gradient, counter], ["accumulated"], kind="mean")
            else:
                mean = self._optimizer.method is GradientAccumulationReductionMethod.MEAN
                factor = 1.0 / self._optimizer.num_mini_batches if mean else None
                frame.create(_k.Accumulate, [accumulator, gradient], ["accumulated"], kind="add", factor=factor)
        return accumulator

    def _outside(self, frame: Frame, value: Value) -> Value:
        """What the update uses besides gradients, as a value of the frames around the loop.

        Raises:
            ValueError: it is computed in the loop.
        """
        # A value of another graph is one from outside already.
        if not isinstance(value, Tensor) or value.graph is not frame.graph:
            return value
        source = next((outer for outer, image in frame.images.items() if image is value), None)
        if source is None:
            raise ValueError(
                f"{self._optimizer._name}: the weight update uses {value.id!r}, which is computed in each mini batch; "
                "it can use variables, numbers and values from outside of the loop"
            )
        return source

    def _update(
        self, frame: Frame, accumulators: Sequence[IrVariable], captured: Sequence[Value], counter: IrVariable | None
    ) -> None:
        """The weight update, then accumulators of zero."""
        # These hold for this update only, and are taken back below.
        frame.offload = self._optimizer.offloads()
        frame.reduced_before = self.reduced
        self._traced.build(frame, [frame.get(a) for a in accumulators], captured)
        # State in Streaming Memory is loaded once for the whole update, and stored after all of it.
        frame.store_loaded()
        frame.offload, frame.reduced_before = False, False
        for accumulator in [*accumulators, *([] if counter is None else [counter])]:
            with CONTEXT.on_ipu(accumulator.ipu or 0):
                frame.create(_k.AccumulatorZero, [accumulator], ["cleared"])


def accumulator_dtype(choice: Any, variable: Any) -> tf.DType:
    """The accumulator's type: of the variable (None), given, or chosen by a function of the variable."""
    if choice is None:
        return variable.dtype.base_dtype
    # Types are callable too, but name a type and do not choose one.
    if callable(choice) and not isinstance(choice, (type, tf.DType)):
        return tf.as_dtype(choice(variable))
    return tf.as_dtype(choice)


def check_types(update: TracedFunction, name: str) -> None:
    """TypeError where a traced update applies a gradient of another type than its variable has."""
    # Updates see variables through handles of their own graph; these lead back to the variables.
    handles = {id(inside): resource_of(outside) for outside, inside in update.graph.captures}
    for op in update.graph.get_operations():
        if op.type.startswith("ResourceApply") and id(op.inputs[0]) in handles:
            gradient_type, variable_type = op.get_attr("T"), spec_of(handles[id(op.inputs[0])]).dtype
            if gradient_type != variable_type:
                raise TypeError(
                    f"optimizer {name!r}: the gradient of {op.inputs[0].op.name!r} is {gradient_type.name}, the "
                    f"variable is {variable_type.name}; cast it in apply_gradients"
                )


class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """As V2, for gradient descent and momentum only, without offloading.

    Raises:
        ValueError: another optimiser.
    """

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "GradientAccumulationOptimizer",
    ) -> None:
        known = (tf.compat.v1.train.GradientDescentOptimizer, tf.compat.v1.train.MomentumOptimizer)
        if not isinstance(innermost(opt), known):
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
        opt: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = GradientAccumulationReductionMethod.SUM,
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
        opt: Any,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "CrossReplicaGradientAccumulationOptimizer",
    ) -> None:
        super().__init__(CrossReplicaOptimizer(opt), num_mini_batches, verify_usage, name)
