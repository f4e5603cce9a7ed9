"""``IPUStrategy`` and ``PopDistStrategy``: where TensorFlow 2 programs run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, reduce_util
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ..effects import EFFECTS, checked_kinds
from ..programs.hosting import call, intercepted
from .placing import ipu_scope, ordinal_of


class IPUStrategyV1(distribute_lib.StrategyV1):
    """Runs functions on the IPU: each is traced once per kind of arguments and is one program.

    Args:
        ipu_device: the device that programs are for.
        enable_dataset_iterators: ``iter(dataset)`` inside of the scope gives an iterator that feeds programs.
        enable_keras_extensions: Keras models of the scope run on the IPU.
    """

    @checked_kinds()
    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        EFFECTS.given("ipu.ipu_strategy.IPUStrategyV1(cpu_device)", cpu_device)
        EFFECTS.given("ipu.ipu_strategy.IPUStrategyV1(enable_dataset_iterators)", enable_dataset_iterators)
        ordinal_of(ipu_device)
        self._device = ipu_device
        self._keras = enable_keras_extensions
        super().__init__(IPUExtendedV1(self, ipu_device))

    @contextmanager
    def scope(self) -> Iterator[IPUStrategyV1]:
        """Programs of the block are for the strategy's device; functions with ``jit_compile=True`` run there."""
        with ExitStack() as stack:
            stack.enter_context(super().scope())
            if tf.executing_eagerly():
                stack.enter_context(ipu_scope(self._device))
                stack.enter_context(intercepted(self.run))
            if self._keras:
                attach_keras()
            yield self

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Execute ``fn(*args, **kwargs)`` on the device; its results.

        Raises:
            ValueError: in eager mode, ``fn`` is no ``tf.function``.
        """
        EFFECTS.given("ipu.ipu_strategy.IPUStrategyV1.run(options)", options)
        with self.scope():
            return self.extended.call_for_each_replica(fn, args=tuple(args), kwargs=dict(kwargs or {}))

    experimental_run_v2 = run
    supports_loss_scaling = True

    @property
    def _device_ordinal(self) -> int:
        return ordinal_of(self._device)


def attach_keras() -> None:
    """Let Keras models run on the IPU."""
    if importlib.util.find_spec("ipuperf.frontends.tensorflow.keras") is not None:
        importlib.import_module("ipuperf.frontends.tensorflow.keras").attach()


class IPUExtendedV1(distribute_lib.StrategyExtendedV1):
    """What TensorFlow asks of a strategy: one replica, as replication is inside of the program, and fixed shapes."""

    _num_replicas_in_sync = 1
    experimental_require_static_shapes = True
    experimental_between_graph = False
    should_checkpoint = True
    should_save_summary = True
    _support_per_replica_values = False

    @checked_kinds()
    def __init__(self, container_strategy: IPUStrategyV1, ipu_device: str) -> None:
        super().__init__(container_strategy)
        self._device = ipu_device

    def _create_variable(self, next_creator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return next_creator(*args, **kwargs)

    def variable_created_in_scope(self, v: Any) -> bool:
        """Any variable can be used."""
        return True

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with distribute_lib.ReplicaContext(self._container_strategy(), replica_id_in_sync_group=0):
            if not tf.executing_eagerly():
                return fn(*args, **kwargs)
            return call(fn, args, kwargs)

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        """Over the replicas of the program that is traced; outside of one there is nothing to reduce over."""
        if not isinstance(ops.get_default_graph(), FuncGraph) or tf.executing_eagerly():
            return value
        from . import replicas

        if reduce_op == reduce_util.ReduceOp.MEAN:
            return replicas.cross_replica_mean(value)
        return replicas.cross_replica_sum(value)

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        return [self._reduce_to(reduce_op, value, where, options) for value, where in value_destination_pairs]

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        return tf.nest.map_structure(lambda v: self._reduce_to(reduce_op, v, None, options), value)

    def _update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        return self._update_non_slot(var, fn, (var, *args), kwargs, group)

    def _replica_ctx_update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        return fn(var, *args, **kwargs)

    def _update_non_slot(self, colocate_with: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        with distribute_lib.UpdateContext(colocate_with):
            result = fn(*args, **kwargs)
            return result if group else tf.nest.map_structure(self._local_results, result)

    def _local_results(self, distributed_value: Any) -> tuple[Any, ...]:
        return (distributed_value,)

    def value_container(self, value: Any) -> Any:
        """The value itself."""
        return value

    def read_var(self, replica_local_var: Any) -> Any:
        """The variable's value."""
        return tf.identity(replica_local_var)

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return dataset

    def _distribute_datasets_from_function(self, dataset_fn: Callable[..., Any], options: Any) -> Any:
        return dataset_fn(distribute_lib.InputContext())

    def _in_multi_worker_mode(self) -> bool:
        return False

    def non_slot_devices(self, var_list: Any) -> str:
        """The device."""
        return self._device

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device."""
        return (self._device,)

    parameter_devices = worker_devices

    def _global_batch_size(self) -> bool:
        return True


IPUStrategy = IPUStrategyV1


class PopDistStrategy(IPUStrategyV1):
    """:class:`.ipu_strategy.IPUStrategyV1`: one instance has all replicas, so none is left to reduce over."""

    @checked_kinds()
    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        add_ipu_cross_replica_reductions: bool = True,
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        EFFECTS.given(
            "ipu.distributed.popdist_strategy.PopDistStrategy(add_ipu_cross_replica_reductions)",
            add_ipu_cross_replica_reductions,
        )
        super().__init__(
            ipu_device,
            enable_dataset_iterators=enable_dataset_iterators,
            enable_keras_extensions=enable_keras_extensions,
        )
