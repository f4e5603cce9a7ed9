"""A program: the Ir that a graph of TensorFlow becomes, its variables, arguments, queues and results, and its runs.

The graph is imported at the first run, when the configuration is known: the number of replicas is the number of IPUs of
the device over the number of shards, rounded up to a power of two (``docs/reference/pipelines.md`` 2.1).
Simplifications: arguments and variables reach the device between runs, outside of the simulated time; results that a
program returns, and variables that it changes, are those of replica 0.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from ipuperf import ir as _ir
from ipuperf import ops as _k
from ipuperf.functions import make
from ipuperf.lowering import OUTLINE_THRESHOLD, ipus_per_replica
from ipuperf.numerics import FloatingPointException
from ipuperf.pipelines import Pipeline
from ipuperf.runtime.executable import Executable, HostOptions, LoweringOptions, RunOptions

from ..importer import Resource, Value, resource_of, tensor_of
from ..importer.collectives import leave_out_reductions
from ..importer.tracer import TracedFunction
from ..importer.tracing import Frame, use_frame
from ..importer.values import narrowed
from ..state import state
from . import devices
from .elements import Infeed, inputs_of

if TYPE_CHECKING:
    from .infeed import IteratorFeed


_SHARED_NORMS = (_k.BatchNormalization, _k.BatchNormalizationGrad)
"""Ops whose statistics several replicas may share."""


class TracedProgram:
    """A program, not yet imported or complete.

    Args:
        traced: the function's graph.
        name: name in reports.

    Attributes:
        ir: the program.
        main: frame of its main graph.
        arguments: main-graph variables that hold the arguments of the function.
        deferred: what is built when the number of replicas is known.
        executable: None before the first run.
        pipeline: the built pipeline, if the program has one and has run.
        iterators: those of the host that the program reads.
        unreduced: names of variables that are updated by gradients of the replica alone.
        apart: variables of which each replica keeps its own value from run to run.
    """

    def __init__(self, traced: TracedFunction, name: str | None = None) -> None:
        self.name = name or "program"
        self.traced = traced
        self.ir = _ir.Ir()
        self.main = Frame(self, self.ir.main_graph)
        self.arguments: list[_ir.Variable] = []
        self.infeeds: list[Infeed] = []
        self.deferred: list[Callable[[], None]] = []
        self.before_run: list[Callable[[], None]] = []
        self.executable: Executable | None = None
        self.unreduced: list[str] = []
        self.apart: set[Resource] = set()
        self.minimum_shards = 1
        self.pipeline_default_mapping = False
        self.device = state().device
        self.matmul_options: dict[str, Any] = {}
        self.convolution_options: dict[str, Any] = {}
        self.pipeline: Pipeline | None = None
        self.seed_number = (traced.graph.seed or 0) + state().random_seed
        self._results: list[_ir.Stream | np.ndarray] = []
        self.iterators: dict[Resource, IteratorFeed] = {}
        self._held: dict[Resource, list[_ir.Variable]] = {}
        self._changed: dict[Resource, None] = {}
        self._names: dict[Resource, str] = {}
        self._seeds: list[_ir.Variable] = []
        self._replica_number: _ir.Variable | None = None
        self._random_keys = itertools.count()
        self._groups: dict[_ir.Op, int] = {}
        self._norm_replicas = 1  # replicas whose batch norms share their statistics
        self._running = threading.RLock()

    # -- what it uses ------------------------------------------------------------------------------------------------

    @property
    def feeds(self) -> list[tf.Tensor]:
        """Tensors of the graph around the function that it uses and that are not known before a run."""
        return [t for t in self.traced.captured if _known(t) is None and t.dtype != tf.resource]

    @property
    def handles(self) -> list[tf.Tensor]:
        """Handles of the variables and iterators that the function uses: those of outside, then those of arguments (in
        the function's graph)."""
        return [t for t in [*self.traced.captured, *self.traced.arguments] if t.dtype == tf.resource]

    def know(self, variables: Sequence[Any]) -> None:
        """Learn the names of TensorFlow's variables."""
        self._names.update((resource_of(v.handle), v.name.rpartition(":")[0] or v.name) for v in variables)

    def name_of(self, resource: Resource) -> str:
        """A variable's name."""
        if resource in self._names:
            return self._names[resource]
        return resource.handle.op.name if hasattr(resource.handle, "graph") else f"variable_{len(self._held)}"

    def variable(self, resource: Resource, offload: bool = False) -> _ir.Variable:
        """The main-graph variable of TensorFlow's variable; a new one lives in Streaming Memory if ``offload`` says so
        and it is large enough."""
        if resource not in self._held:
            spec = spec_of(resource)
            variable = self.data(self.name_of(resource), np.zeros(spec.shape, spec.dtype.as_numpy_dtype))
            if offload and variable.spec.bytes >= devices.minimum_remote_bytes(state().config):
                variable.remote = (self.ir.remote_buffer(variable.shape, variable.dtype, 1), 0)
            # A variable lives on the shard of the op that uses it first.
            if _ir.CONTEXT.ipus:
                variable.ipu = _ir.CONTEXT.ipus[-1]
            # The host reads the first of them; hold() adds further ones.
            self._held[resource] = [variable]
        return self._held[resource][0]

    def resource(self, variable: _ir.Variable) -> Resource:
        """TensorFlow's variable of a main-graph variable."""
        return next(r for r, variables in self._held.items() if variable in variables)

    def holds(self, resource: Resource) -> bool:
        """Whether the program has a main-graph variable for TensorFlow's variable."""
        return resource in self._held

    def is_changed(self, resource: Resource) -> bool:
        """Whether the program gives TensorFlow's variable other values, as far as it is imported."""
        return resource in self._changed

    def hold(self, resource: Resource, variable: _ir.Variable) -> None:
        """A further main-graph variable that has the value of TensorFlow's variable."""
        self._held.setdefault(resource, []).append(variable)

    def changes(self, resource: Resource) -> None:
        """The program gives TensorFlow's variable other values."""
        self._changed[resource] = None

    def data(self, name: str, value: np.ndarray) -> _ir.Variable:
        """A new main-graph variable with the same value on all replicas."""
        graph, value = self.ir.main_graph, narrowed(value)
        spec = _ir.TensorSpec(tuple(value.shape), _ir.dtype_of(value))
        # Whichever op asks first, the name carries none of its scopes.
        with _ir.CONTEXT.detached():
            name = graph.tensor_id(name)
        variable = _ir.Variable(name, spec, graph, value.copy(), self.ir.grouping())
        graph.add(variable)
        return variable

    def seed(self, name: str) -> _ir.Variable:
        """A new seed: ``uint32`` of shape (2,), another one on each replica, kept from run to run."""
        seed = self.data(name, np.zeros(2, np.uint32))
        self._seeds.append(seed)
        return seed

    def iterator(self, resource: Resource, specs: Sequence[tf.TensorSpec]) -> IteratorFeed:
        """What feeds elements of an iterator of the host."""
        from .infeed import IteratorFeed

        return self.iterators.setdefault(resource, IteratorFeed(specs))

    def replica_number(self) -> _ir.Variable:
        """A variable that holds the number of the replica."""
        if self._replica_number is None:
            self._replica_number = self.data("replica", np.zeros((), np.int32))
        return self._replica_number

    def collective(
        self, op_class: type[_ir.Op], tensor: _ir.Tensor, name: str, size: int | None, **attributes: Any
    ) -> _ir.Tensor:
        """A collective over groups of ``size`` successive replicas (None: all) in the active graph. Until it is known
        how many replicas there are, the groups are those of as few as fit them."""
        # A common multiple: the groups of all collectives fit it until the real number is known.
        if size is not None:
            self._regroup(math.lcm(self.ir.replication_factor, size))
        result = make(op_class, tensor, name=name, group=self.ir.grouping(1, size), **attributes)
        if size is not None and result.producer is not None:
            self._groups[result.producer] = size
        return result

    def random_key(self) -> int:
        """A number that tells random ops of the program apart: 0, 1, 2 ... in the order of the import."""
        return next(self._random_keys)

    def stream(self, name: str, shape: Sequence[int], dtype: _ir.DType, direction: str, count: int) -> _ir.Stream:
        """A new host stream of which a run moves ``count`` slices."""
        graph = self.ir.main_graph
        with _ir.CONTEXT.detached():
            name = graph.tensor_id(name)
        stream = _ir.Stream(name, _ir.TensorSpec(tuple(int(n) for n in shape), dtype), graph, direction)
        stream.transfers = count
        graph.add(stream)
        return stream

    def plan_attributes(self, op_class: type[_ir.Op]) -> dict[str, Any]:
        """Attributes of products and convolutions: the options of the active pipeline stage over those of the
        configuration (recurrent layers have those of products); of norms: whether their statistics are stable. None for
        other ops."""
        if op_class in (_k.Recurrent, _k.RecurrentGrad):
            plans = self.plan_attributes(_k.MatMul)
            return {**plans, **devices.of_gradient(plans)} if op_class is _k.Recurrent else plans
        options: dict[Any, dict[str, Any]] = {_k.MatMul: self.matmul_options, _k.Conv: self.convolution_options}
        config, settings = state().config, options.get(op_class)
        if op_class in _SHARED_NORMS and config is not None:
            self._norm_replicas = config.norms.experimental.distributed_batch_norm_replica_group_size
        if op_class in (_k.BatchNormalization, _k.GroupNormalization):
            stable = {"stable": config is not None and config.norms.use_stable_statistics}
            return {**stable, **self._norm_group(op_class)}
        if op_class is _k.BatchNormalizationGrad:
            return self._norm_group(op_class)
        if settings is None:
            return devices.block_attributes(op_class, config)
        set_up = None if config is None else config.matmuls if op_class is _k.MatMul else config.convolutions
        return devices.plan_attributes({**(set_up.poplar_options if set_up is not None else {}), **settings})

    def _norm_group(self, op_class: type[_ir.Op]) -> dict[str, Any]:
        """The attribute of batch norms whose statistics are those of several replicas."""
        size = self._norm_replicas
        if op_class not in _SHARED_NORMS or size == 1:
            return {}
        self._regroup(math.lcm(self.ir.replication_factor, size))
        return {"group": self.ir.grouping(1, size)}

    # -- building ----------------------------------------------------------------------------------------------------

    def finish(self) -> Executable:
        """Import and complete the program for the configuration in force, once.

        Raises:
            GraphError: an op that the IPU does not have. ValueError: the shards do not divide the IPUs, or replicas are
                updated without a cross-replica optimiser.
        """
        if self.executable is not None:
            return self.executable
        self._import()
        shards = devices.power_of_two(max(self.minimum_shards, ipus_per_replica(self.ir)))
        replicas = devices.replicas(state().config, self.device, shards)
        # Several replicas may show only here, long after the update was imported.
        if replicas > 1 and self.unreduced:
            raise ValueError(
                f"variable {self.unreduced[0]!r} is updated on {replicas} replicas by an optimizer that does not "
                "reduce gradients over them, so the replicas would go apart; wrap the optimizer in "
                "ipu.optimizers.CrossReplicaOptimizer"
            )
        self._replicate(replicas)
        devices.relabel(self.ir, self.ipu_order())
        # What was deferred places itself on physical IPUs, so it comes after the relabelling.
        for build in self.deferred:
            build()
        # This comes last, because pipelines bring reductions of their own.
        leave_out_reductions(self.ir)
        config = state().config
        if config is not None and config.io_tiles.num_io_tiles:
            self.ir.num_io_tiles = config.io_tiles.num_io_tiles
        outlined = config is None or config.optimizations.enable_graph_outlining
        self.executable = Executable(
            self.ir,
            name=self.name,
            lowering=LoweringOptions(
                merging=devices.collective_merging(config), outlining=OUTLINE_THRESHOLD if outlined else None
            ),
            host=HostOptions(
                max((feed.queue.prefetch_depth for feed in self.infeeds), default=1),
                host_processes=1 if config is None else config._host_processes,
            ),
            options=RunOptions(floating_point_exceptions=devices.floating_point_exceptions(config)),
        )
        self.executable.evaluator.load_variables()
        return self.executable

    def _import(self) -> None:
        traced = self.traced
        self.know(traced.variables)
        with use_frame(self.main):
            values = [self._argument(t, f"arg{i}") for i, t in enumerate(traced.arguments)]
            captured = [self._capture(t) for t in traced.captured]
            for value in traced.build(self.main, values, captured):
                self._results.append(self._result(value))

    def _argument(self, tensor: tf.Tensor, name: str) -> Value:
        """A main-graph variable that holds an argument, which may change from run to run; a variable or an iterator.

        Raises:
            ValueError: its shape is not fixed.
        """
        if tensor.dtype == tf.resource:
            return resource_of(tensor)
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"{self.name}: argument {name} has shape {tensor.shape}; an IPU program needs a fixed shape"
            )
        variable = self.data(name, np.zeros(tensor.shape, tensor.dtype.as_numpy_dtype))
        self.arguments.append(variable)
        return variable

    def _capture(self, tensor: tf.Tensor) -> Value:
        """What the function uses of outside: a variable, data, or a tensor of the graph around it: an argument."""
        if tensor.dtype == tf.resource:
            return resource_of(tensor)
        known = _known(tensor)
        return self._argument(tensor, tensor.op.name) if known is None else known

    def _result(self, value: Value) -> _ir.Stream | np.ndarray:
        if isinstance(value, np.ndarray):
            return value
        tensor = tensor_of(value, self.main)
        stream = self.stream("result", tensor.shape, tensor.dtype, "d2h", 1)
        with _ir.CONTEXT.detached():
            self.main.create(_k.HostStore, [tensor], [], stream=stream)
        return stream

    def ipu_order(self) -> tuple[int, ...]:
        """Physical IPU of each shard of a replica."""
        shards = devices.power_of_two(max(self.minimum_shards, ipus_per_replica(self.ir)))
        return devices.selection_order(state().config, shards, self.pipeline_default_mapping)

    def _replicate(self, replicas: int) -> None:
        for op, size in self._groups.items():
            if replicas % size:
                raise ValueError(
                    f"{op.where()}: its groups are of {size} replicas, which do not divide the program's {replicas}; "
                    "give it the number of replicas, or another number of IPUs to the configuration"
                )
        if replicas % self._norm_replicas:
            raise ValueError(
                f"{self.name}: groups of {self._norm_replicas} replicas (distributed_batch_norm_replica_group_size of "
                f"the configuration) do not divide the program's {replicas}"
            )
        self._regroup(replicas)
        for number, seed in enumerate(self._seeds):
            seed.grouping = self.ir.grouping(1, 1)
            # One sequence gives each replica words of its own, the same in every process.
            words = np.random.SeedSequence([self.seed_number, number]).generate_state(2 * replicas)
            seed.data = words.reshape(replicas, 2) if replicas > 1 else words
        if self._replica_number is not None and replicas > 1:
            self._replica_number.grouping = self.ir.grouping(1, 1)
            self._replica_number.data = np.arange(replicas, dtype=np.int32)

    def _regroup(self, replicas: int) -> None:
        """Let the program have so many replicas: variables are the same on all, collectives over their groups."""
        if replicas == self.ir.replication_factor:
            return
        self.ir.replication_factor = replicas
        for variable in self.ir.variables():
            variable.grouping = self.ir.grouping()
        for graph in self.ir.all_graphs():
            for op in graph.ops:
                if isinstance(op.attributes.get("group"), _ir.ReplicaGrouping):
                    size = self._norm_replicas if isinstance(op, _SHARED_NORMS) else self._groups.get(op)
                    op.attributes["group"] = self.ir.grouping(1, size)

    # -- runs --------------------------------------------------------------------------------------------------------

    def lasting(self) -> list[Resource]:
        """TensorFlow's variables whose values on the device, after a run, are those that the run gave outwards, or are
        to stay: of one that the program changes, replicas may have different ones, and so may its further main-graph
        variables."""
        alone, changed = self.ir.replication_factor == 1, self._changed
        stay = {r for r, variables in self._held.items() if len(variables) == 1 and (alone or r in self.apart)}
        return [r for r in self._held if r not in changed or r in stay]

    def run(
        self,
        arguments: Sequence[Any],
        variables: Sequence[Any],
        number: Callable[[Resource], int],
        present: Collection[Resource] = (),
    ) -> tuple[list[np.ndarray], dict[Resource, np.ndarray]]:
        """Execute the program once.

        Args:
            arguments: values of the function's arguments (handles left out), then of the tensors of outside that are
                arguments.
            variables: present values of the variables that it uses.
            number: which of ``variables`` is that of a resource.
            present: variables whose values are on the device already.

        Returns:
            The values of the results, and those of the variables that it has changed.

        Raises:
            ValueError: arguments of another number, shape or type.
            tf.errors.OutOfRangeError: an infeed's dataset has too few elements.
            tf.errors.InternalError: a floating-point exception that the configuration asks for.
        """
        with self._running:
            executable = self.finish()
            required = set(executable.evaluator.required_inputs())
            inputs, elements = inputs_of(self.infeeds, required, self.ir.replication_factor, self.name)
            self._load(arguments, variables, number, present)
            for action in self.before_run:
                action()
            try:
                outputs = executable.run(inputs)
            except FloatingPointException as error:
                raise tf.errors.InternalError(None, None, f"Floating point exception: {error}") from error
            # What nothing has read is used up all the same.
            for feed_elements in elements:
                for _ in feed_elements:
                    pass
            # The axes in front are steps and replicas.
            results = [r if isinstance(r, np.ndarray) else np.asarray(outputs[r][0, 0]) for r in self._results]
            return results, self._changes()

    def _load(
        self,
        arguments: Sequence[Any],
        variables: Sequence[Any],
        number: Callable[[Resource], int],
        present: Collection[Resource],
    ) -> None:
        """Bring arguments and variables to the device."""
        if len(arguments) != len(self.arguments):
            raise ValueError(f"{self.name}: {len(arguments)} arguments given, the program takes {len(self.arguments)}")
        title = f"{self.name}: argument"
        loaded = [_set(each, np.asarray(value), title) for each, value in zip(self.arguments, arguments)]
        for resource, copies in self._held.items():
            if resource in present:
                continue
            value = np.asarray(variables[number(resource)])
            loaded += [_set(variable, value, f"{self.name}: variable") for variable in copies]
        assert self.executable is not None
        self.executable.evaluator.load_variables(loaded)

    def _changes(self) -> dict[Resource, np.ndarray]:
        """Values of the variables that the program changes."""
        assert self.executable is not None
        variables = {resource: self._held[resource][0] for resource in self._changed}
        self.executable.evaluator.store_variables(variables.values())
        return {resource: variable.data for resource, variable in variables.items()}


def _set(variable: _ir.Variable, value: np.ndarray, title: str) -> _ir.Variable:
    """Give a variable, whose kind the title says, another value."""
    if value.shape != variable.data.shape:
        raise ValueError(f"{title} {variable.id!r} has shape {variable.data.shape}, got {value.shape}")
    variable.data[...] = _ir.converted(value, variable.data.dtype, f"{title} {variable.name!r}")
    return variable


def _known(tensor: tf.Tensor) -> np.ndarray | None:
    """The value of a tensor that is known before a run."""
    if tensor.dtype == tf.resource:
        return None
    value = tensor.numpy() if hasattr(tensor, "numpy") else tf.get_static_value(tensor)
    return None if value is None else np.asarray(value)


def spec_of(resource: Resource) -> tf.TensorSpec:
    """Shape and type of a variable.

    Raises:
        ValueError: its shape is not fixed.
    """
    data = resource_variable_ops.get_eager_safe_handle_data(resource.handle).shape_and_type[0]
    shape = tf.TensorShape(data.shape)
    if not shape.is_fully_defined():
        raise ValueError(f"a variable of an IPU program needs a fixed shape, not {shape}")
    return tf.TensorSpec(shape, tf.as_dtype(data.dtype))
